package election

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/orders"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
)

const (
	// orderPoll is how often a database is asked for new orders.
	orderPoll = time.Second
	// maxBarred is the longest pause before a barred candidacy tries again, in case it
	// did not learn that its bar was lifted.
	maxBarred = 30 * time.Second
	// fencePolls is how many polls of a database pass from one look at its fences to the next.
	fencePolls = 5
)

// Orders returns what a database says, with the orders of operators with ids above after.
type Orders func(ctx context.Context, after int64) (fencing.Ordered, error)

// InForce returns the orders that keep workers from leading now, by resource.
type InForce func(ctx context.Context) (map[string]fencing.InForce, error)

// seenOrders returns what was seen of the orders of a database.
func (e *Elections) seenOrders(name string) *orders.Log {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.orders[name] == nil {
		e.mu.orders[name] = &orders.Log{}
	}
	return e.mu.orders[name]
}

// followOrders passes on to the resources of a database what operators order, and that their tables are guarded, until
// ctx ends. It runs while the database has candidacies, and for closeIdleAfter after that. It begins when the one
// before, if any, has ended.
func (e *Elections) followOrders(ctx context.Context, name string, b Backend, before <-chan struct{}) {
	if before != nil {
		<-before
	}
	tick := time.NewTicker(orderPoll)
	defer tick.Stop()
	first, failing := true, false
	unseen := faults.NewSeries(e.log.With(zap.String("database", name)), "cannot read the fences", 0)
	handovers := e.newHandoverPoll(name, b.Handovers)
	defer e.leaveHandovers(handovers)
	following, stop := context.WithCancel(ctx)
	var drains sync.WaitGroup
	drains.Go(func() { e.followDrains(following, name, b) })
	defer func() { stop(); drains.Wait() }()
	var answered time.Duration // when the database last answered
	for n := 1; ; n++ {
		if !failing {
			answered = e.cfg.Now() // of the rest of the last round, not all has to have been answered
		}
		st, ordered, err := e.readNewOrders(ctx, name, b.Orders, first)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			e.log.Warn("cannot read the orders of operators", zap.String("database", name), zap.Error(err))
		}
		answered = e.followReach(ctx, name, b, err, answered)
		if failing = err != nil; !failing {
			first = false
			e.readAgain(name, func(r *resource) bool { return r.mu.record.Guards != st.Guards[r.key.name] })
			e.followInForce(ctx, name, st.Barred)
			if n%fencePolls == 0 {
				e.followFences(ctx, name, b.Fences, unseen)
			}
			e.followHandovers(ctx, handovers, ordered)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// readNewOrders reads what the database says, with the orders that are new, and passes these on. It reports whether
// anything may have been ordered. first means that it has not been called since the database had no candidacy.
func (e *Elections) readNewOrders(ctx context.Context, name string, read Orders, first bool) (st fencing.Ordered, ordered bool, err error) {
	seen := e.seenOrders(name)
	news, err := seen.Read(func(after int64) (fencing.Ordered, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*orderPoll)
		defer cancel()
		return read(ctx, after)
	})
	if err != nil {
		return st, false, err
	}
	e.lostOrders(name, seen, news)
	if first || news.Missed { // any order may have been missed
		for _, r := range e.resourcesOf(name) {
			r.ordered()
		}
	}
	for _, o := range news.New {
		if first {
			e.forgetLostOrder(resourceKey{name, o.Resource})
		} else {
			e.ordered(name, o)
		}
	}
	return news.Ordered, first || news.Missed || len(news.New) > 0, nil
}

// lostOrders reports the orders that the database does not have any more: a failover has lost them, or an older state
// was restored.
func (e *Elections) lostOrders(name string, seen *orders.Log, news orders.News) {
	for _, o := range news.Lost {
		e.log.Warn("an operator's order is not in the database any more, after a failover or a restore: give it again if it still counts", orderFields(name, o)...)
		e.mu.Lock()
		if e.mu.orders[name] == seen { // otherwise the database was recreated meanwhile
			e.mu.lostOrders[resourceKey{name, o.Resource}] = o
		}
		e.mu.Unlock()
	}
	if news.LostUnknown != 0 {
		e.log.Warn("the newest order of an operator is not in the database any more, after a failover or a restore: this proxy does not know what it was",
			zap.String("database", name), zap.Int64("order", news.LostUnknown))
	}
}

// forgetLostOrder forgets a lost order, because an operator has given another one since.
func (e *Elections) forgetLostOrder(key resourceKey) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.mu.lostOrders, key)
}

// forgetOrders is for a database that was dropped, and may have been recreated: it has not lost anything.
func (e *Elections) forgetOrders(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.mu.orders, name)
	for key := range e.mu.lostOrders {
		if key.database == name {
			delete(e.mu.lostOrders, key)
		}
	}
}

