package election

import (
	"context"
	"time"

	"go.uber.org/zap"
)

const (
	// A failed release is retried with pauses between these two, so that the lease is
	// free soon after the lease service becomes reachable again.
	minReleasePause = 20 * time.Millisecond
	maxReleasePause = 250 * time.Millisecond
	// leastReleaseTime is the least time for which a release is retried.
	leastReleaseTime = time.Minute
)

// releaseLocked releases a lease. The status changes before the request is sent. A
// lease that cannot be released expires with its TTL.
func (c *Candidacy) releaseLocked(lease *Lease, why Reason) {
	s := &c.mu.state
	s.requests.begin(requestRelease, nil)
	c.stopLeadingLocked()
	s.liveness.released = s.liveness.released || why == ReasonUnresponsive
	s.requests.cancel(requestGrant)
	s.requests.cancel(requestRenew)
	c.ask(func() func() {
		err := c.release(lease, why)
		return func() { c.released(lease, why, err) }
	})
}

// release retries until it succeeds, because an unreleased lease leaves the resource
// without a leader for a TTL. It gives up when the lease must have expired, or when the
// candidacy is abandoned.
func (c *Candidacy) release(lease *Lease, why Reason) error {
	now := c.r.e.cfg.Now
	until := now() + max(3*c.r.set.TTL, leastReleaseTime)
	pause := minReleasePause
	for try := 1; ; try++ {
		ctx, cancel := context.WithTimeout(c.releaseCtx, 2*c.r.set.callTimeout())
		err := c.r.provider.Release(ctx, lease, why)
		cancel()
		if err == nil || c.releaseCtx.Err() != nil || now() > until {
			return err
		}
		if try == 1 {
			c.log.Warn("could not release the lease: retrying", zap.Error(err))
		}
		timer := time.NewTimer(pause/2 + jitter(pause/2))
		select {
		case <-timer.C:
		case <-c.releaseCtx.Done():
		}
		timer.Stop()
		pause = min(2*pause, maxReleasePause)
	}
}

func (c *Candidacy) released(lease *Lease, why Reason, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	s.requests.end(requestRelease)
	again := lease == s.unresponsive
	s.unresponsive = nil
	if lease.Index == 0 {
		s.uncertain = false
	}
	if s.held.lease == lease {
		s.held = holding{}
	}
	if err != nil {
		c.failedLocked("release the lease", err)
	}
	if why == ReasonUnresponsive {
		s.unresponsive = lease
	}
	if !again && lease.Index != 0 {
		c.log.Info("released", zap.Int64("epoch", int64(s.epoch)), zap.Stringer("reason", why))
		c.event(Event{Kind: EventReleased, Reason: why})
	}
	s.outbox.put(noticeVacated)
}
