package fence_test

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
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// race is the writers of one race and the outcome of their transactions.
type race struct {
	*fencetest.Database
	ctx                          context.Context
	term                         atomic.Pointer[fencing.Term]
	committed, refused, lost     atomic.Int64
	registered, registryRefusals atomic.Int64
}

// pause sleeps for a random time up to d, to vary the interleaving.
func pause(d time.Duration) { time.Sleep(rand.N(d)) }

// write runs transactions on a backend that it registers under the term that is current then, until a grant has ended
// that backend.
func (r *race) write() {
	for r.ctx.Err() == nil {
		conn, err := pgx.Connect(r.ctx, r.Server.DSN(pgtest.App, r.DB))
		if err != nil {
			continue
		}
		w := &fencetest.Worker{Conn: conn, Fence: r.Fence, Term: *r.term.Load()}
		if err = r.Enter(w); err != nil {
			r.count(err)
		}
		for err == nil && r.ctx.Err() == nil && !conn.IsClosed() {
			pause(10 * time.Millisecond)
			r.count(r.transact(w))
		}
		_ = conn.Close(context.Background())
	}
}

func (r *race) count(err error) {
	switch fencetest.StateOf(err) {
	case "":
		r.committed.Add(1)
	case fencing.StateSuperseded:
		r.refused.Add(1)
	default:
		r.lost.Add(1)
	}
}

// isolations are those of the transactions.
var isolations = []pgx.TxOptions{{IsoLevel: pgx.ReadCommitted}, {IsoLevel: pgx.RepeatableRead}, {IsoLevel: pgx.Serializable}}

func (r *race) transact(w *fencetest.Worker) error {
	tx, err := w.BeginTx(r.ctx, isolations[rand.IntN(3)])
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	steps := []string{"SAVEPOINT s", "INSERT INTO public.entries VALUES (-1)", "ROLLBACK TO s", "RELEASE s"}
	for _, sql := range steps {
		if _, err := tx.Exec(r.ctx, sql); err != nil {
			return err
		}
		if rand.IntN(8) == 0 {
			pause(60 * time.Millisecond)
		}
	}
	if _, err := tx.Exec(r.ctx, "INSERT INTO public.entries VALUES ($1)", int64(w.Term.Epoch)); err != nil {
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
		conn, err := pgx.Connect(r.ctx, r.Server.DSN(pgtest.App, r.DB))
		if err != nil {
			continue
		}
		for r.ctx.Err() == nil && !conn.IsClosed() {
			w := &fencetest.Worker{Conn: conn, Fence: r.Fence, Term: *r.term.Load()}
			var note fencing.Entry
			if !fencetest.Unfenced {
				if note, err = r.Fence.RegisterBackend(r.ctx, w.Request()); err != nil {
					r.registryRefusals.Add(1)
					continue
				}
			}
			if _, err := conn.Exec(r.ctx, fmt.Sprintf("CALL public.batch(%d, 5, 0.005)", w.Term.Epoch)); err == nil {
				r.registered.Add(1)
			}
			if !fencetest.Unfenced {
				_ = r.Fence.UnregisterBackend(r.ctx, note)
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
	const atLeast, writers, procedures = 100, 8, 2
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace = 20 * time.Millisecond })
	h.Server.Exec(t, pgtest.App, h.DB, "CREATE TABLE public.entries (epoch bigint)",
		"CREATE TABLE public.busy AS SELECT 1 AS n", batch)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := &race{Database: h, ctx: ctx}
	first := h.Grant("0")
	r.term.Store(&first)
	var all sync.WaitGroup
	for range writers {
		all.Go(r.write)
	}
	for range procedures {
		all.Go(r.register)
	}

	reader := h.Server.Connect(t, pgtest.App, h.DB)
	const below = "SELECT count(*) FROM public.entries WHERE epoch < $1"
	seen := make(map[fencing.Epoch]int)
	slowest := time.Duration(0)
	// On a slow machine, so many grants may leave time for no transaction.
	raced := func() bool { return fencetest.Unfenced || r.committed.Load() > 0 && r.registered.Load() > 0 }
	grants := 0
	for deadline := time.Now().Add(fixture.Patience); grants < atLeast || !raced() && time.Now().Before(deadline); grants++ {
		longest := 40 * time.Millisecond
		if grants >= atLeast { // they leave too little time for the transactions
			longest = time.Second
		}
		pause(longest)
		began := time.Now()
		term := h.Grant(fmt.Sprint(grants + 1))
		slowest = max(slowest, time.Since(began))
		var n int
		if err := reader.QueryRow(h.Ctx(), below, int64(term.Epoch)).Scan(&n); err != nil {
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
		if err := reader.QueryRow(h.Ctx(), below, int64(epoch)).Scan(&later); err != nil {
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
	if fencetest.Unfenced {
		return
	}
	for name, n := range ended {
		if n == 0 {
			t.Errorf("no transaction was %s, so the race proves nothing", name)
		}
	}
	if last := fencetest.Ask[int](h, "SELECT count(*) FROM fencepost.grants"); last != grants+1 {
		t.Errorf("the ledger has %d rows, want %d", last, grants+1)
	}
}
