package election

import (
	"math/rand/v2"
	"time"
)

// idleStep is the longest time between two steps.
const idleStep = 5 * time.Second

// run is the candidacy's loop. Each step looks at the whole state, starts whatever is
// due, and waits for the next event. It does not matter which event it was, so none can
// be missed.
func (c *Candidacy) run() {
	defer c.r.loopEnded(c)
	defer close(c.done)
	defer c.abandonFunc()
	defer c.cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		c.announceToResource()
		v := c.r.snapshot(c)
		now := c.r.e.cfg.Now()
		c.sampleInStep(now)
		wait, over := c.step(v, now)
		c.announceToResource()
		c.announce()
		if over {
			return
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-c.poke:
		case apply := <-c.results:
			apply()
		}
	}
}

// step starts whatever is due. It returns how long to wait for the next step, and
// whether the candidacy is over and has nothing left to release.
func (c *Candidacy) step(v snapshot, now time.Duration) (wait time.Duration, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	c.lookLocked(v, now)
	c.publishLocked(now)
	if c.overLocked() {
		c.cancel()
		c.answerLocked()
	}
	switch {
	case s.requests.has(requestAcquire), s.requests.has(requestRelease): // its result decides what follows
	case s.held.lease != nil:
		c.holdLocked(now)
	case c.overLocked() && s.leftovers.uncertain: // it makes no more attempts
		c.releaseLocked(&Lease{AcquireRequest: c.acquireRequest()}, ReasonLeft)
	case s.leftovers.strayed(s.seen.observation, c.incarnation) && !c.eligibleLocked():
		s.leftovers.stray = s.seen.observation.Index
		c.releaseLocked(&Lease{AcquireRequest: c.acquireRequest(), Index: s.leftovers.stray}, ReasonLeft)
	case s.leftovers.unresponsive != nil && !c.livesLocked():
		c.releaseLocked(s.leftovers.unresponsive, ReasonLeft)
	case c.wantsLocked(now):
		c.acquireLocked()
	}
	c.publishLocked(now)
	busy := s.requests.any()
	if s.closing && !s.requests.changes() && (s.held.lease == nil || c.livesLocked()) {
		s.closing = false // announceToResource passes it on
	}
	wait = c.nextLocked(now)
	c.next.Store(int64(now + wait))
	return wait, s.ended && !busy && s.held.lease == nil
}

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

// answerLocked ends the wait of those who asked for an attempt. They find its result in
// the status.
func (c *Candidacy) answerLocked() {
	c.publishLocked(c.r.e.cfg.Now())
	c.mu.answer()
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

// jitter returns a random time below d.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}
