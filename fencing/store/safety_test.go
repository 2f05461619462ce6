package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// race is the writers of one race and the outcome of their transactions.
type race struct {
	*testDatabase
	ctx                          context.Context
	term                         atomic.Pointer[fencing.Term]
	committed, refused, lost     atomic.Int64
	registered, registryRefusals atomic.Int64
}

// pause sleeps for a random time up to d, to vary the interleaving.
func pause(d time.Duration) { time.Sleep(rand.N(d)) }

// write runs transactions, each under the term that is current when it is prepared, and
// tries every way to lose a lock by means of a savepoint.
func (r *race) write() {
	for r.ctx.Err() == nil {
		conn, err := pgx.Connect(r.ctx, r.server.DSN(pgtest.App, r.db))
		if err != nil {
			continue
		}
		for r.ctx.Err() == nil && !conn.IsClosed() {
			w := &worker{Conn: conn, fence: r.fence.ID(), term: *r.term.Load()}
			pause(10 * time.Millisecond)
			r.count(r.transact(w))
		}
		_ = conn.Close(context.Background())
	}
}

func (r *race) count(err error) {
	switch stateOf(err) {
	case "":
		r.committed.Add(1)
	case fencing.StateSuperseded, "40001":
		r.refused.Add(1)
	default:
		r.lost.Add(1)
	}
}

func (r *race) transact(w *worker) error {
	options := isolations[rand.IntN(3)]
	tx, err := w.BeginTx(r.ctx, options)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if rand.IntN(4) == 0 { // run the check within a savepoint that is rolled back
		if _, err := tx.Exec(r.ctx, "SAVEPOINT early"); err != nil {
			return err
		}
	}
	if err := w.check(r.ctx); err != nil {
		return err
	}
	steps := []string{"SAVEPOINT s", "INSERT INTO public.entries VALUES (-1)", "ROLLBACK TO s", "RELEASE s"}
	for _, sql := range steps {
		if _, err := tx.Exec(r.ctx, sql); err != nil {
			return err
		}
		if rand.IntN(8) == 0 {
			pause(60 * time.Millisecond)
		}
	}
	if _, err := tx.Exec(r.ctx, "INSERT INTO public.entries VALUES ($1)", int64(w.term.Epoch)); err != nil {
		return err
	}
	if rand.IntN(3) == 0 { // wait for a row that others update
		if _, err := tx.Exec(r.ctx, "UPDATE public.busy SET n = n + 1"); err != nil {
			return err
		}
	}
	pause(15 * time.Millisecond)
	return tx.Commit(r.ctx)
}

// register runs registered procedures that commit inside.
func (r *race) register() {
	for r.ctx.Err() == nil {
		conn, err := pgx.Connect(r.ctx, r.server.DSN(pgtest.App, r.db))
		if err != nil {
			continue
		}
		for r.ctx.Err() == nil && !conn.IsClosed() {
			w := &worker{Conn: conn, fence: r.fence.ID(), term: *r.term.Load()}
			var note fencing.Registration
			if !unfenced {
				if note, err = r.fence.RegisterBackend(r.ctx, w.entry()); err != nil {
					r.registryRefusals.Add(1)
					continue
				}
			}
			if _, err := conn.Exec(r.ctx, fmt.Sprintf("CALL public.batch(%d, 5, 0.005)", w.term.Epoch)); err == nil {
				r.registered.Add(1)
			}
			if !unfenced {
				_ = r.fence.UnregisterBackend(r.ctx, note)
			}
		}
		_ = conn.Close(context.Background())
	}
}

