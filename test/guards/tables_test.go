package guards

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

// besides are tables that anybody may write, and ways from them to the guarded one.
const besides = `
create table beat (worker text primary key, n int default 0);
create table queue (id int generated always as identity primary key, v text);
create sequence ticks;
create function work(v text) returns void language plpgsql as 'begin insert into queue (v) values (v); end';
create procedure works(v text) language plpgsql as $$begin insert into queue (v) values (v); commit; insert into queue (v) values (v); end$$;
create function spreads() returns trigger language plpgsql as 'begin insert into t (v) values (new.v); return new; end';
create table spread (v text);
create trigger spreads after insert on spread for each row execute function spreads();
create view shown as select v from t;
create table ruled (v text);
create rule ruled as on insert to ruled do also insert into t (v) values (new.v);
grant all on all tables in schema public to app; grant all on all sequences in schema public to app;
alter table queue owner to app`

// newLeftToGuards makes a cluster with a resource of which only the guard of the table t
// refuses those who do not lead. Worker w leads.
func newLeftToGuards(t *testing.T, pg *pgtest.Server) *fixture.Cluster {
	t.Helper()
	c := fixture.NewCluster(t, pg, func(cfg *proxy.Config) {
		cfg.Policy = func(r fencing.JoinRequest) proxy.SessionPolicy {
			if r.Resource != "r" {
				return proxy.SessionPolicy{}
			}
			return proxy.SessionPolicy{Fence: proxy.FenceTables}
		}
	})
	c.Exec(besides + `; create procedure batch(v text) language plpgsql as $$begin
		insert into queue (v) values (v); commit; insert into t (v) values (v); end$$`)
	if _, err := c.TryJoin(t.Context(), "w"); pgtest.StateOf(err) != fencing.StateNoFence { // it registers the resource
		t.Fatalf("a connection before there is a guard: %v, want ZF004", err)
	}
	add(c, "public.t")
	_ = c.Join("w")
	c.Candidacy(c.DB, "r", "w").Grant()
	if !fencing.Checking {
		c.Exec(toothless)
	}
	return c
}

// unguarded are statements of a follower that touch no guarded row.
var unguarded = []string{
	"insert into beat values ('f') on conflict (worker) do update set n = beat.n + 1",
	"update beat set n = n + 1 where worker = 'f'",
	"with gone as (delete from queue returning v) insert into queue (v) select v from gone",
	"select work('a function')",
	"call works('a procedure that commits')",
	"do $$begin execute 'insert into queue (v) values (''dynamic'')'; commit; insert into queue (v) values ('again'); end$$",
	"begin; insert into queue (v) values ('a'); insert into queue (v) values ('b'); commit",
	"begin isolation level serializable", "savepoint s", "insert into queue (v) values ('c')", "release s", "commit",
	"select nextval('ticks')", "create temp table mine (v text)", "insert into mine values ('x')", "drop table mine",
	"vacuum queue", "select pg_advisory_lock(7)", "select pg_advisory_unlock_all()", "listen jobs", "notify jobs, 'done'",
	"prepare p as insert into queue (v) values ($1)", "execute p('prepared')", "deallocate p",
	"update t set v = 'nobody' where false", "select v from t for update", "discard all",
}

// guarding are statements that write a row of the guarded table, however deep inside.
var guarding = []string{
	"insert into t (v) values ('x')",
	"update t set v = 'late'",
	"delete from t",
	"truncate t",
	"with x as (insert into t (v) values ('x') returning v) select v from x",
	"insert into shown values ('x')",
	"insert into ruled values ('x')",
	"insert into spread values ('x')",
	"select wr('x')",
	"do $$begin execute 'insert into t (v) values (''x'')'; end$$",
	"insert into beat values ('late'); insert into t (v) values ('x')",
}

