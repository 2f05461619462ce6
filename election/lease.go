package election

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

// holding is the lease that a candidacy holds, as far as the candidacy knows, with the
// times at which something is due for it. The zero value means that it holds none.
type holding struct {
	lease *Lease
	// granted means that the fence has turned the lease into the epoch.
	granted bool
	// trusted is the time until which the lease is trusted; see fencing.Term.TrustedUntil.
	trusted time.Duration
	// renewAt is when to confirm the lease again.
	renewAt time.Duration
	// grantAt is when to ask (again) for the grant. It means nothing after the grant.
	grantAt time.Duration
	// requested is when the request that got the lease was sent.
	requested time.Duration
	// confirmedAt is when the last request that confirmed the lease was sent.
	confirmedAt time.Duration
	// freeSince is since when the resource had no holder before the lease was acquired.
	freeSince time.Duration
	// lastLed is when the leader before was last confirmed; 0 if that is not known.
	lastLed time.Duration
	// lastEnded is how the term of that leader ended.
	lastEnded fencing.Ending
}

// newHolding returns the holding of a lease that a request sent at this time got. The
// resource had no holder since freeSince, 0 if that is unknown. delay is added to the
// time of the renewal.
func newHolding(lease *Lease, set Settings, sent, freeSince, delay time.Duration) holding {
	h := holding{lease: lease, requested: sent, freeSince: sent}
	if freeSince != 0 {
		h.freeSince = min(sent, freeSince)
	}
	return h.confirmed(set, sent, delay)
}

// confirmed returns the holding after a request that was sent at this time has
// confirmed the lease. A response never shortens the trust.
func (h holding) confirmed(set Settings, sent, delay time.Duration) holding {
	set = set.forLease(h.lease)
	h.trusted = max(h.trusted, sent+set.trust())
	h.confirmedAt = max(h.confirmedAt, sent)
	h.renewAt = set.renewalAfter(sent) + delay
	return h
}

// dueNow returns the holding with everything due now that would be due later.
func (h holding) dueNow(now time.Duration) holding {
	h.grantAt, h.renewAt = min(h.grantAt, now), min(h.renewAt, now)
	return h
}

// leads reports whether the lease entitles its holder to lead.
func (h holding) leads(now time.Duration) bool {
	return h.lease != nil && h.granted && now < h.trusted
}

// forLease returns the settings while a lease lasts: with the TTL that the lease service has
// granted, if that is shorter than what was asked for, and the same share of it as the margin.
func (s Settings) forLease(l *Lease) Settings {
	if l.Granted == 0 || l.Granted >= s.TTL {
		return s
	}
	s.Margin = time.Duration(float64(s.Margin) * (float64(l.Granted) / float64(s.TTL)))
	s.TTL = l.Granted
	return s
}

// renewalAfter returns when to renew a lease that was confirmed by a request sent at
// this time: at the next multiple of a third of its TTL. The leases of a proxy are thus
// renewed at about the same time, and expire at about the same time if the proxy dies.
// Their takeovers then do not wait for each other's workers.
func (s Settings) renewalAfter(sent time.Duration) time.Duration {
	third := s.TTL / 3
	return (sent/third + 1) * third
}

// renewalSpread is the longest delay of a renewal, so that the leases of a proxy are not renewed at the same
// instant. A lease service that renews them together needs none.
func (s Settings) renewalSpread() time.Duration { return s.TTL / 3 / 5 }

// delay returns a random time below spread; 0 if the lease service renews leases together.
func (r *resource) delay(spread time.Duration) time.Duration {
	if r.together {
		return 0
	}
	return jitter(spread)
}

// renewLocked starts to confirm the lease, no sooner than sent.
func (c *Candidacy) renewLocked(sent time.Duration) {
	s := &c.mu.state
	lease := s.held.lease
	ctx, cancel := context.WithTimeout(c.ctx, c.set.forLease(lease).callTimeout())
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
	now, set := c.r.e.cfg.Now(), c.set.forLease(lease)
	if err == nil || errors.Is(err, ErrLost) {
		c.passedLocked("renew the lease")
		s.leaseAnswered(nil, sent)
	} else {
		s.leaseAnswered(err, sent)
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
	c.noteLeadEndLocked(c.r.e.cfg.Now(), fencing.EndingExpired)
	s.held = holding{}
	c.stopLeadingLocked()
	s.pace = pace{}
	c.event(Event{Kind: EventLost, Err: err})
	c.refreshLocked()
	s.outbox.put(noticeVacated)
}
