package election

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

const (
	// A failed release is retried with pauses between these two, so that the lease is
	// free soon after the lease service becomes reachable again.
	minReleasePause = 20 * time.Millisecond
	maxReleasePause = 250 * time.Millisecond
	// leastReleaseTime is the least time for which a release is retried.
	leastReleaseTime = time.Minute
)

// leftovers are what a candidacy may have at the lease service although it holds no
// lease.
type leftovers struct {
	// unresponsive is the lease that was released as unresponsive, if no one has
	// acquired it since, as far as known.
	unresponsive *Lease
	// uncertain means that an Acquire of unknown outcome may have got a lease, or may
	// still get one.
	uncertain bool
	// stray is the index of the last award to such an Acquire that was released.
	stray int64
}

// strayed reports whether the observation shows a lease that an Acquire of unknown
// outcome got for this incarnation, and that has not been released.
func (l *leftovers) strayed(o LeaseObservation, incarnation string) bool {
	return l.uncertain && o.State == Held && o.Incarnation == incarnation && o.Index != l.stray
}

// released records that a lease was released. It reports whether the same lease had
// been released as unresponsive before.
func (l *leftovers) released(lease *Lease, why Reason) (again bool) {
	again = lease == l.unresponsive
	l.unresponsive = nil
	if why == ReasonUnresponsive {
		l.unresponsive = lease
	}
	if lease.Index == 0 { // whatever the incarnation got or may still get
		l.uncertain = false
	}
	return again
}

// releaseLocked releases a lease. The status changes before the request is sent. A
// lease that cannot be released expires with its TTL.
func (c *Candidacy) releaseLocked(lease *Lease, why Reason) {
	s := &c.mu.state
	s.requests.begin(requestRelease, nil)
	ended, silent := fencing.EndingLeft, time.Duration(0)
	if why == ReasonUnresponsive {
		ended, silent = fencing.EndingSilence, s.liveness.quiet
	}
	c.noteLeadEndLocked(c.r.e.cfg.Now(), ended)
	c.stopLeadingLocked()
	s.liveness.released = s.liveness.released || why == ReasonUnresponsive
	s.requests.cancel(requestGrant)
	s.requests.cancel(requestRenew)
	c.ask(func() func() {
		err := c.release(lease, why, silent)
		return func() { c.released(lease, why, silent, err) }
	})
}

// release retries until it succeeds, because an unreleased lease leaves the resource
// without a leader for a TTL. It gives up when the lease must have expired, or when the
// candidacy is abandoned.
func (c *Candidacy) release(lease *Lease, why Reason, silent time.Duration) error {
	now := c.r.e.cfg.Now
	until := now() + max(3*c.set.TTL, leastReleaseTime)
	pause := minReleasePause
	for try := 1; ; try++ {
		ctx, cancel := context.WithTimeout(c.releaseCtx, 2*c.set.callTimeout())
		err := c.r.provider.Release(ctx, lease, why, silent)
		cancel()
		if err == nil || c.releaseCtx.Err() != nil || c.deserted.Load() || now() > until {
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

// released processes the result of a release. silent is for how long the worker had been silent, if that is why.
func (c *Candidacy) released(lease *Lease, why Reason, silent time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	s.requests.end(requestRelease)
	again := s.leftovers.released(lease, why)
	if s.held.lease == lease {
		s.held = holding{}
	}
	switch {
	case err != nil:
		c.log.Warn("could not release the lease: unless it is over, it ends when it expires",
			zap.Int64("epoch", int64(s.epoch)), zap.Stringer("reason", why), zap.Error(err))
		c.event(Event{Kind: EventFailed, Err: fmt.Errorf("release the lease: %w", err)})
	case !again && lease.Index != 0:
		fields := []zap.Field{zap.Int64("epoch", int64(s.epoch)), zap.Stringer("reason", why)}
		if why == ReasonUnresponsive {
			c.log.Warn("released", append(fields, zap.Duration("silence", silent), zap.Duration("worker_timeout", c.allowedSilence(c.r.e.cfg.Now())))...)
		} else {
			c.log.Info("released", fields...)
		}
		c.event(Event{Kind: EventReleased, Reason: why})
	}
	s.outbox.put(noticeVacated)
}
