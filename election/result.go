package election

import (
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/election/own"
	"github.com/fencepost/fencepost/fencing"
	"go.uber.org/zap"
)

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

// observe processes the highest grant. One whose response was lost does not count before the candidacy leads:
// the grant is asked for again and gives the same epoch, unless another candidacy has been granted one since.
// Otherwise that would supersede a worker which has never led. Nor does one that was granted to another worker with the
// same token, before this candidacy is granted a share in it: an order may keep it from that.
func (c *Candidacy) observe(rec fencing.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	before := s.record
	if !s.observe(rec) {
		return
	}
	if !rec.Unconfirmed && (rec.Epoch > max(before.Epoch, c.examined) || before.Unconfirmed) {
		s.ungranted = nil // someone was granted an epoch since
		s.requests.cancel(requestUnblock)
	}
	switch {
	case rec.Incarnation == c.incarnation && s.led && rec.Epoch > s.epoch: // an order ended its lead, and its token was granted another epoch
		c.supersedeLocked(rec)
	case rec.Incarnation == c.incarnation && (rec.Unconfirmed || !c.countsLocked() || !s.led && rec.Worker != c.worker): // the grant is asked for again
	case rec.Incarnation == c.incarnation:
		s.hasEpoch(max(s.epoch, rec.Epoch))
	case s.phase == superseded, s.epoch > 0 && rec.Epoch > s.epoch:
		c.supersedeLocked(rec)
	}
	c.publishLocked(c.r.e.cfg.Now())
}

// errOtherInstance means that an award belongs to an instance that was not the numbered one
// when the candidacy asked for the lease.
var errOtherInstance = errors.New("the lease service has a new instance id: releasing its award and asking for another")

// askAgainLocked releases an award of an instance that was not numbered in time.
// Callers that wait for the attempt keep waiting for the next one.
func (c *Candidacy) askAgainLocked(err error) {
	c.log.Warn("asking for another award", zap.Error(err))
	c.event(Event{Kind: EventFailed, Err: err})
	c.mu.tryAt = c.r.e.cfg.Now() + jitter(minBackoff)
	c.releaseLocked(c.mu.held.lease, ReasonLeft)
}

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

// shares reports whether the epoch was granted before, to a candidacy that brought the same token.
func (c *Candidacy) shares(before fencing.Record, epoch fencing.Epoch) bool {
	return c.token > 0 && before.Incarnation == c.incarnation && before.Epoch == epoch
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

// loseFence ends the candidacy's attempts for good, because its fence is gone.
func (c *Candidacy) loseFence(gone fencing.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := &c.mu.state; s.phase != superseded {
		s.record, s.removed = gone, true
		c.supersedeLocked(gone)
		c.answerLocked()
	}
	poke(c.poke)
}

// barredLocked gives back a lease that an order keeps the candidacy from turning into an
// epoch. unbarred is the count from before the grant was asked for: if it has changed, the
// order may be over.
func (c *Candidacy) barredLocked(b *fencing.Barred, unbarred int) {
	s := &c.mu.state
	now := c.r.e.cfg.Now()
	if s.unbarred == unbarred {
		pause := maxBarred
		if b.Left > 0 {
			pause = min(pause, b.Left)
		}
		if s.barred == nil || s.barred.Message != b.Refusal.Message {
			c.log.Info("kept from leading by an operator's order", zap.String("reason", b.Refusal.Message))
		}
		s.barred, s.barredUntil = b.Refusal, now+pause+jitter(pause/10)
	}
	c.retryLocked()
	c.releaseLocked(s.held.lease, ReasonLeft)
}

// released processes the result of a release. silent is for how long the worker had been silent, if that is why.
func (c *Candidacy) released(lease *Lease, why Reason, silent time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	s.requests.end(requestRelease)
	again := s.leftovers.released(lease, why)
	if s.held.lease == lease {
		s.held = holding{}
	}
	switch {
	case err != nil:
		c.log.Warn("could not release the lease: unless it is over, it ends when it expires",
			zap.Int64("epoch", int64(s.epoch)), zap.Stringer("reason", why), zap.Error(err))
		c.event(Event{Kind: EventFailed, Err: fmt.Errorf("release the lease: %w", err)})
	case !again && lease.Index != 0:
		fields := []zap.Field{zap.Int64("epoch", int64(s.epoch)), zap.Stringer("reason", why)}
		if why == ReasonUnresponsive {
			c.log.Warn("released", append(fields, zap.Duration("silence", silent), zap.Duration("worker_timeout", c.allowedSilence(c.r.e.cfg.Now())))...)
		} else {
			c.log.Info("released", fields...)
		}
		c.event(Event{Kind: EventReleased, Reason: why})
	}
	s.outbox.put(noticeVacated)
}