// TestSafetyOnlyGuardedTablesRefuseAFollower has a follower write what no guard protects, and
// every way to a row that one does. The guard alone refuses those, and their transactions.
func TestSafetyOnlyGuardedTablesRefuseAFollower(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		c := newLeftToGuards(t, pg)
		c.Exec("alter table t disable trigger all; insert into t (v) values ('kept'); alter table t enable trigger all; alter table t enable always trigger \"~fencepost\"; alter table t enable always trigger \"~fencepost_truncate\"")
		conn := c.Join("f")
		for _, simple := range []bool{true, false} {
			for _, sql := range unguarded {
				many := strings.HasPrefix(sql, "begin;")
				if err := exec(t.Context(), conn, sql, simple || many); err != nil {
					t.Errorf("%s: %v", sql, err)
				}
			}
			for _, sql := range guarding {
				many := strings.Contains(sql, "; insert")
				var pg *pgconn.PgError
				switch err := exec(t.Context(), conn, sql, simple || many); {
				case !errors.As(err, &pg), pg.Code != fencing.StateNotLeader, pg.Severity != "ERROR":
					t.Errorf("%s: %v, want ZF002", sql, err)
				case !strings.HasPrefix(pg.Message, "worker f does not lead resource r: table \"public.t\" is guarded") || !strings.Contains(pg.Message, "is held by worker w"):
					t.Errorf("%s: %s", sql, pg.Message)
				case strings.Contains(pg.Where, "fencepost"):
					t.Errorf("%s: context %q", sql, pg.Where)
				}
			}
		}
		if n := c.Number("select count(*) from t where v = 'kept' and fence_epoch is null") - c.Number("select count(*) from t") + c.Number("select count(*) from beat where worker = 'late'"); n != 0 || c.Number("select count(*) from t") != 1 {
			t.Errorf("the guarded table, or what was written along with it, has changed")
		}
		if n := c.Number("select n from beat"); n != 3 {
			t.Errorf("%d heartbeats, want 3", n)
		}
		if audited := len(c.Audited(t, c.DB)); audited != 2*len(guarding) && fencing.Checking {
			t.Errorf("%d refusals are recorded, want %d", audited, 2*len(guarding))
		}
	})
}

