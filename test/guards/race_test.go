package guards

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
	"github.com/fencepost/fencepost/internal/audit/evidence"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// directWriters race with grants: they write past the proxy, under claims of their own.
type directWriters struct {
	c                        *fixture.Cluster
	ctx                      context.Context
	current                  atomic.Int64 // the epoch that they claim
	committed, refused, lost atomic.Int64
}

func pause(d time.Duration) { time.Sleep(rand.N(d)) }

func (w *directWriters) write() {
	for w.ctx.Err() == nil {
		conn, err := pgx.Connect(w.ctx, w.c.PG.DSN(pgtest.App, w.c.DB))
		if err != nil {
			continue
		}
		for w.ctx.Err() == nil && !conn.IsClosed() {
			switch pgtest.StateOf(w.transact(conn)) {
			case "":
				w.committed.Add(1)
			case fencing.StateSuperseded:
				w.refused.Add(1)
			default:
				w.lost.Add(1)
			}
		}
		_ = conn.Close(context.Background())
	}
}

// transact writes a row, with savepoints that might lose the lock of the guard.
func (w *directWriters) transact(conn *pgx.Conn) error {
	e := w.current.Load()
	pause(20 * time.Millisecond) // others may be granted an epoch meanwhile
	if _, err := conn.Exec(w.ctx, "select fencepost.claim('r', $1)", e); err != nil {
		return err
	}
	tx, err := conn.Begin(w.ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	steps := []string{"savepoint s", "insert into entries values (-1)", "rollback to s", "release s"}
	if rand.IntN(2) == 0 {
		steps = nil
	}
	for _, sql := range append(steps, fmt.Sprintf("insert into entries values (%d)", e)) {
		if _, err := tx.Exec(w.ctx, sql); err != nil {
			return err
		}
	}
	pause(10 * time.Millisecond)
	return tx.Commit(w.ctx)
}

// lateEntries finds rows of the table entries that come late, by their claims.
func lateEntries(c *fixture.Cluster) *fixture.Late[int] {
	return fixture.NewLate(func(e int) int { return c.Number("select count(*) from entries where claimed < $1", e) })
}

// TestSafetyDirectWriters has sessions past the proxy write under claims of their own, while
// others are granted epochs: the guard alone fences them.
func TestSafetyDirectWriters(t *testing.T) {
	t.Parallel()
	c := fixture.NewCluster(t, pgtest.Shared(t))
	c.Exec("create table entries (claimed bigint); grant all on entries to app")
	c.GrantOn("r", "w")
	add(c, "public.entries")
	mayClaim(c)
	if !fencing.Checking {
		c.Exec(fmt.Sprintf(unregistered, c.Candidacy(c.DB, "r", "w").FenceID()))
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &directWriters{c: c, ctx: ctx}
	w.current.Store(int64(epoch(c)))
	var all sync.WaitGroup
	for range 4 {
		all.Go(w.write)
	}
	stop := sync.OnceFunc(func() { cancel(); all.Wait() })
	defer stop()
	late := lateEntries(c)
	for range 100 {
		before := w.committed.Load()
		pause(30 * time.Millisecond)
		fixture.Eventually(t, "a writer commits between two grants", func() bool { return w.committed.Load() > before })
		c.Supersede()
		e := epoch(c)
		late.Granted(e)
		w.current.Store(int64(e))
	}
	stop()
	t.Logf("%d transactions committed, %d refused, %d lost; %d grants", w.committed.Load(), w.refused.Load(), w.lost.Load(), late.Grants())
	if w.refused.Load() == 0 && fencing.Checking {
		t.Errorf("the writers did not race with the grants")
	}
	if n := c.Number("select count(*) from entries where fence_epoch is distinct from claimed"); n > 0 && fencing.Checking {
		t.Errorf("%d rows have another stamp than their claim", n)
	}
	rows := late.Rows()
	audited(c, len(rows) > 0)
	if len(rows) > 0 {
		t.Errorf("rows of older epochs appeared after grants had returned, by epoch: %v", rows)
	}
}

// audited verifies the stamped rows by the ledger, as fencepost audit --verify does: it must find
// something if rows have come late, and nothing otherwise.
func audited(c *fixture.Cluster, late bool) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	report, err := evidence.Verify(ctx, c.PG.Connect(c.T, pgtest.Superuser, c.DB), evidence.Options{Table: "public.entries"})
	if err != nil {
		c.T.Fatal(err)
	}
	c.T.Logf("the audit: %+v, %d findings", *report.Tables[0], len(report.Findings))
	if found := report.Tables[0].Rows > 0 && len(report.Findings) > 0; found != late {
		c.T.Errorf("rows came late: %v, and the audit says %v", late, report.Err())
	}
}

// unregistered makes claims settings, and has the trigger compare them with the epoch, for the build that fences
// nothing.
const unregistered = `create or replace function fencepost.claim(resource text, epoch bigint) returns void language plpgsql as $$
begin
	perform set_config('fencepost.claim_%[1]d', epoch::text, false);
end$$;
create or replace function fencepost.guard_%[1]d_fence_epoch() returns trigger language plpgsql security definer as $$
declare claim text := current_setting('fencepost.claim_%[1]d', true);
begin
	if ((select epoch from fencepost.fence where id = %[1]d)::text = claim) is not true then
		perform fencepost.refuse(%[1]d, tg_argv, tg_relid);
	end if;
	new.fence_epoch := claim;
	return new;
end$$`
