package election

import (
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/offer"
	"github.com/fencepost/fencepost/fencing"
)

// view is what a candidacy's loop sees of the resource in each step.
type view struct {
	observation  elector.Observation
	watchFailing bool // the watch is failing
	unreached    bool // the database does not answer
	taken        bool // another candidacy of this proxy holds the lease
	departing    bool // another candidacy of this proxy is about to release it
	freeSince    time.Duration
	lastLed      time.Duration // when the last leader was last confirmed; 0 if not known
	lastEnded    fencing.Ending
	offer        offer.Offer
}

// viewLocked returns what c sees of the resource. r.mu is held.
func (r *resource) viewLocked(c *Candidacy) view {
	return view{
		observation: r.mu.observation, watchFailing: r.mu.watchErr != nil, unreached: r.mu.unreached,
		taken: r.mu.heldByOther(c), departing: r.mu.otherDeparting(c),
		freeSince: r.mu.freeSince, lastLed: r.mu.LastLed, lastEnded: r.mu.LastEnded,
		offer: r.offerLocked(),
	}
}

// observeLocked takes in what has changed since the last step: what the worker does, and what the resource looks like.
func (c *Candidacy) observeLocked(now time.Duration) {
	c.sampleInStepLocked(now)
	c.expireRetention(now)
	if c.phase == superseded {
		c.endIfEmpty()
	}
	v, before := c.r.viewLocked(c), c.seen
	c.seen = v
	if before.unreached && !v.unreached {
		c.ungranted = nil
		if c.epoch == 0 { // whoever has led comes first; its proxy may notice up to one look later
			c.tryAt = max(c.tryAt, now+orderPoll+jitter(100*time.Millisecond))
		}
	}
	if before.watchFailing && !v.watchFailing { // what failed meanwhile is retried at once
		c.backoff, c.held = 0, c.held.dueNow(now)
		c.tryAt = min(c.tryAt, now+jitter(20*time.Millisecond))
	}
	if v.observation == before.observation {
		if former, _ := c.offeringHolder(v.observation, v.offer, now); former != "" {
			c.reclaim.Follow(former, now)
		}
		return
	}
	if v.observation.Incarnation == c.incarnation {
		return // this candidacy's own doing
	}
	former, _ := c.takeableHolder(v.observation, v.offer, now)
	c.reclaim.Follow(former, now)
	c.leftovers.unresponsive = nil // someone has held the lease since
	if c.fault == nil && c.barred == nil {
		c.backoff = 0
		c.tryAt = now
		if !v.offer.Invites(c.worker, now) {
			c.tryAt += jitter(20 * time.Millisecond) // not all proxies at the same instant
		}
	}
}
