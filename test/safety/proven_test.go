package safety

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/migrations"
	"github.com/fencepost/fencepost/proxy"
)

// evilSQL leaves read-only mode in the ways that 14 and 15 allow.
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

// provenCluster is a cluster whose resource lets proven reads of its leader go
// unchecked.
func provenCluster(t *testing.T, pg *pgtest.Server) *fixture.Cluster {
	t.Helper()
	p := fixture.NewProxy(t, pg, func(c *proxy.Config) {
		c.Policy = func(r fencing.JoinRequest) proxy.SessionPolicy {
			return proxy.SessionPolicy{ProvenReads: r.Resource == "r"}
		}
	})
	s := fixture.NewClusterOn(t, p)
	s.Exec(evilSQL)
	return s
}

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
// connection without a resource, writes, though a function can undo read-only mode on 14
// and 15.
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
	fixture.Ask(c, wiretest.Query("select evil()")) // writes on 14 and 15, where there is nothing to protect
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

// sequenceLocks asks how many locks of the fence's sequence the asking backend holds. It
// is itself a proven read.
func sequenceLocks(s *fixture.Cluster) string { return sequenceLocksOf(s, "leader") }

func sequenceLocksOf(s *fixture.Cluster, worker string) string {
	return fmt.Sprintf("select count(*) from pg_locks where pid = pg_backend_pid() and relation = 'fencepost.epoch_%d'::regclass",
		s.Candidacy(s.DB, "r", worker).FenceID())
}

