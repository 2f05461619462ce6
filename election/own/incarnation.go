// Package own is about a lease that another proxy holds for the same worker and role: how a
// candidacy recognises it, and how often it looks whether that proxy is gone. It is pure.
package own

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// Incarnation returns the id of a new candidacy. It is random, and it says through which proxy the
// candidacy runs and, to whoever knows the role and the worker, for whom. So every lease service
// shows whose lease it is. If the proxy has no presence id, the incarnation is only random.
func Incarnation(presenceID, user, worker string) string {
	random := rand.Text()
	if presenceID == "" {
		return random
	}
	return strings.Join([]string{random, presenceID, ownerOf(random, user, worker)}, ".")
}

// PresenceID returns that of the proxy through which the candidacy of an incarnation runs. own reports
// whether it is a candidacy of this worker and this role.
func PresenceID(incarnation, user, worker string) (presenceID string, own bool) {
	parts := strings.Split(incarnation, ".")
	if len(parts) != 3 || parts[2] != ownerOf(parts[0], user, worker) {
		return "", false
	}
	return parts[1], true
}

// Proxy returns the presence id of the proxy through which the candidacy of an incarnation runs, whoever its
// worker is; "" if the incarnation does not say that.
func Proxy(incarnation string) (presenceID string) {
	if parts := strings.Split(incarnation, "."); len(parts) == 3 {
		return parts[1]
	}
	return ""
}

// ownerOf returns 80 bits of a hash of a role and a worker. The random text makes it different for
// each candidacy.
func ownerOf(random, user, worker string) string {
	sum := sha256.Sum256([]byte(random + "\x00" + user + "\x00" + worker)) // none of them has a zero byte
	return base32.StdEncoding.EncodeToString(sum[:10])
}
