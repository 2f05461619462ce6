package election

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/own"
	"github.com/fencepost/fencepost/fencing"
)

const (
	// faultBackoff is about how long a candidacy waits after the fence, or the order of
	// awards, has turned out to be unusable.
	faultBackoff = 3 * time.Second
	// grantPatience is how much longer than a TTL a lease is kept that cannot be turned
	// into an epoch.
	grantPatience = 5 * time.Second
	// unblockedJitter spreads the attempts of all proxies whose grants were blocked by the same transaction.
	unblockedJitter = 500 * time.Millisecond
)

var (
	// errOtherInstance means that an award belongs to an instance that was not the numbered one
	// when the candidacy asked for the lease.
	errOtherInstance = errors.New("the lease service has a new instance id: releasing its award and asking for another")
	// errOvertaken means that a grant succeeded, and that another candidacy was granted an epoch before the response
	// arrived.
	errOvertaken = errors.New("another worker was granted an epoch at once")
)

// acquiredLocked applies the result of an attempt that was made when the resource looked like
// this.
func (c *Candidacy) acquiredLocked(got acquired, seen view) {
	c.requests.end(requestAcquire)
	err := got.err
	over := c.token > 0 && errors.Is(err, elector.ErrLost) // the generation of its token is
	if err == nil || errors.Is(err, elector.ErrHeld) || over {
		c.passedLocked("acquire the lease")
		c.leaseAnswered(nil, got.sent)
	} else {
		c.leaseAnswered(err, got.sent)
	}
	switch {
	case err == nil:
		c.reclaim = own.Reclaim{}
		c.leftovers.unresponsive = nil
		c.held = newHolding(got.lease, c.set, got.sent, seen.freeSince, c.r.delay(c.set.forLease(got.lease).renewalSpread()))
		c.held.lastLed, c.held.lastEnded = seen.lastLed, seen.lastEnded
		if got.lease.From != "" {
			c.held.lastEnded = fencing.EndingGone
		}
		c.r.mu.instanceID = got.lease.InstanceID
		if c.token == 0 { // otherwise the grant shows it
			c.r.mu.holder = c
		}
		if got.lease.InstanceID != got.instanceID {
			c.askAgainLocked(errOtherInstance)
		}
	case errors.Is(err, elector.ErrHeld) && got.former != "":
		c.reclaimLaterLocked(got.former)
	case errors.Is(err, elector.ErrHeld):
		c.reclaim = own.Reclaim{}
		c.retryLocked()
	case over:
		c.supersedeLocked(c.r.mu.record)
		c.answerLocked()
	default:
		c.leftovers.uncertain = c.leftovers.uncertain || !errors.Is(err, elector.ErrNotSent)
		c.failedLocked("acquire the lease", err)
		c.retryLocked()
		c.reclaim.At = c.tryAt
	}
}

// retryLocked ends an unsuccessful attempt and schedules the next one.
func (c *Candidacy) retryLocked() {
	c.slowDown(c.r.e.cfg.Now())
	c.answerLocked()
}

// askAgainLocked releases an award of an instance that was not numbered in time.
// Callers that wait for the attempt keep waiting for the next one.
func (c *Candidacy) askAgainLocked(err error) {
	c.log.Warn("asking for another award", zap.Error(err))
	c.event(Event{Kind: EventFailed, Err: err})
	c.tryAt = c.r.e.cfg.Now() + jitter(minBackoff)
	c.releaseLocked(c.held.lease, elector.ReasonLeft)
}

