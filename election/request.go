package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

const (
	// examineTimeout is how long a grant waits to learn whether its worker was superseded before. After that, the
	// worker counts as one that was.
	examineTimeout = 3 * time.Second
	// A failed release is retried with pauses between these two, so that the lease is
	// free soon after the lease service becomes reachable again.
	minReleasePause = 20 * time.Millisecond
	maxReleasePause = 250 * time.Millisecond
	// leastReleaseTime is the least time for which a release is retried.
	leastReleaseTime = time.Minute
)

// doLocked does what was decided.
func (c *Candidacy) doLocked(a action, now time.Duration) {
	switch a {
	case answer:
		c.answerLocked()
	case acquire:
		c.acquireLocked()
	case grant:
		c.grantLocked()
	case renew:
		c.renewLocked(now)
	case releaseUnneeded:
		c.releaseLocked(c.held.lease, elector.ReasonLeft)
	case releaseDisputed:
		c.tryAt = now + faultBackoff
		c.releaseLocked(c.held.lease, elector.ReasonLeft)
	case releaseUnreached: // a worker at another proxy may be able to use the lease
		c.retryLocked()
		c.releaseLocked(c.held.lease, elector.ReasonLeft)
	case releaseSilent:
		c.releaseLocked(c.held.lease, elector.ReasonUnresponsive)
	case releaseOffered:
		c.handOverLocked()
	case releaseUncertain:
		c.releaseLocked(&elector.Lease{AcquireRequest: c.acquireRequest()}, elector.ReasonLeft)
	case releaseStray:
		c.leftovers.stray = c.seen.observation.Index
		c.releaseLocked(&elector.Lease{AcquireRequest: c.acquireRequest(), Index: c.leftovers.stray}, elector.ReasonLeft)
	case releaseVacant:
		c.releaseLocked(c.leftovers.unresponsive, elector.ReasonLeft)
	}
}

// ask sends one request outside the lock. The function that it returns is called with the lock held, and applies the
// result, which is an event for the loop. The loop does not end before that.
func (c *Candidacy) ask(request func() (apply func())) {
	c.r.e.wg.Go(func() {
		apply := request()
		c.r.mu.Lock()
		defer c.r.mu.Unlock()
		apply()
		poke(c.poke)
	})
}

// answerLocked ends the wait of those who asked for an attempt. They find its result in
// the status.
func (c *Candidacy) answerLocked() {
	c.publishLocked(c.r.e.cfg.Now())
	c.demand.answer()
}

func (c *Candidacy) acquireRequest() elector.AcquireRequest {
	return elector.AcquireRequest{Resource: c.r.key.name, Worker: c.worker, Incarnation: c.incarnation, TTL: c.set.TTL, Token: c.token}
}

// acquireLocked starts an attempt to acquire the lease.
func (c *Candidacy) acquireLocked() {
	c.requests.begin(requestAcquire, nil)
	asked, again, seen := c.asked() || c.reclaim.Pending(), c.backoff > 0 || c.reclaim.Looked(), c.seen
	c.event(Event{Kind: EventCampaign})
	c.ask(func() func() {
		select {
		case c.r.turn <- struct{}{}:
		case <-c.ctx.Done():
			return func() { c.acquiredLocked(acquired{err: elector.ErrHeld}, seen) } // no request was sent
		}
		got := c.acquire(asked, func() {
			if !again {
				c.log.Info("campaign", zap.Stringer("lease", seen.observation.State))
			}
		})
		return func() {
			c.acquiredLocked(got, seen)
			<-c.r.turn // the next one knows the result
		}
	})
}

// acquired is the result of an attempt to acquire the lease.
type acquired struct {
	lease      *elector.Lease
	sent       time.Duration // the time just before the request
	instanceID string        // the instance that was numbered before the request
	former     string        // the incarnation of the same worker that has the lease at a proxy that may be alive; "" if none does
	err        error
}

