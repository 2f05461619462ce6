package election

import (
	"context"
	"errors"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
)

const (
	// orderPoll is how often a database is asked for new orders.
	orderPoll = time.Second
	// maxBarred is the longest pause before a barred candidacy tries again, in case it
	// did not learn that its bar was lifted.
	maxBarred = 30 * time.Second
)

// Orders returns the orders of operators with ids above after, oldest first, and the last
// id of all.
type Orders func(ctx context.Context, after int64) (last int64, orders []fencing.Order, err error)

// Guarded returns how many tables each resource guards, without those that guard none.
type Guarded func(ctx context.Context) (map[string]int, error)

// InForce returns the orders that keep workers from leading now, in words, by resource.
type InForce func(ctx context.Context) (map[string][]string, error)

// followOrders tells the resources of a database what operators order, and that their
// tables are guarded, until ctx ends. It runs while the database has candidacies.
func (e *Elections) followOrders(ctx context.Context, name string, b Backend) {
	defer e.wg.Done()
	tick := time.NewTicker(orderPoll)
	defer tick.Stop()
	last, failing := int64(math.MaxInt64), false
	unread := faults.NewSeries(e.log.With(zap.String("database", name)), "cannot read which resources guard tables", 0)
	for {
		next, orders, err := readOrders(ctx, b.Orders, last)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			e.log.Warn("cannot read the orders of operators", zap.String("database", name), zap.Error(err))
		case err == nil && next < last: // the first poll, or the database was restored: any order may have been missed
			e.orderedAll(name)
		}
		for _, o := range orders {
			e.ordered(name, o)
		}
		if failing = err != nil; !failing {
			last = next
			e.followGuards(ctx, name, b.Guarded, unread)
			e.followInForce(ctx, name)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func readOrders(ctx context.Context, read Orders, after int64) (last int64, orders []fencing.Order, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*orderPoll)
	defer cancel()
	return read(ctx, after)
}

// followGuards makes the resources of a database read their records if they guard more or
// fewer tables than recorded, so that their checks claim epochs, or no longer do.
func (e *Elections) followGuards(ctx context.Context, name string, read Guarded, unread *faults.Series) {
	if read == nil {
		return
	}
	tables, ok := poll(ctx, read, unread)
	if !ok {
		return
	}
	for _, r := range e.resourcesOf(name) {
		r.mu.Lock()
		known := r.mu.record.Guards
		r.mu.Unlock()
		if known != tables[r.key.name] {
			poke(r.wake)
		}
	}
}

// followInForce tells the resources of a database which orders are in force.
func (e *Elections) followInForce(ctx context.Context, name string) {
	e.mu.Lock()
	d := e.mu.databases[name]
	e.mu.Unlock()
	if d == nil || d.InForce == nil {
		return
	}
	all, ok := poll(ctx, d.InForce, d.unread)
	if !ok {
		return
	}
	for _, r := range e.resourcesOf(name) {
		r.mu.Lock()
		r.mu.inForce = all[r.key.name]
		r.mu.Unlock()
	}
}

// poll asks a database, and reports false if that has failed, or if ctx has ended.
func poll[T any](ctx context.Context, read func(context.Context) (T, error), unread *faults.Series) (T, bool) {
	limited, cancel := context.WithTimeout(ctx, 5*orderPoll)
	defer cancel()
	got, err := read(limited)
	switch {
	case err == nil:
		unread.Passed()
	case ctx.Err() == nil:
		unread.Failed(zap.Error(err))
	}
	return got, err == nil
}

// ordered logs an order and makes its resource look at what has changed.
func (e *Elections) ordered(database string, o fencing.Order) {
	e.log.Info("an operator gave an order", zap.String("database", database), zap.String("kind", o.Kind), zap.String("resource", o.Resource),
		zap.String("worker", o.Worker), zap.String("asked_by", o.AskedBy), zap.String("reason", o.Reason), zap.Int64("order", o.ID))
	e.mu.Lock()
	r := e.mu.resources[resourceKey{database, o.Resource}]
	e.mu.Unlock()
	if r != nil {
		r.ordered()
	}
}

// resourcesOf returns the resources of a database.
func (e *Elections) resourcesOf(database string) (all []*resource) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, r := range e.mu.resources {
		if key.database == database {
			all = append(all, r)
		}
	}
	return all
}

// orderedAll makes all resources of a database look at what has changed.
func (e *Elections) orderedAll(database string) {
	for _, r := range e.resourcesOf(database) {
		r.ordered()
	}
}

// ordered makes the candidacies try again that a bar keeps from leading, and the watch read
// the record.
func (r *resource) ordered() {
	for _, c := range r.all() {
		c.unbar()
	}
	poke(r.wake)
}

// removed ends the candidacies of a fence whose resource an operator has removed. Their
// members connect again, and find the resource made anew.
func (r *resource) removed(fence Fence) {
	r.mu.Lock()
	gone := fencing.Record{Epoch: max(r.mu.highestObserved, r.mu.record.Epoch) + 1, Source: fencing.SourceOperator}
	if r.mu.fence == fence {
		r.mu.needsReopen = true
	}
	r.mu.Unlock()
	for _, c := range r.all() {
		if c.fence.ID() == fence.ID() {
			c.loseFence(gone)
		}
	}
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

// bar is the order of an operator that keeps a candidacy from leading.
type bar struct {
	barred *fencing.Refusal // nil if no order is known
	// barredUntil is when to try again.
	barredUntil time.Duration
	// unbarred counts how often the bar may have been lifted.
	unbarred int
}

// unbar makes the candidacy try again as if there was no bar.
func (c *Candidacy) unbar() {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	s.unbarred++
	if s.barred == nil {
		return
	}
	s.bar = bar{unbarred: s.unbarred}
	s.backoff, s.tryAt = 0, c.r.e.cfg.Now()+jitter(20*time.Millisecond)
	c.publishLocked(c.r.e.cfg.Now())
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

// asBarred returns the order that has forbidden a grant, nil if err is something else.
func asBarred(err error) *fencing.Barred {
	var b *fencing.Barred
	if errors.As(err, &b) {
		return b
	}
	return nil
}