func (c *Candidacy) renewedLocked(lease *elector.Lease, sent time.Duration, err error) {
	c.requests.end(requestRenew)
	if c.held.lease != lease || c.requests.has(requestRelease) {
		return
	}
	now, set := c.r.e.cfg.Now(), c.set.forLease(lease)
	if err == nil || errors.Is(err, elector.ErrLost) {
		c.passedLocked("renew the lease")
		c.leaseAnswered(nil, sent)
	} else {
		c.leaseAnswered(err, sent)
	}
	switch {
	case err == nil:
		lapsed := c.held.granted && now >= c.held.trusted
		c.event(Event{Kind: EventRenewed})
		c.held = c.held.confirmed(c.set, sent, c.r.delay(set.renewalSpread()))
		c.lead(now)
		if lapsed && now < c.held.trusted {
			c.log.Info("confirmed: the lease was held throughout", zap.Int64("epoch", int64(c.epoch)))
			c.event(Event{Kind: EventConfirmed})
		}
	case errors.Is(err, elector.ErrLost):
		c.lostLocked(err)
	default:
		c.held.renewAt = now + set.TTL/10 + c.r.delay(set.TTL/20)
		c.failedLocked("renew the lease", err)
	}
}

// lostLocked handles a definitive loss: the term is over at once.
func (c *Candidacy) lostLocked(err error) {
	now := c.r.e.cfg.Now()
	c.log.Warn("lease lost", zap.Int64("epoch", int64(c.epoch)), zap.Error(err))
	c.requests.cancel(requestGrant)
	c.noteLeadEnd(now, fencing.EndingExpired)
	c.held = holding{}
	c.stopLeading()
	c.pace = pace{}
	c.event(Event{Kind: EventLost, Err: err})
	c.publishLocked(now)
	c.r.vacatedLocked(c)
	c.r.watcher.wake()
}

// grantEndedLocked applies the result of a grant.
func (c *Candidacy) grantEndedLocked(g granting) {
	c.requests.end(requestGrant)
	over := c.held.lease != g.held.lease || c.requests.has(requestRelease)
	err := g.err
	if err == nil {
		c.ungranted = nil
		err = c.takeEpochLocked(g, over || c.r.e.cfg.Now() >= c.held.trusted)
	}
	if isState(err, fencing.StateUnnumbered) {
		c.r.mu.numbered = ""
	}
	if over {
		c.retryLocked()
		return
	}
	switch {
	case err == nil && c.epoch == 0:
		c.retryLocked()
		c.held.grantAt = c.tryAt
	case err == nil:
		c.grantedLocked(g.before)
	case errors.Is(err, errOffered):
		c.log.Info("leaving the lease to the worker that the resource is offered to")
		c.retryLocked()
		c.releaseLocked(g.held.lease, elector.ReasonLeft)
	case errors.Is(err, errOvertaken) && c.phase == superseded:
		c.answerLocked()
	case errors.Is(err, errOvertaken):
		c.giveBackLocked(err, 0)
	case asBarred(err) != nil:
		c.barredLocked(asBarred(err), g.unbarred)
	case c.isOutranked(err):
		c.supersedeLocked(c.r.mu.record)
		c.r.watcher.wake()
		c.answerLocked()
	case isState(err, fencing.StateAwardNotNewer):
		c.notNewerLocked(err)
	case isState(err, fencing.StateUnnumbered):
		c.askAgainLocked(err)
	case isState(err, fencing.StateNoFence):
		c.fault, c.r.mu.needsReopen = faultOf(err), true
		c.giveBackLocked(err, faultBackoff)
	default:
		c.grantFailedLocked(err)
	}
}

// takeEpochLocked applies the epoch that the fence has granted: the others learn of it before this candidacy leads.
// late means that the lease was over, or no longer trusted, when the response arrived: a candidacy that has never led
// asks for the grant again then, and has no epoch until it leads under it. It returns errOvertaken if another candidacy
// was granted an epoch since.
func (c *Candidacy) takeEpochLocked(g granting, late bool) error {
	record := fencing.Record{
		Epoch: g.epoch, Worker: c.worker, Incarnation: c.incarnation,
		Source: g.award.Source, Index: g.award.Index, GrantedAt: time.Now(), Guards: g.before.Guards,
	}
	if c.shares(g.before, g.epoch) {
		record.Worker, record.GrantedAt = g.before.Worker, g.before.GrantedAt
	}
	if c.token > 0 {
		c.r.mu.holder = c
	}
	newest := c.r.learnLocked(record, g.before, c)
	if g.epoch != g.before.Epoch {
		c.r.noteGrantLocked(c, g)
	}
	if newest && !late || c.counts() {
		c.hasEpoch(record.Epoch)
	}
	if newest {
		return nil
	}
	if c.counts() {
		c.supersedeLocked(c.r.mu.record)
	}
	return errOvertaken
}

