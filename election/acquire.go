package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/offer"
	"github.com/fencepost/fencepost/election/own"
	"github.com/fencepost/fencepost/fencing"
)

// Unsuccessful attempts are followed by pauses between these two.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
)

// pace says when the next attempt to acquire the lease may be made.
type pace struct {
	tryAt   time.Duration // no attempt before this time, unless someone asks for it
	backoff time.Duration // about how long to wait after the last attempt, 0 if it succeeded
}

// slowDown schedules the attempt that follows an unsuccessful one.
func (p *pace) slowDown(now time.Duration) {
	p.backoff = min(max(2*p.backoff, minBackoff), maxBackoff)
	p.tryAt = now + p.backoff/2 + jitter(p.backoff/2)
}

func (c *Candidacy) acquireRequest() AcquireRequest {
	return AcquireRequest{Resource: c.r.key.name, Worker: c.worker, Incarnation: c.incarnation, TTL: c.set.TTL, Token: c.token}
}

// acquireLocked starts an attempt to acquire the lease.
func (c *Candidacy) acquireLocked() {
	s := &c.mu.state
	s.requests.begin(requestAcquire, nil)
	asked, again, seen := s.asked() || s.reclaim.Pending(), s.backoff > 0 || s.reclaim.Looked(), s.seen
	c.event(Event{Kind: EventCampaign})
	c.ask(func() func() {
		got := c.acquire(asked, func() {
			if !again {
				c.log.Info("campaign", zap.Stringer("lease", seen.observation.State))
			}
		})
		return func() { c.acquired(got, seen) }
	})
}

// outcome is the result of an attempt.
type outcome struct {
	lease      *Lease
	sent       time.Duration // the time just before the request
	instanceID string        // the instance that was numbered before the request
	former     string        // the incarnation of the same worker that has the lease at a proxy that may be alive; "" if none does
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
	if c.token == 0 && c.r.isTaken(c, asked) {
		return outcome{err: ErrHeld}
	}
	got.sent = c.r.e.cfg.Now()
	if got.instanceID, got.err = c.number(); got.err != nil {
		return got
	}
	if c.ctx.Err() != nil { // the candidacy has ended and wants no lease
		return outcome{err: ErrHeld}
	}
	ctx, cancel := context.WithTimeout(c.releaseCtx, 2*c.set.callTimeout())
	defer cancel()
	begin()
	got.sent = c.r.e.cfg.Now()
	got.lease, got.err = c.r.provider.Acquire(ctx, c.acquireRequest())
	if errors.Is(got.err, ErrHeld) {
		c.reclaim(ctx, &got)
	}
	if got.err == nil {
		if c.token == 0 { // otherwise the grant shows it
			c.r.setHolder(c)
		}
		c.r.awarded(got.lease.InstanceID)
	}
	return got
}

// number makes sure that the lease service instance has a number.
func (c *Candidacy) number() (instanceID string, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, 2*c.set.callTimeout())
	defer cancel()
	if instanceID, err = c.r.numbered(ctx, c.fence); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return instanceID, nil
}

// acquired processes the result of an attempt that was made when the resource looked like
// this.
func (c *Candidacy) acquired(got outcome, seen snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	s.requests.end(requestAcquire)
	err := got.err
	over := c.token > 0 && errors.Is(err, ErrLost) // the generation of its token is
	if err == nil || errors.Is(err, ErrHeld) || over {
		c.passedLocked("acquire the lease")
		s.leaseAnswered(nil, got.sent)
	} else {
		s.leaseAnswered(err, got.sent)
	}
	switch {
	case err == nil:
		s.reclaim = own.Reclaim{}
		s.leftovers.unresponsive = nil
		s.held = newHolding(got.lease, c.set, got.sent, seen.freeSince, c.r.delay(c.set.forLease(got.lease).renewalSpread()))
		s.held.lastLed, s.held.lastEnded = seen.lastLed, seen.lastEnded
		if got.lease.From != "" {
			s.held.lastEnded = fencing.EndingGone
		}
		if got.lease.InstanceID != got.instanceID {
			c.askAgainLocked(errOtherInstance)
		}
	case errors.Is(err, ErrHeld) && got.former != "":
		c.reclaimLaterLocked(got.former)
	case errors.Is(err, ErrHeld):
		s.reclaim = own.Reclaim{}
		c.retryLocked()
	case over:
		c.supersedeLocked(s.record)
		c.answerLocked()
	default:
		s.leftovers.uncertain = s.leftovers.uncertain || !errors.Is(err, ErrNotSent)
		c.failedLocked("acquire the lease", err)
		c.retryLocked()
		s.reclaim.At = s.tryAt
	}
}

