package election

import (
	"time"
)

// idleStep is the longest time between two steps.
const idleStep = 5 * time.Second

// livesLocked reports whether the candidacy is needed and may still lead.
func (c *Candidacy) livesLocked() bool { return c.mu.needed() && c.mu.phase != superseded }

// eligibleLocked reports whether the candidacy may lead and its worker is responsive.
func (c *Candidacy) eligibleLocked() bool { return c.livesLocked() && !c.mu.liveness.unresponsive }

// holdLocked starts whatever a held lease needs.
func (c *Candidacy) holdLocked(now time.Duration) {
	s := &c.mu.state
	switch {
	case !c.livesLocked(), s.disagrees:
		if s.disagrees {
			s.tryAt = now + faultBackoff
		}
		s.disagrees = false
		c.releaseLocked(s.held.lease, ReasonLeft)
		return
	case s.seen.unreached:
		c.unreachedLocked()
		return
	case s.liveness.unresponsive && s.held.granted:
		c.releaseLocked(s.held.lease, ReasonUnresponsive)
		return
	case s.held.granted && c.token == 0 && s.seen.offer.Stops(c.worker, now):
		c.handOverLocked()
		return
	}
	switch {
	case s.held.granted && s.asked():
		c.answerLocked()
	case s.held.granted:
	case !s.requests.has(requestGrant) && now >= s.held.grantAt:
		c.grantLocked()
	}
	if !s.requests.has(requestRenew) && now >= s.held.renewAt {
		c.renewLocked(now)
	}
}

// wantsLocked reports whether it is time to try for the lease. If an attempt that
// someone waits for is pointless, it ends their wait.
func (c *Candidacy) wantsLocked(now time.Duration) bool {
	s := &c.mu.state
	switch {
	case !c.eligibleLocked() || s.retained != 0:
		c.answerLocked()
		return false
	case s.seen.unreached:
		s.ungranted = errUnreached
		c.answerLocked()
		return false
	case now < s.barredUntil:
		c.answerLocked()
		return false
	case s.seen.offer.Excludes(c.worker, now):
		c.answerLocked()
		return false
	case c.token > 0: // no one has to give it anything up
		return s.firstExpected() || now >= s.tryAt
	case s.seen.closing: // it releases first, and then wakes this loop
		return false
	case s.seen.taken:
		c.answerLocked()
		return false
	case s.reclaim.Pending():
		if !s.reclaim.Waits(now) {
			c.answerLocked()
		}
		return now >= s.reclaim.At
	case s.firstExpected():
		return true // whatever the watch saw may be out of date
	case len(s.demanded) > 0 && s.seen.observation.State != Held:
		return true
	case s.asked():
		c.answerLocked()
	}
	if now < s.tryAt {
		return false
	}
	switch s.seen.observation.State {
	case Freed:
		return true
	case Unresponsive:
		return s.waiters > 0 || s.epoch > 0 || s.seen.offer.Invites(c.worker, now)
	case Held: // by a lost response of this candidacy, or the observation is old
		return s.seen.watchFailing || s.seen.observation.Incarnation == c.incarnation
	default:
		return s.seen.watchFailing
	}
}

// nextLocked returns how long nothing will be due.
func (c *Candidacy) nextLocked(now time.Duration) time.Duration {
	s := &c.mu.state
	wait := idleStep
	due := func(at time.Duration) { wait = min(wait, max(at-now, time.Millisecond)) }
	if s.phase == superseded && !s.ended {
		return wait
	}
	if at := s.seen.offer.Next(now); at != 0 {
		due(at)
	}
	if s.liveness.skipped {
		due(s.liveness.last + minSample)
	}
	if s.campaigners > 0 && s.liveness.isLimited() && !s.liveness.sampledOftenEnough() {
		due(now + s.liveness.next())
	}
	if s.retained != 0 {
		due(s.retained)
	}
	if s.held.lease == nil {
		if at := max(s.tryAt, s.barredUntil); !s.requests.has(requestAcquire) && !s.requests.has(requestRelease) && at > now {
			due(at)
		}
		if at := s.reclaim.At; s.reclaim.Pending() && at > now {
			due(at)
		}
		return wait
	}
	if !s.held.granted && !s.requests.has(requestGrant) {
		due(s.held.grantAt)
	}
	if !s.requests.has(requestRenew) && !s.requests.has(requestRelease) {
		due(s.held.renewAt)
	}
	if now < s.held.trusted {
		due(s.held.trusted)
	}
	return wait
}

// overLocked reports that no one can join any more.
func (c *Candidacy) overLocked() bool { return c.mu.phase == superseded || c.mu.ended }

// unreachedLocked gives back a lease that the candidacy cannot use, because a worker at another proxy may be able to.
func (c *Candidacy) unreachedLocked() {
	c.mu.ungranted = errUnreached
	c.retryLocked()
	c.releaseLocked(c.mu.held.lease, ReasonLeft)
}
