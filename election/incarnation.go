package election

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// Presence is what a database knows of the proxies that are connected to it.
type Presence interface {
	// PresenceID identifies this proxy to the others, since it has opened the database. It contains
	// no dot.
	PresenceID() string
	// Gone reports whether a proxy, which was connected to the database, has no connection to it
	// any more. A proxy that was killed has none at once, because the kernel of
	// its machine closes them. One whose machine has vanished, or that is frozen, still has them.
	Gone(ctx context.Context, presenceID string) (bool, error)
}

// newIncarnation returns the id of a candidacy. It is random, and it says through which proxy the
// candidacy runs and, to whoever knows the role and the worker, for whom. So every lease service
// shows whose lease it is. Without a presence the id is only random.
func newIncarnation(presenceID, user, worker string) string {
	random := rand.Text()
	if presenceID == "" {
		return random
	}
	return strings.Join([]string{random, presenceID, ownerOf(random, user, worker)}, ".")
}

// presenceIn returns the presence id of the proxy through which the candidacy of an incarnation
// runs. own reports whether it is a candidacy of this worker and this role.
func presenceIn(incarnation, user, worker string) (presenceID string, own bool) {
	parts := strings.Split(incarnation, ".")
	if len(parts) != 3 || parts[2] != ownerOf(parts[0], user, worker) {
		return "", false
	}
	return parts[1], true
}

// ownerOf returns 80 bits of a hash of a role and a worker. The random text makes it different for
// each candidacy.
func ownerOf(random, user, worker string) string {
	sum := sha256.Sum256([]byte(random + "\x00" + user + "\x00" + worker)) // neither role nor worker has a zero byte
	return base32.StdEncoding.EncodeToString(sum[:10])
}

// presenceID returns that of this proxy, "" if it has none.
func (r *resource) presenceID() string {
	if r.presence == nil {
		return ""
	}
	return r.presence.PresenceID()
}