// retryLocked ends an unsuccessful attempt and schedules the next one.
func (c *Candidacy) retryLocked() {
	c.mu.slowDown(c.r.e.cfg.Now())
	c.answerLocked()
}

// lookForProxy is what fails if a database does not say whether a proxy is alive.
const lookForProxy = "look for the proxy that holds the lease for the same worker"

// ownHolderElsewhere returns the incarnation that an observation shows as the holder if it is one of the
// same worker and role at another proxy, with the presence id of that proxy; otherwise "".
func (c *Candidacy) ownHolderElsewhere(o LeaseObservation) (incarnation, presenceID string) {
	if c.r.presence == nil || c.nameless || o.State != Held || o.Incarnation == c.incarnation {
		return "", ""
	}
	presenceID, mine := own.PresenceID(o.Incarnation, c.user, c.worker)
	if !mine || presenceID == c.r.presence.PresenceID() {
		return "", ""
	}
	return o.Incarnation, presenceID
}

// offeringHolder returns the incarnation that an observation shows as the holder, with the presence id of its
// proxy, if that is another one and an offer to this candidacy's worker lets it take the lease away once that
// proxy is gone; otherwise "". The leader was to stop, so it loses nothing that it was to keep.
func (c *Candidacy) offeringHolder(o LeaseObservation, of offer.Offer, now time.Duration) (incarnation, presenceID string) {
	if c.r.presence == nil || o.State != Held || o.Incarnation == c.incarnation || !of.Takes(c.worker, now) {
		return "", ""
	}
	presenceID = own.Proxy(o.Incarnation)
	if presenceID == "" || presenceID == c.r.presence.PresenceID() {
		return "", ""
	}
	return o.Incarnation, presenceID
}

// takeableHolder returns the incarnation that an observation shows as the holder, with the presence id of its proxy, if
// the candidacy may take the lease away once that proxy is gone; otherwise "".
func (c *Candidacy) takeableHolder(o LeaseObservation, of offer.Offer, now time.Duration) (incarnation, presenceID string) {
	if incarnation, presenceID = c.ownHolderElsewhere(o); incarnation == "" {
		return c.offeringHolder(o, of, now)
	}
	return incarnation, presenceID
}

// currentOffer returns the offer of the resource.
func (r *resource) currentOffer() offer.Offer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.offerLocked()
}

// reclaim follows an attempt that found the lease held. If another proxy holds it, for the same worker or for
// one whose lead is offered to this worker, and is gone, it takes the lease away; if that proxy may be alive,
// got.former says which incarnation has the lease.
func (c *Candidacy) reclaim(ctx context.Context, got *outcome) {
	if c.r.presence == nil {
		return
	}
	seen, err := c.r.observeNow(ctx)
	if err != nil {
		return // the watch reports it
	}
	from, presenceID := c.takeableHolder(seen, c.r.currentOffer(), c.r.e.cfg.Now())
	if from == "" {
		return
	}
	gone, err := c.r.presence.Gone(ctx, presenceID)
	if err != nil {
		c.failed(lookForProxy, err)
	} else {
		c.passed(lookForProxy)
	}
	if !gone {
		got.former = from
		return
	}
	if c.ctx.Err() != nil { // the candidacy has ended meanwhile, and wants no lease
		return
	}
	request := c.acquireRequest()
	request.From = from
	got.sent = c.r.e.cfg.Now()
	got.lease, got.err = c.r.provider.Acquire(ctx, request)
	switch {
	case got.err == nil:
		c.log.Info("took over the lease of a proxy that is gone",
			zap.String("from_incarnation", from), zap.Int64("index", got.lease.Index))
	case errors.Is(got.err, ErrHeld): // someone was faster, or the observation is old
		got.former = from
	}
}

// reclaimLaterLocked ends an attempt that found the lease held for the same worker by a proxy that may
// be alive.
func (c *Candidacy) reclaimLaterLocked(former string) {
	s, now := &c.mu.state, c.r.e.cfg.Now()
	s.reclaim.Follow(former, now)
	s.reclaim.Postpone(now)
	if s.reclaim.Waits(now) {
		return
	}
	if _, mine := own.PresenceID(former, c.user, c.worker); mine && !s.reclaim.Logged {
		s.reclaim.Logged = true
		c.log.Warn("another live proxy holds the lease under the same worker id: the worker has just left it, or two processes have one id",
			zap.String("held_by_incarnation", former))
	}
	c.retryLocked()
}
