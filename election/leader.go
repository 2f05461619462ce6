package election

import (
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/own"
	"github.com/fencepost/fencepost/election/status"
)

// leaderLocked says who leads. A candidacy of this proxy knows whether it may write. One of
// another proxy leads if it holds the lease and was granted the recorded epoch, and if that
// grant is confirmed. No one is known to lead while the lease cannot be watched, or while the fence is
// not the one in which the epochs were granted. r.mu is held.
func (r *resource) leaderLocked() status.Leader {
	o := r.mu.observation
	switch {
	case r.lostLocked():
		return status.LeaderNone
	case r.mu.leads():
		return status.LeaderHere
	case r.mu.holder != nil, r.mu.watchErr != nil:
		return status.LeaderNone
	case o.State == elector.Unseen:
		return status.LeaderUnknown
	case r.tokenProvider != nil && r.faultyLocked(o.Incarnation):
		return status.LeaderNone
	case r.leaseHolderLocked() == status.HolderRecorded && !r.mu.record.Unconfirmed:
		return status.LeaderElsewhere
	default:
		return status.LeaderNone
	}
}

// lostLocked reports whether the candidacies here have lost their fence. r.mu is held.
func (r *resource) lostLocked() bool { return r.mu.lost != nil && len(r.mu.loops) > 0 }

// leaseHolderLocked returns who holds the lease. A recorded epoch may be that of a grant which has failed
// since, because no standby has confirmed it, so a candidacy of this proxy that does not lead is not taken
// for the recorded leader. Nor is one that has ended, whose release the watch has not seen yet. r.mu is held.
func (r *resource) leaseHolderLocked() status.Holder {
	o := r.mu.observation
	switch {
	case r.mu.holder != nil:
		return status.HolderHere
	case o.State != elector.Held:
		return status.HolderNone
	case r.isOwnLocked(o.Incarnation):
		return status.HolderHere
	case o.Incarnation == r.mu.record.Incarnation:
		return status.HolderRecorded
	default:
		return status.HolderUnknown
	}
}

// isOwnLocked reports whether the candidacy of an incarnation runs at this proxy, or has run there. One
// whose incarnation does not name its proxy is not known once it has ended. r.mu is held.
func (r *resource) isOwnLocked(incarnation string) bool {
	id := r.presenceID()
	return r.mu.runs(incarnation, r.mu.record) || id != "" && own.Proxy(incarnation) == id
}

// faultyLocked reports whether a candidacy here that bears the observed token cannot use the
// fence. r.mu is held.
func (r *resource) faultyLocked(incarnation string) bool {
	for _, c := range r.mu.loops {
		if c.incarnation == incarnation && c.Status().Fault != nil {
			return true
		}
	}
	return false
}

// followLocked follows who leads, and returns it. r.mu is held.
func (r *resource) followLocked(now time.Duration) status.Leader {
	who := r.leaderLocked()
	if who != status.LeaderUnknown {
		r.mu.Follow(who.Leads(), now)
	}
	return who
}
