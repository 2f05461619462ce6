package election

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/offer"
	"github.com/fencepost/fencepost/election/own"
)

// lookForProxy is what fails if a database does not say whether a proxy is alive.
const lookForProxy = "look for the proxy that holds the lease for the same worker"

// ownHolderElsewhere returns the incarnation that an observation shows as the holder if it is one of the
// same worker and role at another proxy, with the presence id of that proxy; otherwise "".
func (c *Candidacy) ownHolderElsewhere(o elector.Observation) (incarnation, presenceID string) {
	if c.r.presence == nil || c.nameless || o.State != elector.Held || o.Incarnation == c.incarnation {
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
func (c *Candidacy) offeringHolder(o elector.Observation, of offer.Offer, now time.Duration) (incarnation, presenceID string) {
	if c.r.presence == nil || o.State != elector.Held || o.Incarnation == c.incarnation || !of.Takes(c.worker, now) {
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
func (c *Candidacy) takeableHolder(o elector.Observation, of offer.Offer, now time.Duration) (incarnation, presenceID string) {
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

// reclaimFor follows an attempt that found the lease held. If another proxy holds it, for the same worker or for
// one whose lead is offered to this worker, and is gone, it takes the lease away; if that proxy may be alive,
// got.former says which incarnation has the lease.
func (c *Candidacy) reclaimFor(ctx context.Context, got *acquired) {
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
	gone, err := c.r.presence.Gone(ctx, presenceID, from)
	c.noted(lookForProxy, err)
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
	case errors.Is(got.err, elector.ErrHeld): // someone was faster, or the observation is old
		got.former = from
	}
}

// reclaimLaterLocked ends an attempt that found the lease held for the same worker by a proxy that may
// be alive.
func (c *Candidacy) reclaimLaterLocked(former string) {
	now := c.r.e.cfg.Now()
	c.reclaim.Follow(former, now)
	c.reclaim.Postpone(now)
	if c.reclaim.Waits(now) {
		return
	}
	if _, mine := own.PresenceID(former, c.user, c.worker); mine && !c.reclaim.Logged {
		c.reclaim.Logged = true
		c.log.Warn("another live proxy holds the lease under the same worker id: the worker has just left it, or two processes have one id",
			zap.String("held_by_incarnation", former))
	}
	c.retryLocked()
}
