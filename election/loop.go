package election

import (
	"math/rand/v2"
	"time"
)

// run is the candidacy's loop. Each step observes (observe.go), decides what is due (decide.go) and requests it
// (request.go), and then waits for the next event. It does not matter which event it was, so none can be
// missed. The result of a request is applied when it is known (result.go), which is such an event.
func (c *Candidacy) run() {
	defer c.r.loopEnded(c)
	defer close(c.done)
	defer c.abandon()
	defer c.cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, over := c.step()
		c.announce()
		if over {
			return
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-c.poke:
		}
	}
}

// step starts whatever is due. It returns how long to wait for the next step, and
// whether the candidacy is over and has nothing left to release.
func (c *Candidacy) step() (wait time.Duration, over bool) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	now := c.r.e.cfg.Now()
	c.observeLocked(now)
	c.publishLocked(now)
	if c.isOver() {
		c.cancel()
	}
	for a := c.next(now); a != nothing; a = c.next(now) {
		c.doLocked(a, now)
	}
	c.publishLocked(now)
	if !c.requests.changes() && (c.held.lease == nil || c.lives()) {
		c.r.departedLocked(c)
	}
	if !c.requests.any() {
		c.move.settle()
	}
	wait = c.wait(now)
	c.due = now + wait
	return wait, c.ended && !c.requests.any() && c.held.lease == nil && !c.move.holds()
}

// jitter returns a random time below d.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}
