package election

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

const (
	// faultBackoff is about how long a candidacy waits after the fence, or the order of
	// awards, has turned out to be unusable.
	faultBackoff = 3 * time.Second
	// grantPatience is how much longer than a TTL a lease is kept that cannot be turned
	// into an epoch.
	grantPatience = 5 * time.Second
	// examineTimeout is how long a grant waits to learn whether its worker was superseded before. After that, the
	// worker counts as one that was.
	examineTimeout = 3 * time.Second
	// unblockedJitter spreads the attempts of all proxies whose grants were blocked by the same transaction.
	unblockedJitter = 500 * time.Millisecond
)

// errOvertaken means that a grant succeeded, and that another candidacy was granted an epoch before the response arrived.
var errOvertaken = errors.New("another worker was granted an epoch at once")

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

// shares reports whether the epoch was granted before, to a candidacy that brought the same token.
func (c *Candidacy) shares(before fencing.Record, epoch fencing.Epoch) bool {
	return c.token > 0 && before.Incarnation == c.incarnation && before.Epoch == epoch
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

func (c *Candidacy) grantEnded(lease *Lease, before, record fencing.Record, unbarred int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	s.requests.end(requestGrant)
	over := s.held.lease != lease || s.requests.has(requestRelease)
	if err == nil {
		s.ungranted = nil
		err = c.takeEpochLocked(record, before, over || c.r.e.cfg.Now() >= s.held.trusted)
	}
	if over {
		c.retryLocked()
		return
	}
	switch {
	case err == nil && s.epoch == 0:
		c.retryLocked()
		s.held.grantAt = s.tryAt
	case err == nil:
		c.grantedLocked(before)
	case errors.Is(err, errOffered):
		c.log.Info("leaving the lease to the worker that the resource is offered to")
		c.retryLocked()
		c.releaseLocked(lease, ReasonLeft)
	case errors.Is(err, errOvertaken) && s.phase == superseded:
		c.answerLocked()
	case errors.Is(err, errOvertaken):
		c.giveBackLocked(err, 0)
	case asBarred(err) != nil:
		c.barredLocked(asBarred(err), unbarred)
	case isState(err, fencing.StateSuperseded), c.token > 0 && isState(err, fencing.StateAwardNotNewer):
		c.supersedeLocked(s.record)
		c.refreshLocked()
		c.answerLocked()
	case isState(err, fencing.StateAwardNotNewer):
		c.notNewerLocked(err)
	case isState(err, fencing.StateUnnumbered):
		c.askAgainLocked(err)
	case isState(err, fencing.StateNoFence):
		s.fault = faultOf(err)
		s.outbox.put(noticeFenceFailed)
		c.giveBackLocked(err, faultBackoff)
	default:
		c.grantFailedLocked(err)
	}
}

// takeEpochLocked processes the epoch that the fence has granted. late means that the lease was over, or no longer
// trusted, when the response arrived: a candidacy that has never led asks for the grant again then, and has no epoch
// until it leads under it. It returns errOvertaken if another candidacy was granted an epoch since.
func (c *Candidacy) takeEpochLocked(record, before fencing.Record, late bool) error {
	s := &c.mu.state
	newest := replaces(record, s.record, before)
	if newest {
		s.record = record
	}
	if newest && !late || c.countsLocked() {
		s.hasEpoch(record.Epoch)
	}
	if newest {
		return nil
	}
	if c.countsLocked() {
		c.supersedeLocked(s.record)
	}
	return errOvertaken
}

// giveBackLocked releases a lease that could not be turned into an epoch. It makes no
// new attempt before about pause has passed.
func (c *Candidacy) giveBackLocked(err error, pause time.Duration) {
	c.failedLocked("grant an epoch", err)
	c.retryLocked()
	c.mu.tryAt = max(c.mu.tryAt, c.r.e.cfg.Now()+pause/2+jitter(pause/2))
	c.releaseLocked(c.mu.held.lease, ReasonLeft)
}

func (c *Candidacy) grantedLocked(before fencing.Record) {
	s := &c.mu.state
	epoch, again := s.epoch, s.led
	c.falseAlarmLocked()
	c.passedLocked("grant an epoch")
	s.ungranted = nil
	s.held.granted, s.led = true, true
	c.leadLocked(c.r.e.cfg.Now())
	s.fault, s.notNewer, s.backoff = nil, 0, 0
	s.barred, s.barredUntil = nil, 0
	c.answerLocked()
	took, afterFree := s.held.takeover(c.r.e.cfg.Now())
	if again {
		c.log.Info("lease reacquired under the same epoch", zap.Int64("epoch", int64(epoch)))
		c.event(Event{Kind: EventRetaken, Took: took, Grant: afterFree})
		return
	}
	if c.shares(before, epoch) {
		if before.Worker != c.worker {
			c.log.Warn("two workers have brought the same token: they share an epoch, and Fencepost cannot tell them apart",
				zap.Int64("token", c.token), zap.String("other", before.Worker))
		}
		c.log.Info("leads under the epoch of its token", zap.Int64("epoch", int64(epoch)))
		c.event(Event{Kind: EventRetaken, Took: took, Grant: afterFree})
		return
	}
	takeover := before.Epoch > 0 && before.Incarnation != c.incarnation
	fields := []zap.Field{zap.Int64("epoch", int64(epoch)), zap.Int64("index", s.held.lease.Index), zap.Duration("took", took), zap.Duration("grant", afterFree)}
	if takeover {
		c.log.Warn("takeover", append(fields, zap.String("from", before.Worker), zap.Int64("from_epoch", int64(before.Epoch)))...)
	} else {
		c.log.Info("granted", fields...)
	}
	c.event(Event{Kind: EventGranted, Takeover: takeover, Took: took, Grant: afterFree})
}

// notNewerLocked releases an award that came too late, because another candidacy was
// granted an epoch under a newer one. If the next award is not newer either, the order
// of the lease service itself has gone back.
func (c *Candidacy) notNewerLocked(err error) {
	s := &c.mu.state
	s.notNewer++
	if s.notNewer > 1 {
		s.fault = fencing.OldAwardsRefusal(c.r.key.database, err)
	}
	pause := time.Duration(0)
	if s.fault != nil {
		pause = faultBackoff
	}
	c.giveBackLocked(err, pause)
}

// grantFailedLocked retries the grant for a while, then releases the lease, because
// another candidate may be able to reach the database.
func (c *Candidacy) grantFailedLocked(err error) {
	s := &c.mu.state
	s.ungranted = err
	if c.r.e.cfg.Now()-s.held.requested > c.set.TTL+grantPatience {
		c.giveBackLocked(err, 2*c.set.TTL)
		var blocked interface{ BlockedBy() []string }
		if errors.As(err, &blocked) && !s.requests.has(requestUnblock) {
			c.awaitUnblockedLocked()
		}
		return
	}
	c.failedLocked("grant an epoch", err)
	c.retryLocked()
	s.held.grantAt = s.tryAt
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

// ungrantedLocked returns why the last grant failed, nil if that counts no longer. Of what blocked it, it names what is left.
func (c *Candidacy) ungrantedLocked() error {
	err := c.mu.ungranted
	var blocked interface{ BlockedBy() []string }
	if !errors.As(err, &blocked) || !c.mu.requests.has(requestUnblock) {
		return err
	}
	by := c.fence.BlockedBy()
	if len(by) == 0 { // the result of AwaitUnblocked is on its way
		return nil
	}
	return fmt.Errorf("it is blocked: %s", strings.Join(by, "; "))
}
