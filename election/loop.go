package election

import (
	"math/rand/v2"
	"time"
)

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

// jitter returns a random time below d.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}
