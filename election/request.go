package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"go.uber.org/zap"
)

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

// grantLocked starts turning the award into the epoch.
func (c *Candidacy) grantLocked() {
	s := &c.mu.state
	ctx, cancel := context.WithCancel(c.ctx)
	s.requests.begin(requestGrant, cancel)
	s.requests.cancel(requestUnblock)
	unbarred := s.unbarred
	held, lease, award, before := s.held, s.held.lease, c.award(s.held.lease, s.epoch, s.seen.highestObserved), s.record
	c.ask(func() func() {
		defer cancel()
		known := c.r.known()
		epoch, err := c.fence.Grant(ctx, award)
		record := fencing.Record{
			Epoch: epoch, Worker: c.worker, Incarnation: c.incarnation,
			Source: award.Source, Index: award.Index, GrantedAt: time.Now(), Guards: before.Guards,
		}
		if err == nil {
			if c.shares(before, epoch) {
				record.Worker, record.GrantedAt = before.Worker, before.GrantedAt
			}
			if c.token > 0 {
				c.r.setHolder(c)
			}
			c.examineAgain(ctx, epoch)
			c.r.publish(record, known, c) // the others must stop before this one leads
			c.r.offerAnswered(c, before.Epoch, epoch)
			if epoch != before.Epoch {
				c.r.noteGrant(epoch, held)
			}
		} else if isState(err, fencing.StateSuperseded) || c.token > 0 && isState(err, fencing.StateAwardNotNewer) {
			_, _ = c.r.refresh(ctx) // so that the members learn by whom, if the record can be read
		} else if isState(err, fencing.StateUnnumbered) {
			c.r.unnumbered()
		} else if errors.Is(err, fencing.ErrRemoved) {
			c.r.removed(c.fence)
		} else if asBarred(err) != nil && c.r.isOfferedToOther(ctx, c) {
			err = errOffered
		}
		return func() { c.grantEnded(lease, before, record, unbarred, err) }
	})
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

// examineShared precedes another connection of a candidacy that brings a token. Since the grant, another worker may have
// led by the same token, and connections of this one may have been superseded before that.
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
	s := &c.mu.state
	ctx, cancel := context.WithCancel(c.ctx)
	s.requests.begin(requestUnblock, cancel)
	c.ask(func() func() {
		defer cancel()
		err := c.fence.AwaitUnblocked(ctx)
		return func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			s.requests.end(requestUnblock)
			if err == nil && s.held.lease == nil {
				s.ungranted = nil
				s.tryAt = min(s.tryAt, c.r.e.cfg.Now()+jitter(unblockedJitter))
			}
		}
	})
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

// answerLocked ends the wait of those who asked for an attempt. They find its result in
// the status.
func (c *Candidacy) answerLocked() {
	c.publishLocked(c.r.e.cfg.Now())
	c.mu.answer()
}

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

// ask runs one request outside the loop. The loop runs the function that it returns,
// and does not end before that.
func (c *Candidacy) ask(request func() (apply func())) {
	go func() { c.results <- request() }()
}