// TestABlockOfBoth: what a follower wrote before its refused statement can be kept by a
// savepoint. A procedure keeps what it has committed.
func TestABlockOfBoth(t *testing.T) {
	t.Parallel()
	pg := pgtest.SharedMajor(t, 18)
	c := newLeftToGuards(t, pg)
	conn := c.Join("f")
	for _, sql := range []string{"begin", "insert into queue (v) values ('kept')", "savepoint s"} {
		if err := exec(t.Context(), conn, sql, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := exec(t.Context(), conn, insert, false); pgtest.StateOf(err) != fencing.StateNotLeader {
		t.Fatalf("%v, want ZF002", err)
	}
	for _, sql := range []string{"rollback to s", "commit"} {
		if err := exec(t.Context(), conn, sql, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := exec(t.Context(), conn, "call batch('by the procedure')", true); pgtest.StateOf(err) != fencing.StateNotLeader {
		t.Fatalf("%v, want ZF002", err)
	}
	if queued, rows := c.Number("select count(*) from queue"), c.Number("select count(*) from t"); queued != 2 || rows != 0 {
		t.Errorf("%d rows in the queue and %d in the guarded table, want 2 and 0", queued, rows)
	}
}

// TestSafetyALeaderIsStillChecked: a client that was told that its worker leads is refused in
// front, wherever it writes, once another has been granted an epoch. Its next connection is a
// follower's.
func TestSafetyALeaderIsStillChecked(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		c := newLeftToGuards(t, pg)
		for _, sql := range []string{"insert into queue (v) values ('late')", insert, "do $$begin insert into queue (v) values ('late'); end$$"} {
			conn := c.Join("w")
			err := exec(t.Context(), conn, insert, true)
			if pgtest.StateOf(err) == fencing.StateStartOver { // and is told
				err = exec(t.Context(), conn, insert, true)
			}
			if err != nil {
				t.Fatal(err)
			}
			before := c.Number("select count(*) from t")
			c.Supersede()
			if err := exec(t.Context(), conn, sql, false); pgtest.StateOf(err) != fencing.StateSuperseded || !conn.IsClosed() {
				t.Errorf("%s: %v, want ZF001 and the end of the connection", sql, err)
			}
			var again *pgx.Conn
			fixture.Eventually(t, "the worker's connections have ended, and it connects again", func() (connected bool) {
				again, err = c.TryJoin(t.Context(), "w")
				return err == nil
			})
			t.Cleanup(func() { _ = again.Close(context.Background()) })
			if err := exec(t.Context(), again, "insert into beat values ('w') on conflict (worker) do update set n = beat.n + 1", false); err != nil {
				t.Errorf("a follower's heartbeat: %v", err)
			}
			if n := c.Number("select count(*) from t") - before + c.Number("select count(*) from queue"); n != 0 {
				t.Errorf("%s: %d rows of a superseded worker", sql, n)
			}
			c.Candidacy(c.DB, "r", "w").Grant()
		}
	})
}

// TestWithoutAGuardNothingIsLeftToGuards: connections are refused while no table is guarded,
// and if the last guard is removed, those that exist are refused like any follower.
func TestWithoutAGuardNothingIsLeftToGuards(t *testing.T) {
	t.Parallel()
	c := newLeftToGuards(t, pgtest.Shared(t))
	conn := c.Join("f")
	if err := exec(t.Context(), conn, "insert into queue (v) values ('f')", true); err != nil {
		t.Fatal(err)
	}
	if _, err := guard.Remove(t.Context(), c.PG.Connect(t, pgtest.Superuser, c.DB), "public.t"); err != nil {
		t.Fatal(err)
	}
	_, err := c.TryJoin(t.Context(), "late")
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != fencing.StateNoFence || !strings.Contains(refused.Hint, "fencepost guard add --resource r") {
		t.Fatalf("a connection without any guard: %v, want ZF004 and how to guard a table", err)
	}
	c.Candidacy(c.DB, "r", "f").CheckSuperseded(t.Context()) // as its election does when it sees the change
	if err := exec(t.Context(), conn, "insert into queue (v) values ('f')", true); pgtest.StateOf(err) != fencing.StateNotLeader {
		t.Errorf("a write of the follower: %v, want ZF002", err)
	}
}

// TestSafetyGuardsAgainstFollowers has workers race with grants on a resource that leaves its
// followers to guards. Each stamps its rows itself with the epoch that it was told, 0 as a
// follower.
func TestSafetyGuardsAgainstFollowers(t *testing.T) {
	t.Parallel()
	c := newLeftToGuards(t, pgtest.Shared(t))
	c.Exec("create table entries (claimed bigint); create table beats (worker text); grant all on entries, beats to app")
	add(c, "public.entries")
	ctx, cancel := context.WithCancel(t.Context())
	var wrote, beaten, refused atomic.Int64
	write := func(worker string) {
		for ctx.Err() == nil {
			conn, err := c.TryJoin(ctx, worker)
			if err != nil {
				continue
			}
			for ctx.Err() == nil && !conn.IsClosed() {
				if exec(ctx, conn, "insert into beats values ('"+worker+"')", true) == nil {
					beaten.Add(1)
				}
				told := conn.PgConn().ParameterStatus("fencepost.epoch")
				pause(5 * time.Millisecond) // another may be granted an epoch meanwhile
				switch err := exec(ctx, conn, "begin; select pg_sleep(0.002); insert into entries values ("+told+"); commit", true); {
				case err == nil:
					wrote.Add(1)
				default:
					refused.Add(1)
					_ = exec(ctx, conn, "rollback", true)
				}
			}
			_ = conn.Close(context.Background())
		}
	}
	var all sync.WaitGroup
	workers := []string{"a", "b", "c"}
	for _, worker := range workers {
		_ = c.Join(worker)
		all.Go(func() { write(worker) })
	}
	stop := sync.OnceFunc(func() { cancel(); all.Wait() })
	defer stop()
	late := lateEntries(c)
	for i := 0; late.Grants() < 60 && ctx.Err() == nil; i++ {
		before := beaten.Load()
		pause(30 * time.Millisecond)
		fixture.Eventually(t, "a worker writes its heartbeat between two grants", func() bool { return beaten.Load() > before })
		if _, err := c.Candidacy(c.DB, "r", workers[i%len(workers)]).TryGrant(); err != nil {
			c.Supersede() // that candidacy was superseded, and has not ended yet
		}
		late.Granted(epoch(c))
	}
	stop()
	for e, n := range late.Rows() {
		t.Errorf("%d rows of epochs before %d appeared after its grant", n, e)
	}
	if n := c.Number("select count(*) from entries where fence_epoch is distinct from claimed"); n > 0 {
		t.Errorf("%d rows were written under another epoch than their worker was told", n)
	}
	if wrote.Load() == 0 || refused.Load() == 0 {
		t.Error("the workers did not race with the grants")
	}
	t.Logf("%d writes, %d refused, %d heartbeats, %d grants", wrote.Load(), refused.Load(), beaten.Load(), late.Grants())
}

// TestTheExampleOfAFollower runs the statements of a follower in docs/guards.md. The comment
// behind each is its tag, or the SQLSTATE of its error.
func TestTheExampleOfAFollower(t *testing.T) {
	t.Parallel()
	example := fixture.Example(t, "guards.md", "A follower:\n\n")
	c := newLeftToGuards(t, pgtest.Shared(t))
	c.Exec(`create table heartbeats (worker text, at timestamptz); create table jobs (id int); insert into jobs values (1);
		create table invoices (id int, state text); insert into invoices values (7, 'open'); grant all on heartbeats, jobs, invoices to app`)
	add(c, "public.invoices")
	fixture.Play(t, c.Connect("w2"), example)
	if beats, rows := c.Number("select count(*) from heartbeats"), c.Number("select count(*) from invoices where state = 'open'"); beats != 2 || rows != 1 || len(example) != 9 {
		t.Errorf("%d heartbeats and %d rows after %d statements, want 2 and 1 after 9", beats, rows, len(example))
	}
}
