package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestFollowersReadFreely: whatever only reads works as with Postgres.
func TestFollowersReadFreely(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, own18(t))
	s.Leader("leader")
	c := s.Connect("follower")
	for _, sql := range []string{
		"select * from c", "select count(*) from c, t", "with x as (select 1) select * from x", "values (1)", "table c",
		"explain select * from c", "copy c to stdout", "copy (select 1) to stdout", "show work_mem", "set work_mem = '1MB'",
		"begin; declare k cursor for select * from c; fetch all from k; close k; commit", "prepare p as select * from c",
		"select now()", "begin; savepoint a; select 1; rollback to a; commit", "select pg_advisory_lock(1), pg_advisory_unlock(1)",
	} {
		fixture.MustPass(t, c, Q(sql))
		if !strings.Contains(sql, ";") {
			if sql == "prepare p as select * from c" {
				sql = "select 1"
			}
			fixture.MustPass(t, c, Run(sql), Sync())
		}
	}
}

var writes = []string{
	"insert into t (v) values ('stale')", "update c set v = 'stale'", "delete from c", "truncate c",
	"merge into c using (select 1 as i) x on c.id = x.i when matched then update set v = 'stale'",
	"create table stale (a int)", "create temp table stale (a int)", "select * into stale from c", "create table stale as select 1",
	"drop table c", "alter table c add x int", "create index on c (v)", "create index concurrently on c (v)", "vacuum c", "analyze c",
	"select nextval('t_id_seq')", "select setval('t_id_seq', 9)", "select * from c for update", "select * from c for share",
	"select wr('stale')", "select * from vw", "select 'stale'::wd", "select 1 operator(public.+) 2", "select row(1, 2)::pair::int",
	"with x as (insert into t (v) values ('stale') returning v) select * from x", "notify ch, 'x'", "select pg_notify('ch', 'x')",
	"select lo_create(77)", "do $$begin insert into t (v) values ('stale'); end$$", "call late()",
	"prepare w as insert into t (v) values ('stale')", "execute r", "explain analyze insert into t (v) values ('stale')",
	"insert into ruled values (1)", "comment on table c is 'stale'", "grant select on c to public",
	"refresh materialized view m", "reindex table c", "cluster", "checkpoint", "security label on table c is 'x'",
	"copy t (v) from stdin",
}

// TestSafetyFollowersWriteNothing: every way to write is ZF002, by both
// protocols, alone and in a pipeline; what stands in front is undone as by
// Postgres, and the connection lives.
func TestSafetyFollowersWriteNothing(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, own18(t))
	s.Exec("alter table c owner to app; create sequence w_seq; grant all on w_seq to app; grant all on t_id_seq to app; create materialized view m as select 1; alter materialized view m owner to app; create table ruled (a int); grant all on ruled to app; create rule ru as on insert to ruled do instead insert into t (v) values ('stale')")
	s.Leader("leader")
	for _, sql := range writes {
		t.Run(sql, func(t *testing.T) {
			s := s.With(t)
			c := s.Connect("follower")
			if sql == "execute r" {
				fixture.MustPass(t, c, Q("prepare r as select wr('stale')"))
			}
			fixture.MustFail(t, c, "ZF002", Q(sql))
			all := fixture.MustFail(t, c, "ZF002", Run("select 1"), Run(sql), Run("select 2"), Sync())
			if kinds := fixture.Types(all); !strings.HasPrefix(kinds, "12TDCE") && !strings.HasPrefix(kinds, "12TDC1E") && !strings.HasPrefix(kinds, "12TDC12") {
				t.Errorf("the error is not in its place: %s", kinds)
			}
			fixture.MustFail(t, c, "ZF002", Q("select 1; "+sql+"; select 2"))
			fixture.MustPass(t, c, Q("begin"))
			fixture.MustFail(t, c, "ZF002", Q(sql))
			fixture.MustFail(t, c, "25P02", Q("select 1"))
			fixture.MustPass(t, c, Q("rollback"))
			fixture.MustPass(t, c, Q("select * from c"))
			if n := s.Number("select (select count(*) from t) + (select count(*) from pg_class where relname = 'stale') + (select count(*) from c where v <> 'one') + (select 1 - count(*) from c)"); n != 0 {
				t.Errorf("%d things were written", n)
			}
		})
	}
}

// TestSafetyFollowersInABlock: what only a transaction block allows, or does at
// its end.
func TestSafetyFollowersInABlock(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, own18(t))
	s.Exec("alter table c owner to app")
	s.Leader("leader")
	c := s.Connect("follower")
	fixture.MustPass(t, c, Q("begin"))
	fixture.MustFail(t, c, "ZF002", Q("lock table c in share mode"))
	fixture.MustPass(t, c, Q("rollback"))
	fixture.MustPass(t, c, Q("begin"))
	fixture.MustPass(t, c, Q("declare k cursor with hold for select wr('stale')"))
	fixture.MustFail(t, c, "ZF002", Q("commit"))
	if s.Rows("stale") != 0 {
		t.Error("the cursor wrote")
	}
}

// TestSafetyFollowersFastPath: a call that could write is refused.
func TestSafetyFollowersFastPath(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, own18(t))
	s.Exec("create function wstale() returns void language sql as $$insert into t (v) values ('stale')$$")
	s.Leader("leader")
	c := s.Connect("follower")
	oid := oidOf(s, "'wstale'::regproc")
	fixture.MustFail(t, c, "ZF002", call(oid))
	fixture.MustPass(t, c, Q("begin"))
	fixture.MustPass(t, c, Q("select 1"))
	fixture.MustFail(t, c, "ZF002", call(oid))
	fixture.MustPass(t, c, Q("rollback"))
	if s.Rows("stale") != 0 {
		t.Error("the call wrote")
	}
}

// TestUnfencedConnections: without a resource a user reads, writes, or is sent
// away, as the configuration says.
func TestUnfencedConnections(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	reader, _ := wiretest.Connect(t, s.Addr, "user", pgtest.App, "database", s.DB)
	fixture.MustPass(t, reader, Q("select * from c"))
	refused := []string{mine, "select wr('mine')", "do $$begin insert into t (v) values ('mine'); end$$", "vacuum c"}
	if s.Number("select current_setting('server_version_num')::int / 10000") < 16 {
		refused = append(refused, "reset transaction_read_only")
	} else { // the server does not let anybody undo it
		fixture.MustFail(t, reader, "0A000", Q("reset transaction_read_only"))
	}
	for _, sql := range refused {
		all := fixture.MustFail(t, reader, "ZF002", Q(sql))
		f := all[len(all)-2].Fields()
		if !strings.Contains(f['M'], "names no resource") || !strings.Contains(f['H'], "fencepost.resource") {
			t.Errorf("%s: the error does not say how: %v", sql, f)
		}
		fixture.MustFail(t, reader, "ZF002", Run(sql), Sync())
	}
	writer, _ := wiretest.Connect(t, s.Addr, "user", pgtest.Superuser, "database", s.DB)
	fixture.MustPass(t, writer, Q(mine))
	if s.Rows("mine") != 1 {
		t.Errorf("%d rows; want the one of the user who may", s.Rows("mine"))
	}
}
