package election

import "context"

// Presence is what a database knows of the proxies that are connected to it.
type Presence interface {
	// PresenceID identifies this proxy to the others, since it has opened the database. It contains
	// no dot.
	PresenceID() string
	// Gone reports whether a proxy, which was connected to the database, has no connection to it
	// any more. A proxy that was killed has none at once, because the kernel of its machine closes
	// them. One whose machine has vanished, or that is frozen, still has them.
	Gone(ctx context.Context, presenceID string) (bool, error)
}

// presenceID returns that of this proxy, "" if it has none.
func (r *resource) presenceID() string {
	if r.presence == nil {
		return ""
	}
	return r.presence.PresenceID()
}
