package safety

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/migrations"
)

// evilSQL leaves read-only mode in the ways that 15 allows.
const evilSQL = `
create function evil() returns text language plpgsql volatile as $$begin
  reset transaction_read_only; insert into public.t (v) values ('stale'); return 'x'; end$$;
create function evil_config() returns text language plpgsql volatile as $$begin
  perform set_config('transaction_read_only', 'off', true); insert into public.t (v) values ('stale'); return 'x'; end$$;
create function evil_check(v text) returns boolean language plpgsql volatile as 'begin perform evil(); return true; end';
create domain evil_text as text check (evil_check(value));
create view evil_view as select evil();
create function lower(text) returns text language plpgsql volatile as 'begin return public.evil(); end';
create function badge(c) returns text language sql volatile as 'select public.evil()';
create table kept (a int);
insert into kept values (1);
alter table kept enable row level security;
create policy p on kept using (evil_check('x'));
grant all on kept to app`

// parseTyped is a Parse that names the type of its one parameter.
func parseTyped(sql string, oid int) []byte {
	types := binary.BigEndian.AppendUint32([]byte{0, 1}, uint32(oid))
	return wiretest.Msg('P', []byte{0}, append([]byte(sql), 0), types)
}

// readers open connections that may only read.
var readers = map[string]func(*fixture.Cluster) *wiretest.Conn{
	"follower": func(s *fixture.Cluster) *wiretest.Conn { return s.Connect("follower") },
	"unfenced": func(s *fixture.Cluster) *wiretest.Conn {
		c, _ := wiretest.Connect(s.T, s.Addr, "user", pgtest.App, "database", s.DB)
		return c
	},
}

// TestSafetyReadersCannotLeaveReadOnlyMode: nothing that a follower sends, or a
// connection without a resource, writes, though a function can undo read-only mode on 15.
func TestSafetyReadersCannotLeaveReadOnlyMode(t *testing.T) {
	t.Parallel()
	for who, connect := range readers {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			cannotLeaveReadOnlyMode(t, connect)
		})
	}
}

func cannotLeaveReadOnlyMode(t *testing.T, connect func(*fixture.Cluster) *wiretest.Conn) {
	s := fixture.NewCluster(t, pgtest.Shared(t))
	s.Exec(evilSQL)
	s.Leader("leader")
	domain := s.Number("select 'evil_text'::regtype::oid::int")
	for _, sql := range []string{
		"select evil()", "select evil_config()", "select * from evil_view", "select 'x'::evil_text", "select '{x}'::evil_text[]",
		"select lower('X')", "select c.badge from c", "select * from kept", "values (evil())", "select 1 where evil() = 'x'",
		"with x as (select evil()) select * from x", "explain select lower('x')", "copy (select evil()) to stdout",
	} {
		t.Run(sql, func(t *testing.T) {
			s := s.With(t)
			c := connect(s)
			for _, parts := range [][][]byte{
				{wiretest.Query(sql)},
				{wiretest.Run(sql), wiretest.Sync()},
				{wiretest.Query("select * from c; " + sql)},
				{wiretest.Query("begin; savepoint a; " + sql)},
				{wiretest.Query("set search_path = public, pg_catalog; " + sql)},
				{wiretest.Query("rollback; begin; reset transaction_read_only; " + sql)},
			} {
				fixture.Ask(c, parts...) // an error, or, from 16 on, what read-only mode makes of it
				fixture.Ask(c, wiretest.Query("rollback"))
			}
			if s.Number("select count(*) from t") != 0 {
				t.Error("it wrote")
			}
		})
	}
	c := connect(s)
	fixture.Ask(c, parseTyped("select $1", domain), wiretest.Bind("", "", "x"), wiretest.Execute("", 0), wiretest.Sync())
	if s.Number("select count(*) from t") != 0 {
		t.Error("it wrote by a parameter's type")
	}
}

// TestReadersReadWhatIsProven: on each version plain reads pass, a table just made among
// them, in each way that they can be sent.
func TestReadersReadWhatIsProven(t *testing.T) {
	t.Parallel()
	for who, connect := range readers {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			readWhatIsProven(t, connect)
		})
	}
}

// TestADatabaseWithoutAFenceIsRead: a connection without a resource reads what it likes where
// there is no fence to protect, and writes nothing.
func TestADatabaseWithoutAFenceIsRead(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		p := fixture.NewProxy(t, pg, nil)
		db := pg.EmptyDatabase(t)
		pg.Exec(t, pgtest.Superuser, db, "create table t (v int)", "grant all on t to public",
			"create function own() returns int language plpgsql volatile as 'begin return (select count(*) from public.t); end'")
		c, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db)
		fixture.MustPass(t, c, wiretest.Query("select own()"))
		fixture.MustPass(t, c, wiretest.Run("select own()"), wiretest.Sync())
		fixture.MustFail(t, c, "ZF002", wiretest.Query("insert into t values (1)"))
	})
}