// lostOrder returns the newest order to a resource that is lost, if no other one was given since.
func (e *Elections) lostOrder(key resourceKey) (o fencing.Order, lost bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o, lost = e.mu.lostOrders[key]
	return o, lost
}

func orderFields(database string, o fencing.Order) []zap.Field {
	return []zap.Field{zap.String("database", database), zap.String("kind", o.Kind), zap.String("resource", o.Resource),
		zap.String("worker", o.Worker), zap.String("asked_by", o.AskedBy), zap.String("reason", o.Reason), zap.Int64("order", o.ID)}
}

// followFences makes the resources of a database read their records if its fences are not those that
// they know, as after a restore, or after the schema was dropped and recreated: no grant shows that.
func (e *Elections) followFences(ctx context.Context, name string, read func(context.Context) (fencing.Fences, error), unread *faults.Series) {
	if read == nil {
		return
	}
	has, ok := poll(ctx, read, unread)
	if !ok {
		return
	}
	e.readAgain(name, func(r *resource) bool { return len(r.mu.loops) > 0 && (r.mu.lost != nil || r.differsLocked(has)) })
}

// readAgain makes those resources of a database read their records that are out of date. It asks
// each with its lock held.
func (e *Elections) readAgain(name string, outOfDate func(r *resource) bool) {
	for _, r := range e.resourcesOf(name) {
		r.mu.Lock()
		old := outOfDate(r)
		r.mu.Unlock()
		if old {
			r.watcher.wake()
		}
	}
}

// followInForce passes on to the resources of a database which orders are in force. Without bars, none is.
func (e *Elections) followInForce(ctx context.Context, name string, barred bool) {
	e.mu.Lock()
	d := e.mu.databases[name]
	e.mu.Unlock()
	if d == nil || d.InForce == nil {
		return
	}
	var all map[string]fencing.InForce
	asked := e.cfg.Now()
	if !barred {
		d.unread.Passed()
	} else if in, ok := poll(ctx, d.InForce, d.unread); ok {
		all = in
	} else {
		return
	}
	for _, r := range e.resourcesOf(name) {
		r.mu.Lock()
		r.mu.shows(all[r.key.name], asked)
		if now := e.cfg.Now(); r.stateLocked(now).State.NeedsNoLeader() { // looked at often enough for WantedSince
			r.mu.NoLeaderNeededUntil = now
		}
		r.mu.Unlock()
	}
}

// ordersSeen is what a resource has seen of the orders that are in force.
type ordersSeen struct {
	inForce     fencing.InForce // replaced, and never changed
	asked       time.Duration   // when the database was last asked for it; 0 if it was not
	pausedSince time.Duration   // when the pause that is in force began; 0 if none is, and if that is not known
	resumed     time.Duration   // when a pause was seen to be over; 0 if none was
}

// shows records the orders that a request at this time has shown.
func (o *ordersSeen) shows(in fencing.InForce, asked time.Duration) {
	if o.inForce.Paused && !in.Paused {
		o.resumed = asked
	}
	o.inForce, o.asked, o.pausedSince = in, asked, 0
	if in.PausedFor > 0 {
		o.pausedSince = asked - in.PausedFor
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
	e.log.Info("an operator gave an order", orderFields(database, o)...)
	key := resourceKey{database, o.Resource}
	e.forgetLostOrder(key)
	e.mu.Lock()
	r := e.mu.resources[key]
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

// ordered makes the candidacies try again that a bar keeps from leading, and the watch read
// the record.
func (r *resource) ordered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.mu.loops {
		c.unbarLocked()
	}
	r.watcher.wake()
}

// removed ends the candidacies of a fence whose resource an operator has removed. Their
// members connect again, and find the resource recreated.
func (r *resource) removed(fence Fence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := fencing.Record{Epoch: max(r.mu.highestObserved, r.mu.record.Epoch) + 1, Source: fencing.SourceOperator}
	if r.mu.fence == fence {
		r.mu.needsReopen = true
	}
	for _, c := range r.mu.loops {
		if c.fence.ID() == fence.ID() {
			c.loseFenceLocked(gone)
		}
	}
}

// bar is the order of an operator that keeps a candidacy from leading.
type bar struct {
	barred *fencing.Refusal // nil if no order is known
	// barredUntil is when to try again.
	barredUntil time.Duration
	// unbarred counts how often the bar may have been lifted.
	unbarred int
}

// unbarLocked makes the candidacy try again as if there was no bar.
func (c *Candidacy) unbarLocked() {
	c.unbarred++
	if c.barred == nil {
		return
	}
	now := c.r.e.cfg.Now()
	c.bar = bar{unbarred: c.unbarred}
	c.backoff, c.tryAt = 0, now+jitter(20*time.Millisecond)
	c.publishLocked(now)
	poke(c.poke)
}

// asBarred returns the order that has forbidden a grant, nil if err is something else.
func asBarred(err error) *fencing.Barred {
	var b *fencing.Barred
	if errors.As(err, &b) {
		return b
	}
	return nil
}
