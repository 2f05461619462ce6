package fence

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
)

// maxTogether bounds how many backends are registered by one statement.
const maxTogether = 100

// arrivals are the backends that wait to be registered for one fence. Those that come while a statement runs are
// registered by the next one, together.
type arrivals struct {
	mu      sync.Mutex
	waiting []*arrival
	running bool // a goroutine takes those that wait
}

// arrival is one backend that waits to be registered.
type arrival struct {
	ctx     context.Context
	request fencing.RegisterRequest
	note    int64
	done    chan error // has room for the result
}

// RegisterBackend implements fencing.Fence. It does not wait for the disk.
func (f *Fence) RegisterBackend(ctx context.Context, e fencing.RegisterRequest) (fencing.Entry, error) {
	a := &arrival{ctx: ctx, request: e, note: rand.Int64(), done: make(chan error, 1)}
	entry := fencing.Entry{PID: e.PID, ID: a.note}
	f.arrivals.mu.Lock()
	f.arrivals.waiting = append(f.arrivals.waiting, a)
	if !f.arrivals.running {
		f.arrivals.running = true
		f.db.registering.Go(f.registerArrivals)
	}
	f.arrivals.mu.Unlock()
	select {
	case err := <-a.done:
		return entry, f.backendError(a, err)
	case <-ctx.Done():
		return entry, f.backendError(a, context.Cause(ctx))
	}
}

// backendError adds to an error which backend it is about.
func (f *Fence) backendError(a *arrival, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("register backend %d for resource %q: %w", a.request.PID, f.resource, f.db.Explain(err))
}

// registerArrivals registers those that wait, until there are none.
func (f *Fence) registerArrivals() {
	for {
		f.arrivals.mu.Lock()
		n := min(len(f.arrivals.waiting), maxTogether)
		if n == 0 {
			f.arrivals.running = false
			f.arrivals.mu.Unlock()
			return
		}
		together := f.arrivals.waiting[:n:n]
		f.arrivals.waiting = f.arrivals.waiting[n:]
		f.arrivals.mu.Unlock()
		f.registerTogether(together)
	}
}

// registerTogether registers several backends. If their statement fails, each has one of its own: what one is refused
// for is not true of the others.
func (f *Fence) registerTogether(all []*arrival) {
	ctx, cancel := withDeadlineOf(all)
	defer cancel()
	err := f.enter(ctx, all)
	for _, a := range all {
		if err != nil && len(all) > 1 {
			a.done <- f.enter(a.ctx, []*arrival{a})
		} else {
			a.done <- err
		}
	}
}

// withDeadlineOf returns a context that ends when the first of those who wait gives up, or after pollTimeout if no one
// has a deadline.
func withDeadlineOf(all []*arrival) (context.Context, context.CancelFunc) {
	var first time.Time
	for _, a := range all {
		if at, ok := a.ctx.Deadline(); ok && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if first.IsZero() {
		return context.WithTimeout(context.Background(), pollTimeout)
	}
	return context.WithDeadline(context.Background(), first)
}

// enterSQL registers the backends of its arrays by one statement, which commits by itself. A crash ends the backends
// too, so nothing of it need be flushed.
const enterSQL = `SELECT pg_catalog.set_config('lock_timeout', $9, true), pg_catalog.set_config('synchronous_commit', 'off', true), fencepost.enter($1, e.pid, e.started, e.seen, e.note, e.worker, e.incarnation, e.announced, e.held)
	FROM unnest($2::integer[], $3::text[], $4::text[], $5::bigint[], $6::text[], $10::text[], $7::bigint[], $8::bigint[]) e (pid, started, seen, note, worker, incarnation, announced, held)`

// enter registers backends.
func (f *Fence) enter(ctx context.Context, all []*arrival) error {
	n := len(all)
	pids, notes, announced, held := make([]int32, n), make([]int64, n), make([]int64, n), make([]int64, n)
	started, seen, workers, incarnations := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	for i, a := range all {
		e := a.request
		pids[i], notes[i], announced[i], held[i] = int32(e.PID), a.note, int64(e.Announced), int64(e.Held)
		started[i], seen[i], workers[i], incarnations[i] = e.Started, e.Seen, fencing.Name(e.Worker), e.Incarnation
	}
	return f.retry(ctx, 0, func() (bool, error) {
		err := f.db.read(ctx, func() error {
			_, err := f.db.fences.Exec(ctx, enterSQL, f.id, pids, started, seen, notes, workers, announced, held, quickLock.String(), incarnations)
			return err
		})
		if store.CodeOf(err) == codeLocked {
			return false, nil
		}
		return true, err
	})
}