// TestAFenceMadeLaterCountsForOldConnections: a connection without a resource that was opened
// before the schema was made is restricted like others soon afterwards.
func TestAFenceMadeLaterCountsForOldConnections(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p := fixture.NewProxy(t, pg, nil)
	s := &fixture.Cluster{Proxy: p, T: t, DB: pg.EmptyDatabase(t)}
	s.Admin = pg.Connect(t, pgtest.Superuser, s.DB)
	s.Exec("create table t (v text); create table c (v text); grant all on t, c to public; " + evilSQL)
	c, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", s.DB)
	fixture.Ask(c, wiretest.Query("select evil()")) // writes on 15, where there is nothing to protect
	if _, err := migrations.Up(t.Context(), s.Admin, migrations.Options{Control: pgtest.Control}); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, "a read that leaves read-only mode writes nothing", func() bool {
		s.Exec("delete from t")
		fixture.Ask(c, wiretest.Query("select evil()"))
		return s.Number("select count(*) from t") == 0
	})
	for range 3 {
		fixture.Ask(c, wiretest.Run("select evil()"), wiretest.Sync())
		fixture.Ask(c, wiretest.Query("begin; select v from c; select evil_config(); commit"))
		fixture.Ask(c, wiretest.Query("rollback"))
	}
	if s.Number("select count(*) from t") != 0 {
		t.Error("it wrote")
	}
	fixture.MustPass(t, c, wiretest.Query("select v from c"))
}

func readWhatIsProven(t *testing.T, connect func(*fixture.Cluster) *wiretest.Conn) {
	s := fixture.NewCluster(t, pgtest.Shared(t))
	s.Leader("leader")
	c := connect(s)
	s.Exec("create table fresh (a int); grant all on fresh to app")
	for _, sql := range []string{
		"select * from fresh", "select * from c where v like 'o%' and id = 1", "select count(*), max(v) from c group by id having count(*) > 0",
		"with x as (select * from c) select x.v, now() from x join t using (id)", "values (1)", "table c", "explain select * from c",
		"copy c to stdout", "copy (select v from c) to stdout", "select * from information_schema.tables", "select '\u00e4'", `select 'a\b', E'\n'`,
	} {
		fixture.MustPass(t, c, wiretest.Query(sql))
		fixture.MustPass(t, c, wiretest.Run(sql), wiretest.Sync())
		fixture.MustPass(t, c, wiretest.Query("begin; savepoint a; "+sql+"; release a; commit"))
	}
	fixture.MustPass(t, c, wiretest.Query("begin"))
	fixture.MustPass(t, c, wiretest.Query("declare k cursor for select * from c"))
	fixture.MustPass(t, c, wiretest.Query("fetch all from k"))
	fixture.MustPass(t, c, wiretest.Execute("k", 0), wiretest.Sync())
	fixture.MustPass(t, c, wiretest.Query("close k"))
	fixture.MustPass(t, c, wiretest.Query("commit"))
	fixture.MustPass(t, c, wiretest.Parse("s", "select v from c where id = $1"), wiretest.Sync())
	fixture.MustPass(t, c, wiretest.Bind("", "s", "1"), wiretest.Execute("", 0), wiretest.Sync())
}

// column is the first column of the last row in a reply.
func column(all []wiretest.Message) string {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Type == 'D' {
			return string(all[i].Body[6:])
		}
	}
	return ""
}

// TestWhatLooksLikeAReadIsExplained: its refusal says what makes it count as a write.
func TestWhatLooksLikeAReadIsExplained(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	for text, why := range map[string]string{
		"select pg_terminate_backend(1)":       "pg_terminate_backend: it ends the work of another session",
		"select * from c for update":           "it locks rows",
		"explain analyze delete from c":        "EXPLAIN ANALYZE executes",
		"with d as (delete from c) select 1":   "it modifies rows",
		"delete from c where id in (select 1)": "",
	} {
		all := fixture.MustFail(t, s.Connect("follower"), "ZF002", wiretest.Query(text))
		if said := strings.Contains(all[0].Fields()['H'], "This statement counts as one that writes: "+why); said != (why != "") {
			t.Errorf("%s is refused by %v", text, all)
		}
	}
}

// TestRefusedReadsAreNotCalledWrites: on 15 a read that is not proven is
// refused as by one who does not lead.
func TestRefusedReadsAreNotCalledWrites(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	if s.Number("select current_setting('server_version_num')::int / 10000") >= 16 {
		fixture.MustPass(t, s.Connect("follower"), wiretest.Query("select pg_try_advisory_xact_lock(1)"))
		return
	}
	all := fixture.MustFail(t, s.Connect("follower"), "ZF002", wiretest.Query("select pg_try_advisory_xact_lock(1)"))
	if f := all[0].Fields(); !strings.Contains(f['M'], "does not lead") || !strings.Contains(f['H'], "function pg_try_advisory_xact_lock is volatile") {
		t.Errorf("refused by %v", all)
	}
	write := fixture.MustFail(t, s.Connect("follower"), "ZF002", wiretest.Query("delete from c"))
	if f := write[0].Fields(); strings.Contains(f['H'], "proven") {
		t.Errorf("a write is refused by %v", write)
	}
}
