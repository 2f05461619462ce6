package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

const (
	// faultBackoff is about how long a candidacy waits after the fence, or the order of
	// awards, has turned out to be unusable.
	faultBackoff = 3 * time.Second
	// grantPatience is how much longer than a TTL a lease is kept that cannot be turned
	// into an epoch.
	grantPatience = 5 * time.Second
)

// ask runs one request outside the loop. The loop runs the function that it returns,
// and does not end before that.
func (c *Candidacy) ask(request func() (apply func())) {
	go func() { c.results <- request() }()
}

func (c *Candidacy) acquireRequest() AcquireRequest {
	return AcquireRequest{Resource: c.r.key.name, Worker: c.worker, Incarnation: c.incarnation, TTL: c.r.set.TTL}
}

// acquireLocked starts an attempt to acquire the lease.
func (c *Candidacy) acquireLocked(v view) {
	s := &c.mu.state
	s.acquiring = true
	asked, again, observation := c.askedLocked(), s.backoff > 0, s.observation
	c.event(Event{Kind: EventCampaign})
	c.ask(func() func() {
		got := c.acquire(asked, func() {
			if !again {
				c.log.Info("campaign", zap.Stringer("lease", observation.State))
			}
		})
		return func() { c.acquired(got, v) }
	})
}

// outcome is the result of an attempt.
type outcome struct {
	lease      *Lease
	sent       time.Duration // the time just before the request
	instanceID string        // the instance that was numbered before the request
	err        error
}

// acquire waits for its turn among the candidacies of this proxy, so that they do not
// all ask for a free lease at once. It calls begin before it sends the request. The end
// of the candidacy does not cancel a request that was sent: the lease service may award
// the lease anyway, and only the response says what to release.
func (c *Candidacy) acquire(asked bool, begin func()) (got outcome) {
	select {
	case c.r.turn <- struct{}{}:
		defer func() { <-c.r.turn }()
	case <-c.ctx.Done():
		return outcome{err: ErrHeld} // no request was sent
	}
	if c.r.taken(c, asked) {
		return outcome{err: ErrHeld}
	}
	if got.instanceID, got.err = c.number(); got.err != nil {
		return got
	}
	if c.ctx.Err() != nil { // the candidacy has ended and wants no lease
		return outcome{err: ErrHeld}
	}
	ctx, cancel := context.WithTimeout(c.releaseCtx, 2*c.r.set.callTimeout())
	defer cancel()
	begin()
	got.sent = c.r.e.cfg.Now()
	got.lease, got.err = c.r.provider.Acquire(ctx, c.acquireRequest())
	if got.err == nil {
		c.r.setHolder(c)
		c.r.awarded(got.lease.InstanceID)
	}
	return got
}

// number makes sure that the lease service instance has a number.
func (c *Candidacy) number() (instanceID string, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, 2*c.r.set.callTimeout())
	defer cancel()
	if instanceID, err = c.r.numbered(ctx, c.fence); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return instanceID, nil
}

func (c *Candidacy) acquired(got outcome, v view) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	s.acquiring = false
	err := got.err
	switch {
	case err == nil:
		s.unresponsive = nil
		s.held = newHolding(got.lease, c.r.set, got.sent, v.freeSince, c.r.set.renewalDelay())
		if got.lease.InstanceID != got.instanceID {
			c.askAgainLocked(errOtherInstance)
		}
	case errors.Is(err, ErrHeld):
		c.retryLocked()
	default:
		s.uncertain = s.uncertain || !errors.Is(err, ErrNotSent)
		c.failedLocked("acquire the lease", err)
		c.retryLocked()
	}
}

// retryLocked ends an unsuccessful attempt and schedules the next one.
func (c *Candidacy) retryLocked() {
	s := &c.mu.state
	s.backoff = min(max(2*s.backoff, minBackoff), maxBackoff)
	s.tryAt = c.r.e.cfg.Now() + s.backoff/2 + jitter(s.backoff/2)
	c.answerLocked()
}

// renewLocked starts to confirm the lease.
func (c *Candidacy) renewLocked() {
	s := &c.mu.state
	s.renewing = true
	lease, sent := s.held.lease, c.r.e.cfg.Now()
	ctx, cancel := context.WithTimeout(c.ctx, c.r.set.callTimeout())
	s.stopRenew = cancel
	c.ask(func() func() {
		defer cancel()
		err := c.r.provider.Renew(ctx, lease)
		return func() { c.renewed(lease, sent, err) }
	})
}

func (c *Candidacy) renewed(lease *Lease, sent time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	s.renewing, s.stopRenew = false, nil
	if s.held.lease != lease || s.releasing {
		return
	}
	now := c.r.e.cfg.Now()
	switch {
	case err == nil:
		lapsed := s.held.granted && now >= s.held.trusted
		c.event(Event{Kind: EventRenewed, Margin: s.held.trusted - now})
		s.held = s.held.confirmed(c.r.set, sent, c.r.set.renewalDelay())
		if lapsed && now < s.held.trusted {
			c.log.Info("confirmed: the lease was held throughout", zap.Int64("epoch", int64(s.epoch)))
			c.event(Event{Kind: EventConfirmed})
		}
	case errors.Is(err, ErrLost):
		c.lostLocked(err)
	default:
		s.held.renewAt = now + c.r.set.TTL/10 + jitter(c.r.set.TTL/20)
		c.failedLocked("renew the lease", err)
	}
}

// lostLocked handles a definitive loss: the term is over at once.
func (c *Candidacy) lostLocked(err error) {
	s := &c.mu.state
	c.log.Warn("lease lost", zap.Int64("epoch", int64(s.epoch)), zap.Error(err))
	if s.stopGrant != nil {
		s.stopGrant()
	}
	s.held = holding{}
	s.tryAt, s.backoff = 0, 0
	c.event(Event{Kind: EventLost, Err: err})
	c.refreshLocked()
	s.vacated = true
}

// cameBackLocked records that a worker that was released as unresponsive is active
// again.
func (c *Candidacy) cameBackLocked() {
	s := &c.mu.state
	if !s.wasUnresponsive {
		return
	}
	s.wasUnresponsive = false
	l := c.falseAlarmLocked()
	c.log.Warn("false alarm: a worker whose lease was released for silence is active again; its timeout is extended",
		zap.Int64("epoch", int64(s.epoch)), zap.Bool("superseded", s.superseded),
		zap.Int("false_alarms", l.alarms), zap.Duration("waited", s.liveness.expired))
	c.event(Event{Kind: EventFalseAlarm})
}

// refreshLocked makes the watch read the record.
func (c *Candidacy) refreshLocked() { poke(c.r.wake) }

func (c *Candidacy) failed(what string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failedLocked(what, err)
}

func (c *Candidacy) failedLocked(what string, err error) {
	if c.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return // cancelled by this candidacy
	}
	err = fmt.Errorf("%s: %w", what, err)
	c.log.Warn("request failed", zap.Error(err))
	c.event(Event{Kind: EventFailed, Err: err})
}
