package election

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

const (
	// A proxy that holds the lease for the same worker is looked at again with pauses between
	// these two.
	minReclaimPause = 10 * time.Millisecond
	maxReclaimPause = 500 * time.Millisecond
	// reclaimWait is how long a first attempt waits until that proxy is known to be gone. The
	// worker may connect here before the server has noticed that its former proxy was killed.
	reclaimWait = 500 * time.Millisecond
)

// lookForProxy is what fails if a database does not say whether a proxy is there.
const lookForProxy = "look for the proxy that holds the lease for the same worker"

// reclaim is about a lease that another proxy holds for the same worker and role. The zero value
// means that there is none. The candidacy takes the lease away if that proxy is gone.
type reclaim struct {
	from  string        // the incarnation that holds the lease
	since time.Duration // when the candidacy first saw that
	at    time.Duration // when to look at that proxy again
	pause time.Duration // the last one; 0 before the first look
	said  bool          // it is logged that the proxy is there
}

// pending reports whether another proxy holds the lease for the same worker.
func (q *reclaim) pending() bool { return q.from != "" }

// follow notes which incarnation of the same worker holds the lease at another proxy, "" for none.
func (q *reclaim) follow(incarnation string, now time.Duration) {
	if q.from != incarnation {
		*q = reclaim{from: incarnation, since: now, at: now}
	}
}

// postpone schedules the next look at a proxy that is there.
func (q *reclaim) postpone(now time.Duration) {
	q.pause = min(max(2*q.pause, minReclaimPause), maxReclaimPause)
	q.at = now + q.pause
}

// waits reports whether the first attempt still waits for what becomes of that proxy.
func (q *reclaim) waits(now time.Duration) bool { return q.pending() && now < q.since+reclaimWait }

// ownElsewhere returns the incarnation that an observation shows as the holder if it is one of the
// same worker and role at another proxy, with the presence id of that proxy; otherwise "".
func (c *Candidacy) ownElsewhere(o LeaseObservation) (incarnation, presenceID string) {
	if c.r.presence == nil || o.State != Held || o.Incarnation == c.incarnation {
		return "", ""
	}
	presenceID, own := presenceIn(o.Incarnation, c.user, c.worker)
	if !own || presenceID == c.r.presence.PresenceID() {
		return "", ""
	}
	return o.Incarnation, presenceID
}

// reclaim follows an attempt that found the lease held. If another proxy holds it for the same worker
// and is gone, it takes the lease away; if that proxy may be there, got.former says which incarnation
// has the lease.
func (c *Candidacy) reclaim(ctx context.Context, got *outcome) {
	if c.r.presence == nil || c.nameless {
		return
	}
	seen, err := c.r.observeNow(ctx)
	if err != nil {
		return // the watch reports it
	}
	from, presenceID := c.ownElsewhere(seen)
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
		c.log.Info("took the lease over from a proxy that is gone, which held it for the same worker",
			zap.String("from_incarnation", from), zap.Int64("index", got.lease.Index))
	case errors.Is(got.err, ErrHeld): // somebody was faster, or the observation is old
		got.former = from
	}
}

// reclaimLaterLocked ends an attempt that found the lease held for the same worker by a proxy that may
// be there.
func (c *Candidacy) reclaimLaterLocked(former string) {
	s, now := &c.mu.state, c.r.e.cfg.Now()
	s.reclaim.follow(former, now)
	s.reclaim.postpone(now)
	if s.reclaim.waits(now) {
		return
	}
	if !s.reclaim.said {
		s.reclaim.said = true
		c.log.Warn("another proxy, which is there, holds the lease under the same worker id: an id must name one process",
			zap.String("held_by_incarnation", former))
	}
	c.retryLocked()
}