// shares reports whether the epoch was granted before, to a candidacy that brought the same token.
func (c *Candidacy) shares(before fencing.Record, epoch fencing.Epoch) bool {
	return c.token > 0 && before.Incarnation == c.incarnation && before.Epoch == epoch
}

// giveBackLocked releases a lease that could not be turned into an epoch. It makes no
// new attempt before about pause has passed.
func (c *Candidacy) giveBackLocked(err error, pause time.Duration) {
	c.failedLocked("grant an epoch", err)
	c.retryLocked()
	c.tryAt = max(c.tryAt, c.r.e.cfg.Now()+pause/2+jitter(pause/2))
	c.releaseLocked(c.held.lease, elector.ReasonLeft)
}

func (c *Candidacy) grantedLocked(before fencing.Record) {
	epoch, again := c.epoch, c.led
	c.falseAlarmLocked()
	c.passedLocked("grant an epoch")
	c.ungranted = nil
	c.held.granted, c.led = true, true
	c.lead(c.r.e.cfg.Now())
	c.fault, c.notNewer, c.backoff = nil, 0, 0
	c.barred, c.barredUntil = nil, 0
	c.answerLocked()
	took, afterFree := c.held.takeover(c.r.e.cfg.Now())
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
	fields := []zap.Field{zap.Int64("epoch", int64(epoch)), zap.Int64("index", c.held.lease.Index), zap.Duration("took", took), zap.Duration("grant", afterFree)}
	switch {
	case takeover && epoch == before.Epoch+1:
		c.log.Warn("takeover", append(fields, zap.String("from", before.Worker), zap.Int64("from_epoch", int64(before.Epoch)))...)
	case takeover: // from a worker that was granted its epoch through another proxy, which this one has not read yet
		c.log.Warn("takeover", fields...)
	default:
		c.log.Info("granted", fields...)
	}
	c.event(Event{Kind: EventGranted, Takeover: takeover, Took: took, Grant: afterFree})
}

// notNewerLocked releases an award that came too late, because another candidacy was
// granted an epoch under a newer one. If the next award is not newer either, the order
// of the lease service itself has gone back.
func (c *Candidacy) notNewerLocked(err error) {
	c.notNewer++
	if c.notNewer > 1 {
		c.fault = fencing.OldAwardsRefusal(c.r.key.database, err)
	}
	pause := time.Duration(0)
	if c.fault != nil {
		pause = faultBackoff
	}
	c.giveBackLocked(err, pause)
}

// barredLocked gives back a lease that an order keeps the candidacy from turning into an
// epoch. unbarred is the count from before the grant was asked for: if it has changed, the
// order may be over.
func (c *Candidacy) barredLocked(b *fencing.Barred, unbarred int) {
	now := c.r.e.cfg.Now()
	if c.unbarred == unbarred {
		pause := maxBarred
		if b.Left > 0 {
			pause = min(pause, b.Left)
		}
		if c.barred == nil || c.barred.Message != b.Refusal.Message {
			c.log.Info("kept from leading by an operator's order", zap.String("reason", b.Refusal.Message))
		}
		c.barred, c.barredUntil = b.Refusal, now+pause+jitter(pause/10)
	}
	c.retryLocked()
	c.releaseLocked(c.held.lease, elector.ReasonLeft)
}