// acquire asks for the lease while it is the candidacy's turn among those of this proxy, so that they do not
// all ask for a free lease at once. It calls begin before it sends the request. The end
// of the candidacy does not cancel a request that was sent: the lease service may award
// the lease anyway, and only the response says what to release.
func (c *Candidacy) acquire(asked bool, begin func()) (got acquired) {
	if c.token == 0 && c.r.isTaken(c, asked) {
		return acquired{err: elector.ErrHeld}
	}
	got.sent = c.r.e.cfg.Now()
	if got.instanceID, got.err = c.number(); got.err != nil {
		return got
	}
	if c.ctx.Err() != nil { // the candidacy has ended and wants no lease
		return acquired{err: elector.ErrHeld}
	}
	ctx, cancel := context.WithTimeout(c.releaseCtx, 2*c.set.callTimeout())
	defer cancel()
	begin()
	got.sent = c.r.e.cfg.Now()
	got.lease, got.err = c.r.provider.Acquire(ctx, c.acquireRequest())
	if errors.Is(got.err, elector.ErrHeld) {
		c.reclaimFor(ctx, &got)
	}
	return got
}

// number makes sure that the lease service instance has a number.
func (c *Candidacy) number() (instanceID string, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, 2*c.set.callTimeout())
	defer cancel()
	if instanceID, err = c.r.numbered(ctx, c.fence); err != nil {
		return "", fmt.Errorf("%w: %w", elector.ErrNotSent, err)
	}
	return instanceID, nil
}

// The index of an award counts within one instance of the lease service. The instance
// id identifies the instance, and the fence numbers the instances. If an instance got
// its number at its first grant, a late award of an older instance could get a higher
// number than its successor. So a candidacy asks for a lease only after the current
// instance has been numbered, and releases an award of any other instance. Each award
// that is granted was therefore requested, and made, after its instance was numbered
// and before a later instance began.

// numbered makes sure that the current instance of the lease service, as far as known,
// has a number, and returns the instance's id. It waits for the first observation. The
// candidacy that holds the resource's turn calls it.
func (r *resource) numbered(ctx context.Context, fence Fence) (instanceID string, err error) {
	instanceID, known, err := r.currentInstance(ctx)
	if err != nil || known {
		return instanceID, err
	}
	if err := fence.Number(ctx, r.provider.Source(), instanceID); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.numbered = instanceID
	return instanceID, nil
}

// currentInstance returns the instance id that was last observed, and whether it has a
// number.
func (r *resource) currentInstance(ctx context.Context) (instanceID string, numbered bool, err error) {
	for {
		r.mu.Lock()
		current, known, blind, news := r.mu.instanceID, r.mu.numbered, r.mu.watchErr, r.mu.updated
		r.mu.Unlock()
		switch {
		case current != "":
			return current, current == known, nil
		case blind != nil && known != "": // the award will show whether it is still current
			return known, true, nil
		case blind != nil:
			return "", false, fmt.Errorf("observe the lease: %w", blind)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return "", false, fmt.Errorf("wait for a first observation of the lease: %w", ctx.Err())
		}
	}
}

// renewLocked starts to confirm the lease, no sooner than sent.
func (c *Candidacy) renewLocked(sent time.Duration) {
	lease := c.held.lease
	ctx, cancel := context.WithTimeout(c.ctx, c.set.forLease(lease).callTimeout())
	c.requests.begin(requestRenew, cancel)
	c.ask(func() func() {
		defer cancel()
		err := c.r.provider.Renew(ctx, lease)
		return func() { c.renewedLocked(lease, sent, err) }
	})
}

// granting is a grant that was asked for, with its result.
type granting struct {
	held     holding // as it was then
	award    fencing.Award
	before   fencing.Record // the highest known grant when it was asked for
	unbarred int            // as of bar then
	epoch    fencing.Epoch
	err      error
}

// grantLocked starts turning the award into the epoch.
func (c *Candidacy) grantLocked() {
	ctx, cancel := context.WithCancel(c.ctx)
	c.requests.begin(requestGrant, cancel)
	c.requests.cancel(requestUnblock)
	g := granting{held: c.held, award: c.award(c.held.lease, c.epoch, c.r.mu.highestObserved), before: c.r.mu.record, unbarred: c.unbarred}
	c.ask(func() func() {
		defer cancel()
		c.askGrant(ctx, &g)
		return func() { c.grantEndedLocked(g) }
	})
}

