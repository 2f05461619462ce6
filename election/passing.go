package election

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/own"
	"github.com/fencepost/fencepost/fencing"
)

// In an upgrade in place, a candidacy that leads is passed on to the new process, so that its worker keeps its epoch and
// its lease. One of the two processes has the lease at each moment: PassOn and Adopt hold their candidacies, so that
// neither asks for anything between the examination and its result.

// passedLead is what one process tells another of a candidacy that leads.
type passedLead struct {
	Lease  elector.Lease
	Epoch  fencing.Epoch
	Before bool      // the result of SupersededBefore
	Knew   time.Time // since when the worker has known its epoch; zero if that is not known
}

// move is what holds a candidacy. The zero value does not.
type move struct {
	still chan struct{} // closed when nothing is under way any more; nil: nothing holds the candidacy
	quiet bool          // still is closed
	// as is the incarnation in whose place the candidacy is about to lead, "" if there is none.
	as string
}

// holds reports whether the candidacy is to ask for nothing.
func (m *move) holds() bool { return m.still != nil }

// settle is called when no request is under way.
func (m *move) settle() {
	if m.holds() && !m.quiet {
		m.quiet = true
		close(m.still)
	}
}

// A candidacy may be held for a part of the TTL, of which a third passes between two renewals.
const (
	shareOfTTL = 6
	maxHold    = 2 * time.Second
)

var (
	errMoving      = errors.New("the candidacy is being passed on already")
	errNotLeading  = errors.New("the worker does not lead, or its lease is not confirmed")
	errNotAdopting = errors.New("the lease service does not let another process renew the leases of this one")
	errOtherLeads  = errors.New("another candidacy of the new process has the lease, or may have it")
)

var _ fencing.Movable = (*Candidacy)(nil)

// hold keeps the candidacy from asking for anything until letGo, and returns when nothing is under way. After an error,
// it is not held.
func (c *Candidacy) hold(ctx context.Context) (err error) {
	c.r.mu.Lock()
	if c.move.holds() {
		c.r.mu.Unlock()
		return errMoving
	}
	still := make(chan struct{})
	c.move = move{still: still}
	c.r.mu.Unlock()
	poke(c.poke)
	select {
	case <-still:
		return nil
	case <-c.done:
		err = ErrClosed
	case <-ctx.Done():
		err = fmt.Errorf("wait for a request that is under way: %w", ctx.Err())
	}
	c.letGo()
	return err
}

func (c *Candidacy) letGo() {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.letGoLocked()
}

func (c *Candidacy) letGoLocked() {
	c.move = move{}
	poke(c.poke)
}

// PassOn implements fencing.Movable.
func (c *Candidacy) PassOn(ctx context.Context, pass func(ctx context.Context, lead []byte) error) error {
	if _, ok := c.r.provider.(elector.Adopter); !ok {
		return errNotAdopting
	}
	ctx, cancel := context.WithTimeout(ctx, min(c.set.TTL/shareOfTTL, maxHold))
	defer cancel()
	if err := c.hold(ctx); err != nil {
		return err
	}
	state, err := c.describe()
	if err == nil {
		err = pass(ctx, state)
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.letGoLocked()
	if err == nil {
		c.passedOnLocked()
	}
	return err
}

// describe describes a candidacy that leads to another process.
func (c *Candidacy) describe() ([]byte, error) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.checkDeadlineLocked(c.r.e.cfg.Now())
	if c.phase != leading || c.fault != nil || c.token != 0 {
		return nil, errNotLeading
	}
	l := passedLead{Lease: *c.held.lease, Epoch: c.epoch, Before: c.before.Load()}
	l.Lease.From, l.Lease.Granted = "", c.set.forLease(c.held.lease).TTL // the settings of the other process may be others
	if k := c.r.mu.knowledge; k.of(c) && k.epoch == c.epoch {
		l.Knew = k.since
	}
	return json.Marshal(l)
}

