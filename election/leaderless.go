package election

import "time"

// leaderless tracks since when no worker has been able to write to a resource, as far as
// this proxy knows. It is not the time for which the lease is free: a worker that has
// acquired the lease cannot write before its epoch is granted, which may take long, and
// gives the lease back if that fails.
type leaderless struct {
	leaderlessSince time.Duration // 0 while somebody leads, and while nothing is known
}

func (l *leaderless) follow(led bool, now time.Duration) {
	switch {
	case led:
		l.leaderlessSince = 0
	case l.leaderlessSince == 0:
		l.leaderlessSince = now
	}
}

// leader is what is known of who leads a resource.
type leader uint8

const (
	leaderUnknown leader = iota // nothing was observed since the last candidacy here ended
	leaderNone
	leaderHere
	leaderElsewhere
)

// leaderLocked says who leads. A candidacy of this proxy knows whether it may write. One of
// another proxy leads if it holds the lease and was granted the recorded epoch. r.mu is held.
func (r *resource) leaderLocked() leader {
	o := r.mu.observation
	switch {
	case r.mu.holder != nil && r.mu.holder.Status().CanWrite():
		return leaderHere
	case r.mu.holder != nil:
		return leaderNone
	case o.State == Unseen:
		return leaderUnknown
	case o.State == Held && o.Incarnation == r.mu.record.Incarnation:
		return leaderElsewhere
	default:
		return leaderNone
	}
}

// followLeader is called after anything that leaderLocked rests on has changed.
func (r *resource) followLeader() {
	now := r.e.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.follow(r.leaderLocked() != leaderNone, now)
}