// askGrant asks the fence for an epoch, and for what must be known before the result is applied.
func (c *Candidacy) askGrant(ctx context.Context, g *granting) {
	g.epoch, g.err = c.fence.Grant(ctx, g.award)
	switch {
	case g.err == nil:
		c.examineAgain(ctx, g.epoch)
	case c.isOutranked(g.err):
		_, _ = c.r.refresh(ctx) // so that the members learn by whom, if the record can be read
	case errors.Is(g.err, fencing.ErrRemoved):
		c.r.removed(c.fence)
	case asBarred(g.err) != nil && c.r.isOfferedToOther(ctx, c):
		g.err = errOffered
	}
}

// isOutranked reports whether a grant failed because another candidacy was granted a higher epoch.
func (c *Candidacy) isOutranked(err error) bool {
	return isState(err, fencing.StateSuperseded) || c.token > 0 && isState(err, fencing.StateAwardNotNewer)
}

// examineAgain follows the grant of an epoch. If others were granted epochs after the
// candidacy began, one of them may have superseded another candidacy of the same worker, at
// another proxy. An earlier grant of this one, whose response was lost, does not matter: it has
// never led under that. With a token it does: all candidacies that bring it share an incarnation,
// and an epoch that was granted before.
func (c *Candidacy) examineAgain(ctx context.Context, epoch fencing.Epoch) {
	except := c.incarnation
	switch {
	case c.before.Load():
		return
	case c.token > 0:
		except = ""
	case epoch <= c.examined+1:
		return
	}
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	before, err := c.fence.SupersededBefore(ctx, c.worker, except)
	if err != nil && c.ctx.Err() == nil {
		c.log.Warn("cannot find out whether the worker was superseded before, so it counts as such", zap.Error(err))
	}
	if before || err != nil {
		c.before.Store(true) // a connection that has joined meanwhile may have stored the same: a false is never stored
	}
}

// examineShared precedes another connection of a candidacy that brings a token. Since the grant, another worker may
// have led by the same token, and connections of this one may have been superseded before that.
func (c *Candidacy) examineShared(ctx context.Context) error {
	if c.token == 0 || c.before.Load() {
		return nil
	}
	before, err := c.fence.SupersededBefore(ctx, c.worker, "")
	if before {
		c.before.Store(true)
	}
	return err
}

// awaitUnblockedLocked makes the next attempt soon after what blocked the grant has ended, if that is before
// the pause after a grant that failed. It looks at the fence only, so that a candidacy which is blocked does
// not keep the lease from others, and asks for it once when it can be granted an epoch. It looks until then, however
// long others have the lease, because what it finds is shown.
func (c *Candidacy) awaitUnblockedLocked() {
	ctx, cancel := context.WithCancel(c.ctx)
	c.requests.begin(requestUnblock, cancel)
	c.ask(func() func() {
		defer cancel()
		err := c.fence.AwaitUnblocked(ctx)
		return func() { c.unblockedLocked(err) }
	})
}

// releaseLocked releases a lease. The status changes before the request is sent. A
// lease that cannot be released expires with its TTL.
func (c *Candidacy) releaseLocked(lease *elector.Lease, why elector.Reason) {
	c.requests.begin(requestRelease, nil)
	ended, silent := fencing.EndingLeft, time.Duration(0)
	if why == elector.ReasonUnresponsive {
		ended, silent = fencing.EndingSilence, c.liveness.quiet
		c.liveness.released = true
	}
	c.noteLeadEnd(c.r.e.cfg.Now(), ended)
	c.stopLeading()
	c.disagrees = false
	c.requests.cancel(requestGrant)
	c.requests.cancel(requestRenew)
	c.ask(func() func() {
		err := c.release(lease, why, silent)
		return func() { c.releasedLocked(lease, why, silent, err) }
	})
}

// release retries until it succeeds, because an unreleased lease leaves the resource
// without a leader for a TTL. It gives up when the lease must have expired, or when the
// candidacy is abandoned.
func (c *Candidacy) release(lease *elector.Lease, why elector.Reason, silent time.Duration) error {
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