// TestSafetyRace lets writers of all isolation levels and users of the registry race
// with grants that end what blocks them. Once a grant has returned, no more rows of
// lower epochs may appear.
func TestSafetyRace(t *testing.T) {
	t.Parallel()
	const atLeast, writers, procedures = 200, 8, 2
	h := newTestDatabase(t, pgtest.Shared(t), func(c *store.Config) { c.Grace = 20 * time.Millisecond })
	h.server.Exec(t, pgtest.App, h.db, "CREATE TABLE public.entries (epoch bigint)",
		"CREATE TABLE public.busy AS SELECT 1 AS n", batch)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := &race{testDatabase: h, ctx: ctx}
	first := h.grant("0")
	r.term.Store(&first)
	var all sync.WaitGroup
	for range writers {
		all.Go(r.write)
	}
	for range procedures {
		all.Go(r.register)
	}

	reader := h.server.Connect(t, pgtest.App, h.db)
	const below = "SELECT count(*) FROM public.entries WHERE epoch < $1"
	seen := make(map[fencing.Epoch]int)
	slowest := time.Duration(0)
	// On a slow machine, so many grants may leave time for no transaction.
	raced := func() bool { return unfenced || r.committed.Load() > 0 && r.registered.Load() > 0 }
	grants := 0
	for deadline := time.Now().Add(patience); grants < atLeast || !raced() && time.Now().Before(deadline); grants++ {
		pause(40 * time.Millisecond)
		began := time.Now()
		term := h.grant(fmt.Sprint(grants + 1))
		slowest = max(slowest, time.Since(began))
		var n int
		if err := reader.QueryRow(h.ctx(), below, int64(term.Epoch)).Scan(&n); err != nil {
			t.Fatal(err)
		}
		seen[term.Epoch] = n
		r.term.Store(&term)
	}
	ended := map[string]int64{"committed": r.committed.Load(), "refused": r.refused.Load(), "ended": r.lost.Load(), "procedures": r.registered.Load()}
	cancel()
	all.Wait()

	violated := 0
	for epoch, n := range seen {
		var later int
		if err := reader.QueryRow(h.ctx(), below, int64(epoch)).Scan(&later); err != nil {
			t.Fatal(err)
		}
		if later != n {
			violated++
		}
	}
	if violated > 0 {
		t.Errorf("after %d of %d grants more rows of lower epochs were committed", violated, len(seen))
	}
	t.Logf("%d grants, slowest %s; committed %d, refused %d, lost %d; procedures %d, refused %d", grants, slowest,
		r.committed.Load(), r.refused.Load(), r.lost.Load(), r.registered.Load(), r.registryRefusals.Load())
	if unfenced {
		return
	}
	for name, n := range ended {
		if n == 0 {
			t.Errorf("no transaction was %s, so the race proves nothing", name)
		}
	}
	if last := ask[int](h, "SELECT count(*) FROM fencepost.grants"); last != grants+1 {
		t.Errorf("the ledger has %d rows, want %d", last, grants+1)
	}
}

// TestSafetyStaleWriteIsRefusedInEveryIsolation lets a worker write after its successor
// was granted, with a snapshot taken before and after the grant.
func TestSafetyStaleWriteIsRefusedInEveryIsolation(t *testing.T) {
	t.Parallel()
	for _, options := range isolations[:3] {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/snapshot before the grant %t", options.IsoLevel, early), func(t *testing.T) {
				t.Parallel()
				h := newTestDatabase(t, pgtest.Shared(t))
				h.server.Exec(t, pgtest.App, h.db, "CREATE TABLE public.entries (epoch bigint)")
				w := h.worker(h.grant("a"))
				tx, err := w.BeginTx(h.ctx(), options)
				if err != nil {
					t.Fatal(err)
				}
				if early {
					if _, err := tx.Exec(h.ctx(), "SELECT count(*) FROM public.entries"); err != nil {
						t.Fatal(err)
					}
				}
				h.grant("b")
				if err := w.check(h.ctx()); stateOf(err) != fencing.StateSuperseded {
					t.Errorf("the check: %v; want ZF001", err)
				}
				if _, err := tx.Exec(h.ctx(), "INSERT INTO public.entries VALUES (1)"); err == nil {
					t.Error("the write succeeded after its check")
				}
				if err := tx.Commit(h.ctx()); err == nil {
					t.Error("the transaction was committed")
				}
				if n := ask[int](h, "SELECT count(*) FROM public.entries"); n != 0 {
					t.Errorf("%d rows of the old epoch", n)
				}
			})
		}
	}
}

// TestSafetyTheLockOutlivesRollbackToSavepoint checks that the check's lock belongs to
// the whole transaction, even if the check ran within a savepoint.
func TestSafetyTheLockOutlivesRollbackToSavepoint(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t), func(c *store.Config) { c.Grace = time.Minute })
	h.server.Exec(t, pgtest.App, h.db, "CREATE TABLE public.entries (epoch bigint)")
	w := h.worker(h.grant("a"))
	tx, err := w.Begin(h.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(h.ctx(), "SAVEPOINT s"); err != nil {
		t.Fatal(err)
	}
	if err := w.check(h.ctx()); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(h.ctx(), "ROLLBACK TO s; RELEASE s; INSERT INTO public.entries VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	next, granted := h.award("b"), make(chan error, 1)
	go func() {
		_, err := h.fence.Grant(h.ctx(), next)
		granted <- err
	}()
	deadline := time.After(patience)
	for queued := false; !queued; {
		select {
		case err := <-granted:
			t.Fatalf("the grant returned (%v) while a checked transaction was open", err)
		case <-deadline:
			t.Fatal("the grant neither waits nor returns")
		default:
			queued = waiting(h)
		}
	}
	if err := tx.Commit(h.ctx()); err != nil {
		t.Error(err)
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
	if n := ask[int](h, "SELECT count(*) FROM public.entries"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}