// passedOnLocked ends a candidacy that another process has. Its lease is not this process's any more.
func (c *Candidacy) passedOnLocked() {
	c.log.Info("passed on to the new process", zap.Int64("epoch", int64(c.epoch)))
	c.held, c.leftovers = holding{}, leftovers{}
	c.stopLeading()
	c.r.mu.vacate(c)
	c.publishLocked(c.r.e.cfg.Now())
	c.endLocked()
}

// Adopt implements fencing.Movable.
func (c *Candidacy) Adopt(ctx context.Context, state []byte) (begin, drop func(), err error) {
	var l passedLead
	if err := json.Unmarshal(state, &l); err != nil {
		return nil, nil, fmt.Errorf("read what is passed on with a candidacy: %w", err)
	}
	adopter, ok := c.r.provider.(elector.Adopter)
	if !ok {
		return nil, nil, errNotAdopting
	}
	if err := c.hold(ctx); err != nil {
		return nil, nil, err
	}
	sent, err := c.examineLead(ctx, &l, adopter)
	if err != nil {
		c.letGo()
		return nil, nil, err
	}
	return func() { c.adopt(&l, sent) }, c.letGo, nil
}

// examineLead examines whether the candidacy, which is held, can lead in place of another process's: whether the fence
// agrees, and the lease can be renewed from here. It returns when it asked for that. Other proxies are told through
// which proxy the candidacy runs from now on, before the process that is named in its incarnation ends.
func (c *Candidacy) examineLead(ctx context.Context, l *passedLead, adopter elector.Adopter) (sent time.Duration, err error) {
	c.r.mu.Lock()
	free := c.phase == following && c.held.lease == nil && !c.leftovers.uncertain && c.r.mu.holder == nil && c.token == 0
	if free = free && c.worker == l.Lease.Worker && c.r.key.name == l.Lease.Resource; free {
		c.move.as = l.Lease.Incarnation
	}
	c.r.mu.Unlock()
	if !free {
		return 0, errOtherLeads
	}
	if err := c.fence.Verify(ctx, fencing.Term{Award: c.award(&l.Lease, l.Epoch, 0), Epoch: l.Epoch}); err != nil {
		return 0, err
	}
	sent = c.r.e.cfg.Now()
	if err := adopter.Adopt(ctx, &l.Lease); err != nil {
		return 0, fmt.Errorf("renew the lease: %w", err)
	}
	if c.r.handovers != nil {
		err = c.r.handovers.Record(ctx, c.r.e.candidates(c.r.key.database))
	}
	return sent, err
}

// adopt makes the candidacy lead in place of another process's, whose lease was confirmed by a request sent at this time.
func (c *Candidacy) adopt(l *passedLead, sent time.Duration) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	now := c.r.e.cfg.Now()
	c.incarnation = l.Lease.Incarnation
	c.log = c.r.log.With(zap.String("worker", c.worker), zap.String("incarnation", c.incarnation))
	c.examined = l.Epoch
	if l.Before {
		c.before.Store(true)
	}
	c.held = newHolding(&l.Lease, c.set, sent, 0, c.r.delay(c.set.forLease(&l.Lease).renewalSpread()))
	c.held.granted, c.led = true, true
	c.membership.arrived()
	c.reclaim, c.pace = own.Reclaim{}, pace{}
	c.r.mu.holder = c
	if !l.Knew.IsZero() {
		c.r.mu.knowledge = knowledge{c.user, c.worker, l.Epoch, l.Knew}
	}
	c.hasEpoch(l.Epoch)
	c.lead(now)
	c.observeGrantLocked(c.r.mu.record, c.r.mu.record) // a newer one may be known
	c.log.Info("leads in place of the process before this one", zap.Int64("epoch", int64(l.Epoch)), zap.Duration("trusted_for", c.held.trusted-now))
	c.event(Event{Kind: EventRenewed})
	c.letGoLocked()
	c.answerLocked()
}

// shownIncarnation is under which the candidacy is recorded for other proxies.
func (s *state) shownIncarnation() string { return cmp.Or(s.move.as, s.incarnation) }
