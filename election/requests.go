package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

const (
	// faultBackoff is about how long a candidacy waits after the fence, or the
	// order of awards, turned out to be unusable.
	faultBackoff = 3 * time.Second
	// grantPatience is how long beyond a TTL a lease is kept that cannot be
	// turned into an epoch.
	grantPatience = 5 * time.Second
	// A release is tried again with pauses between these two, so that a lease is
	// free soon after the lease service can be reached again.
	minReleasePause = 20 * time.Millisecond
	maxReleasePause = 250 * time.Millisecond
	// leastReleaseTime is for how long at least a release is tried.
	leastReleaseTime = time.Minute
)

// ask runs one request beside the loop. The loop runs what it returns, and does
// not end before that.
func (c *Candidacy) ask(request func() (apply func())) {
	go func() { c.results <- request() }()
}

func (c *Candidacy) bid() Bid {
	return Bid{Resource: c.r.key.name, Worker: c.worker, Incarnation: c.incarnation, TTL: c.r.set.TTL}
}

// acquireLocked tries for the lease. asked says that somebody waits for the
// attempt's outcome.
func (c *Candidacy) acquireLocked(v view) {
	s := &c.mu.state
	s.acquiring = true
	asked, again, sight := c.askedLocked(), s.backoff > 0, s.sight
	c.event(Event{Kind: EventCampaign})
	c.ask(func() func() {
		lease, sent, err := c.acquire(asked, func() {
			if !again {
				c.log.Info("campaign", zap.Stringer("lease", sight.Vacancy))
			}
		})
		return func() { c.acquired(lease, sent, v, err) }
	})
}

// acquire waits for its turn among the candidacies of this proxy, so that a
// free lease is not asked for by all of them at once. It calls begin if it makes
// the request; sent is the time just before that. The end of the candidacy does
// not cancel a request that was sent: the lease service may award the lease all
// the same, and only the answer says what to release.
func (c *Candidacy) acquire(asked bool, begin func()) (lease *Lease, sent time.Duration, err error) {
	select {
	case c.r.turn <- struct{}{}:
		defer func() { <-c.r.turn }()
	case <-c.ctx.Done():
		return nil, 0, ErrHeld // nothing was asked
	}
	if c.r.taken(c, asked) {
		return nil, 0, ErrHeld
	}
	ctx, cancel := context.WithTimeout(c.releaseCtx, 2*c.r.set.callTimeout())
	defer cancel()
	begin()
	sent = c.r.e.cfg.Now()
	lease, err = c.r.provider.Acquire(ctx, c.bid())
	if err == nil {
		c.r.setHolder(c)
	}
	return lease, sent, err
}

func (c *Candidacy) acquired(lease *Lease, sent time.Duration, v view, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	s.acquiring = false
	switch {
	case err == nil:
		s.silenced = nil
		s.lease, s.granted = lease, false
		s.trusted = sent + c.r.set.trust()
		s.renewAt = c.renewalAfter(sent)
		s.grantAt, s.heldSince, s.freeSince = 0, sent, sent
		if v.freeSince != 0 {
			s.freeSince = min(sent, v.freeSince)
		}
	case errors.Is(err, ErrHeld):
		c.retryLocked()
	default:
		s.uncertain = s.uncertain || !errors.Is(err, ErrNotSent)
		c.failedLocked("acquire the lease", err)
		c.retryLocked()
	}
}

// retryLocked ends an attempt without success.
func (c *Candidacy) retryLocked() {
	s := &c.mu.state
	s.backoff = min(max(2*s.backoff, minBackoff), maxBackoff)
	s.tryAt = c.r.e.cfg.Now() + s.backoff/2 + jitter(s.backoff/2)
	c.answerLocked()
}

// renewalAfter is when a lease that was confirmed by a request sent at this
// time is to be renewed: after a third of its TTL, and not in step with others.
func (c *Candidacy) renewalAfter(sent time.Duration) time.Duration {
	third := c.r.set.TTL / 3
	return sent + third - jitter(third/5)
}

