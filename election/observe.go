package election

import (
	"time"

	"github.com/fencepost/fencepost/election/offer"
	"github.com/fencepost/fencepost/fencing"
)

// lookLocked processes what has changed since the last step.
func (c *Candidacy) lookLocked(v snapshot, now time.Duration) {
	s := &c.mu.state
	s.expireRetention(now)
	if s.phase == superseded {
		s.endIfEmpty()
	}
	before := s.seen
	s.seen = v
	if before.unreached && !v.unreached {
		s.ungranted = nil
		if s.epoch == 0 { // whoever has led comes first; its proxy may notice up to one look later
			s.tryAt = max(s.tryAt, now+orderPoll+jitter(100*time.Millisecond))
		}
	}
	if before.watchFailing && !v.watchFailing { // what failed meanwhile is retried at once
		s.backoff, s.held = 0, s.held.dueNow(now)
		s.tryAt = min(s.tryAt, now+jitter(20*time.Millisecond))
	}
	if v.observation == before.observation {
		if former, _ := c.offeringHolder(v.observation, v.offer, now); former != "" {
			s.reclaim.Follow(former, now)
		}
		return
	}
	if v.observation.Incarnation == c.incarnation {
		return // this candidacy's own doing
	}
	former, _ := c.takeableHolder(v.observation, v.offer, now)
	s.reclaim.Follow(former, now)
	s.leftovers.unresponsive = nil // someone has held the lease since
	if s.fault == nil && s.barred == nil {
		s.backoff = 0
		s.tryAt = now
		if !v.offer.Invites(c.worker, now) {
			s.tryAt += jitter(20 * time.Millisecond) // not all proxies at the same instant
		}
	}
}

// snapshot is what a candidacy's loop sees of the resource in each step.
type snapshot struct {
	observation     LeaseObservation
	watchFailing    bool // the watch is failing
	unreached       bool // the database does not answer
	taken           bool // another candidacy of this proxy holds the lease
	closing         bool // another candidacy of this proxy is about to release it
	freeSince       time.Duration
	lastLed         time.Duration // when the last leader was last confirmed; 0 if not known
	lastEnded       fencing.Ending
	highestObserved fencing.Epoch
	offer           offer.Offer
}

func (r *resource) snapshot(c *Candidacy) snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return snapshot{
		observation: r.mu.observation, watchFailing: r.mu.watchErr != nil, unreached: r.mu.unreached,
		taken: r.mu.heldByOther(c), closing: r.mu.otherDeparting(c),
		freeSince: r.mu.freeSince, lastLed: r.mu.lastLed, lastEnded: r.mu.lastEnded, highestObserved: r.mu.highestObserved,
		offer: r.offerLocked(),
	}
}