// grantFailedLocked retries the grant for a while, then releases the lease, because
// another candidate may be able to reach the database.
func (c *Candidacy) grantFailedLocked(err error) {
	c.ungranted = err
	if c.r.e.cfg.Now()-c.held.requested > c.set.TTL+grantPatience {
		c.giveBackLocked(err, 2*c.set.TTL)
		var blocked interface{ BlockedBy() []string }
		if errors.As(err, &blocked) && !c.requests.has(requestUnblock) {
			c.awaitUnblockedLocked()
		}
		return
	}
	c.failedLocked("grant an epoch", err)
	c.retryLocked()
	c.held.grantAt = c.tryAt
}

// unblockedLocked applies that what blocked a grant has ended, or that it is not followed any longer.
func (c *Candidacy) unblockedLocked(err error) {
	c.requests.end(requestUnblock)
	if err == nil && c.held.lease == nil {
		c.ungranted = nil
		c.tryAt = min(c.tryAt, c.r.e.cfg.Now()+jitter(unblockedJitter))
	}
}

// releasedLocked applies the result of a release. silent is for how long the worker had been silent, if that is why.
func (c *Candidacy) releasedLocked(lease *elector.Lease, why elector.Reason, silent time.Duration, err error) {
	c.requests.end(requestRelease)
	again := c.leftovers.released(lease, why)
	if c.held.lease == lease {
		c.held = holding{}
	}
	switch {
	case err != nil:
		c.log.Warn("could not release the lease: unless it is over, it ends when it expires",
			zap.Int64("epoch", int64(c.epoch)), zap.Stringer("reason", why), zap.Error(err))
		c.event(Event{Kind: EventFailed, Err: fmt.Errorf("release the lease: %w", err)})
	case !again && lease.Index != 0:
		fields := []zap.Field{zap.Int64("epoch", int64(c.epoch)), zap.Stringer("reason", why)}
		if why == elector.ReasonUnresponsive {
			c.log.Warn("released", append(fields, zap.Duration("silence", silent), zap.Duration("worker_timeout", c.allowedSilence(c.r.e.cfg.Now())))...)
		} else {
			c.log.Info("released", fields...)
		}
		c.event(Event{Kind: EventReleased, Reason: why})
	}
	c.r.vacatedLocked(c)
}

// observeGrantLocked applies that the highest known grant has become rec; it was before. One whose response was lost
// does not count before the candidacy leads: the grant is asked for again and gives the same epoch, unless another
// candidacy has been granted one since. Otherwise that would supersede a worker which has never led. Nor does one that
// was granted to another worker with the same token, before this candidacy is granted a share in it: an order may keep
// it from that.
func (c *Candidacy) observeGrantLocked(rec, before fencing.Record) {
	if rec.Epoch > before.Epoch {
		c.fault = nil // the fence works again
	}
	if !rec.Unconfirmed && (rec.Epoch > max(before.Epoch, c.examined) || before.Unconfirmed) {
		c.ungranted = nil // someone was granted an epoch since
		c.requests.cancel(requestUnblock)
	}
	switch {
	case rec.Incarnation == c.incarnation && c.led && rec.Epoch > c.epoch: // an order ended its lead, and its token was granted another epoch
		c.supersedeLocked(rec)
	case rec.Incarnation == c.incarnation && (rec.Unconfirmed || !c.counts() || !c.led && rec.Worker != c.worker): // the grant is asked for again
	case rec.Incarnation == c.incarnation:
		c.hasEpoch(max(c.epoch, rec.Epoch))
	case c.phase == superseded, c.epoch > 0 && rec.Epoch > c.epoch:
		c.supersedeLocked(rec)
	}
	c.publishLocked(c.r.e.cfg.Now())
}

// loseFenceLocked ends the candidacy's attempts for good, because its fence is gone.
func (c *Candidacy) loseFenceLocked(gone fencing.Record) {
	if c.phase != superseded {
		c.removed = true
		c.supersedeLocked(gone)
		c.answerLocked()
	}
	poke(c.poke)
}
