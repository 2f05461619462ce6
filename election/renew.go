package election

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

// renewLocked starts to confirm the lease, no sooner than sent.
func (c *Candidacy) renewLocked(sent time.Duration) {
	s := &c.mu.state
	lease := s.held.lease
	ctx, cancel := context.WithTimeout(c.ctx, c.set.during(lease).callTimeout())
	s.requests.begin(requestRenew, cancel)
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
	s.requests.end(requestRenew)
	if s.held.lease != lease || s.requests.has(requestRelease) {
		return
	}
	now, set := c.r.e.cfg.Now(), c.set.during(lease)
	if err == nil || errors.Is(err, ErrLost) {
		c.passedLocked("renew the lease")
		s.heard(nil, sent)
	} else {
		s.heard(err, sent)
	}
	switch {
	case err == nil:
		lapsed := s.held.granted && now >= s.held.trusted
		c.event(Event{Kind: EventRenewed})
		s.held = s.held.confirmed(c.set, sent, c.r.delay(set.renewalSpread()))
		c.leadLocked(now)
		if lapsed && now < s.held.trusted {
			c.log.Info("confirmed: the lease was held throughout", zap.Int64("epoch", int64(s.epoch)))
			c.event(Event{Kind: EventConfirmed})
		}
	case errors.Is(err, ErrLost):
		c.lostLocked(err)
	default:
		s.held.renewAt = now + set.TTL/10 + c.r.delay(set.TTL/20)
		c.failedLocked("renew the lease", err)
	}
}

// lostLocked handles a definitive loss: the term is over at once.
func (c *Candidacy) lostLocked(err error) {
	s := &c.mu.state
	c.log.Warn("lease lost", zap.Int64("epoch", int64(s.epoch)), zap.Error(err))
	s.requests.cancel(requestGrant)
	c.endsLeadingLocked(c.r.e.cfg.Now())
	s.held = holding{}
	c.stopLeadingLocked()
	s.pace = pace{}
	c.event(Event{Kind: EventLost, Err: err})
	c.refreshLocked()
	s.outbox.put(noticeVacated)
}