// renewLocked confirms the lease.
func (c *Candidacy) renewLocked() {
	s := &c.mu.state
	s.renewing = true
	lease, sent := s.lease, c.r.e.cfg.Now()
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
	if s.lease != lease || s.releasing {
		return
	}
	now := c.r.e.cfg.Now()
	switch {
	case err == nil:
		lapsed := s.granted && now >= s.trusted
		c.event(Event{Kind: EventRenewed, Margin: s.trusted - now})
		s.trusted = max(s.trusted, sent+c.r.set.trust())
		s.renewAt = c.renewalAfter(sent)
		if lapsed && now < s.trusted {
			c.log.Info("confirmed: the lease was held all the time", zap.Int64("epoch", int64(s.epoch)))
			c.event(Event{Kind: EventConfirmed})
		}
	case errors.Is(err, ErrLost):
		c.lostLocked(err)
	default:
		s.renewAt = now + c.r.set.TTL/10 + jitter(c.r.set.TTL/20)
		c.failedLocked("renew the lease", err)
	}
}

// lostLocked is a definitive loss: the term is over at once.
func (c *Candidacy) lostLocked(err error) {
	s := &c.mu.state
	c.log.Warn("lease lost", zap.Int64("epoch", int64(s.epoch)), zap.Error(err))
	if s.stopGrant != nil {
		s.stopGrant()
	}
	s.lease, s.granted = nil, false
	s.tryAt, s.backoff = 0, 0
	c.event(Event{Kind: EventLost, Err: err})
	c.refreshLocked()
	s.vacated = true
}

// releaseLocked gives a lease back. The standing changes before the request is
// sent. What could not be released ends with its TTL.
func (c *Candidacy) releaseLocked(lease *Lease, why Reason) {
	s := &c.mu.state
	s.releasing = true
	s.wasSilenced = s.wasSilenced || why == ReasonSilence
	if s.stopGrant != nil {
		s.stopGrant()
	}
	if s.stopRenew != nil {
		s.stopRenew()
	}
	c.ask(func() func() {
		err := c.release(lease, why)
		return func() { c.released(lease, why, err) }
	})
}

// release tries until it succeeds: a lease that is not given back keeps the
// resource without a leader for a TTL. It gives up when the lease must have ended
// by itself, or when the candidacy is abandoned.
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
			c.log.Warn("cannot release the lease now: trying on", zap.Error(err))
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
	s.releasing = false
	again := lease == s.silenced
	s.silenced = nil
	if lease.Index == 0 {
		s.uncertain = false
	}
	if s.lease == lease {
		s.lease, s.granted = nil, false
	}
	if err != nil {
		c.failedLocked("release the lease", err)
	}
	if why == ReasonSilence {
		s.silenced = lease
	}
	if !again && lease.Index != 0 {
		c.log.Info("released", zap.Int64("epoch", int64(s.epoch)), zap.Stringer("reason", why))
		c.event(Event{Kind: EventReleased, Reason: why})
	}
	s.vacated = true
}

// cameBackLocked notes that a worker taken for dead was not.
func (c *Candidacy) cameBackLocked() {
	s := &c.mu.state
	if !s.wasSilenced {
		return
	}
	s.wasSilenced = false
	l := c.falseAlarmLocked()
	c.log.Warn("false alarm: a worker whose lease was released for silence came back; it may be silent for longer from now on",
		zap.Int64("epoch", int64(s.epoch)), zap.Bool("superseded", s.superseded),
		zap.Int("false_alarms", l.alarms), zap.Duration("waited", s.life.struck))
	c.event(Event{Kind: EventFalseAlarm})
}

// refreshLocked has the record read beside the loop.
func (c *Candidacy) refreshLocked() { poke(c.r.wake) }

func (c *Candidacy) failed(what string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failedLocked(what, err)
}

func (c *Candidacy) failedLocked(what string, err error) {
	if c.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return // ended by ourselves
	}
	err = fmt.Errorf("%s: %w", what, err)
	c.log.Warn("request failed", zap.Error(err))
	c.event(Event{Kind: EventFailed, Err: err})
}