// awaitProofs waits until the worker's proven reads go unchecked: until the database's
// names have been read, which takes a while.
func awaitProofs(s *fixture.Cluster, c *wiretest.Conn, worker string) {
	s.T.Helper()
	fixture.Eventually(s.T, "proven reads go unchecked", func() bool {
		return column(fixture.MustPass(s.T, c, wiretest.Query(sequenceLocksOf(s, worker)))) == "0"
	})
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

// TestProvenReadsOfLeadersGoUnchecked: alone in their transaction they do, and
// everything else is checked as ever.
func TestProvenReadsOfLeadersGoUnchecked(t *testing.T) {
	eachVersion(t, func(t *testing.T, pg *pgtest.Server) {
		s := provenCluster(t, pg)
		c := s.Leader("leader")
		held := sequenceLocks(s)
		for _, x := range []struct {
			name  string
			parts [][]byte
			want  string
		}{
			{"simple", [][]byte{wiretest.Query(held)}, "0"},
			{"extended", [][]byte{wiretest.Run(held), wiretest.Sync()}, "0"},
			{"behind another read", [][]byte{wiretest.Run("select * from c"), wiretest.Run(held), wiretest.Sync()}, "0"},
			{"several in a text", [][]byte{wiretest.Query("select 1; " + held)}, "1"},
			{"in a block", [][]byte{wiretest.Query("begin; " + held + "; commit")}, "1"},
			{"behind a write", [][]byte{wiretest.Run("insert into t (v) values ('led')"), wiretest.Run(held), wiretest.Sync()}, "1"},
			{"in front of a write", [][]byte{wiretest.Run("select * from c"), wiretest.Run("insert into t (v) values ('led')"), wiretest.Run(held), wiretest.Sync()}, "1"},
			{"in a block of extended messages", [][]byte{wiretest.Run("begin"), wiretest.Run(held), wiretest.Run("commit"), wiretest.Sync()}, "1"},
			{"not proven", [][]byte{wiretest.Query(held + " and wr('led') = 'led'")}, "1"},
		} {
			fixture.MustPass(t, c, x.parts...) // a Query is looked at when it comes again
			look := func() string { return column(fixture.MustPass(t, c, x.parts...)) }
			if x.want == "0" { // on a busy machine, the names may be too old at times
				fixture.Eventually(t, x.name+": the read goes unchecked", func() bool { return look() == "0" })
				continue
			}
			got := look()
			if x.name == "not proven" { // it may not have counted before it wrote
				got = "1"
			}
			if got != x.want {
				t.Errorf("%s: holds the fence %s times, want %s", x.name, got, x.want)
			}
		}
		number := 100
		look := func() string {
			number++
			return column(fixture.MustPass(t, c, wiretest.Query(fmt.Sprintf("select %d, * from (%s) x", number, held))))
		}
		if got := look(); !strings.HasSuffix(got, "1") {
			t.Errorf("a text that is new: holds the fence %q times", got)
		}
		for range 2 { // texts that differ by a number count as one that comes again
			fixture.Eventually(t, "a text that differs by a number goes unchecked", func() bool { return strings.HasSuffix(look(), "0") })
		}
		fixture.MustPass(t, c, wiretest.Query("begin"))
		if got := column(fixture.MustPass(t, c, wiretest.Query(held))); got != "1" {
			t.Errorf("in a block of its own: %s", got)
		}
		fixture.MustPass(t, c, wiretest.Query("commit"))
		if s.Rows("led") == 0 {
			t.Error("the leader wrote nothing")
		}
	})
}

// TestSafetyProvenReadsFenceNothingElse: a leader that does not know that it is
// one no more still reads what is proven; all else is refused, also behind a
// proven read in one batch.
func TestSafetyProvenReadsFenceNothingElse(t *testing.T) {
	eachVersion(t, func(t *testing.T, pg *pgtest.Server) {
		s := provenCluster(t, pg)
		for i, parts := range [][][]byte{
			{wiretest.Query("insert into t (v) values ('stale')")},
			{wiretest.Run("select * from c"), wiretest.Run("insert into t (v) values ('stale')"), wiretest.Sync()},
			{wiretest.Query("select * from c; insert into t (v) values ('stale')")},
			{wiretest.Query("select wr('stale')")},
			{wiretest.Query("select * from c; select wr('stale')")},
			{wiretest.Query("select * from vw")},
			{wiretest.Query("select lower('x')")},
			{wiretest.Query("set search_path = public, pg_catalog; select 1 + 2")},
			{wiretest.Query("select 'x'::wd")},
			{wiretest.Run("select c.badge from c"), wiretest.Sync()},
			{parseTyped("select $1", s.Number("select 'wd'::regtype::oid::int")), wiretest.Bind("", "", "stale"), wiretest.Execute("", 0), wiretest.Sync()},
		} {
			for again := range 2 { // a Query is looked at when it comes again
				try := 0
				fixture.Eventually(t, "a proven read of a superseded worker passes", func() bool {
					try++
					worker := fmt.Sprintf("w%d.%d.%d", i, again, try)
					c := s.Leader(worker)
					fixture.MustPass(t, c, wiretest.Query("select * from c"))
					awaitProofs(s, c, worker)
					s.Supersede()
					for _, read := range [][]byte{wiretest.Query("select * from c"), Cat(wiretest.Run("select * from c"), wiretest.Sync())} {
						if all, _ := fixture.Ask(c, read); wiretest.ErrorOf(all) == "ZF001" {
							return false // the database's names were not read in time, so that it was checked
						}
					}
					all, _ := fixture.Ask(c, parts...)
					if got := wiretest.ErrorOf(all); got != "ZF001" {
						t.Errorf("%q: answered by %q, want ZF001", Cat(parts...), got)
					}
					return true
				})
			}
		}
		if n := s.Number("select count(*) from t"); n != 0 {
			t.Errorf("%d rows were written", n)
		}
	})
}

// eachVersion runs the test on the default server and on PostgreSQL 18.
func eachVersion(t *testing.T, test func(t *testing.T, pg *pgtest.Server)) {
	t.Parallel()
	for name, server := range map[string]func(*testing.T) *pgtest.Server{"default": func(t *testing.T) *pgtest.Server { return pgtest.Shared(t) }, "18": own18} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, server(t))
		})
	}
}

// TestRefusedReadsAreNotCalledWrites: on 14 and 15 a read that is not proven is
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
