package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

const stale = "insert into t (v) values ('stale')"

// staleCase is a write that a worker sends after another was granted, of which
// its proxy knows nothing yet.
type staleCase struct {
	name   string
	before [][]byte // sent while it led, each answered without an error
	write  []byte
	trace  string // counts what the write leaves behind; rows of t if empty
}

func late(name string, write []byte, before ...[]byte) staleCase {
	return staleCase{name: name, write: write, before: before}
}

func traced(name, trace string, write []byte, before ...[]byte) staleCase {
	return staleCase{name: name, write: write, before: before, trace: trace}
}

// typed is a Parse that declares one parameter, of type oid.
func typed(name, sql string, oid int) []byte {
	return wiretest.Msg('P', []byte(name+"\x00"+sql+"\x00"), []byte{0, 1}, oidBytes(oid))
}

func oidBytes(oid int) []byte {
	return []byte{byte(oid >> 24), byte(oid >> 16), byte(oid >> 8), byte(oid)}
}

// call is a fast path call of a function without arguments.
func call(oid int) []byte {
	return wiretest.Msg('F', oidBytes(oid), []byte{0, 0, 0, 0, 0, 0})
}

func staleCases(s *fixture.Cluster) []staleCase {
	domain := oidOf(s, "'wd'::regtype")
	return []staleCase{
		late("simple", q(stale)),
		late("extended", cat(run(stale), sync_())),
		late("prepared under the old epoch", cat(bind("", "s"), exec("", 0), sync_()), cat(parse("s", stale), sync_())),
		late("prepared by SQL under the old epoch", q("execute s"), q("prepare s as "+stale)),
		late("begun before, nothing done", q(stale), q("begin")),
		late("begun after a transaction that was checked", q(stale), q("select * from c"), q("begin")),
		late("begun before, in one text", q(stale+"; commit"), q("begin")),
		late("between begin and the write", cat(run(stale), sync_()), cat(run("begin"), sync_())),
		late("between the write and commit", q("commit"), q("begin"), q(stale)),
		late("between the write and commit, extended", cat(run("commit"), sync_()), cat(run("begin"), run(stale), sync_())),
		late("behind a read of the same transaction", q(stale+"; commit"), q("begin"), q("select * from c")),
		late("savepoint taken before", q(stale+"; commit"), q("begin"), q("savepoint a")),
		late("rolled back to a savepoint", q("rollback to a; "+stale+"; commit"), q("begin; savepoint a"), q(stale)),
		late("repeatable read, no snapshot yet", q(stale+"; commit"), q("begin isolation level repeatable read")),
		late("repeatable read, old snapshot", q(stale+"; commit"), q("begin isolation level repeatable read"), q("select * from c")),
		late("serializable, old snapshot", q(stale+"; commit"), q("begin isolation level serializable"), q("select * from c")),
		late("serializable by default", cat(run(stale), sync_()), q("set default_transaction_isolation = serializable")),
		late("several statements", q("select 1; "+stale)),
		late("with a commit of its own", q("begin; commit; "+stale)),
		late("begin, write and commit in one text", q("begin; "+stale+"; commit")),
		late("pipeline of several executes", cat(run("select 1"), run(stale), run("select 2"), sync_())),
		late("pipeline of several syncs", cat(run(stale), sync_(), run(stale), sync_())),
		late("pipelined queries", cat(q(stale), q(stale))),
		late("after discard all", q(stale), q("discard all")),
		late("after deallocate all", cat(run(stale), sync_()), q("deallocate all")),
		late("behind discard all, pipelined", cat(run("discard all"), run(stale), sync_())),
		late("in a text that shows query texts", q("select current_query(); "+stale+"; commit; "+stale)),
		late("in a text too long to read", q("begin; "+stale+"; commit -- "+long)),
		late("a view that writes", q("select * from vw")),
		late("a domain that writes", cat(run("select 'stale'::wd"), sync_())),
		late("a cast that writes", q("select row(1, 2)::pair::int")),
		late("an operator that writes", q("set search_path = public, pg_catalog; select 1 + 2")),
		late("an operator by its schema", cat(run("select 1 operator(public.+) 2"), sync_())),
		late("parse alone of a domain that writes", cat(parse("", "select 'stale'::wd"), sync_())),
		late("describe of a statement", cat(desc('S', "s"), sync_()), cat(parse("s", stale), sync_())),
		late("bind alone of a domain that writes", cat(parse("", "select $1::wd"), bind("", "", "stale"), sync_())),
		late("bind of begin with a parameter", cat(typed("", "begin", domain), bind("", "", "stale"), sync_(), q("commit"))),
		late("bind of nothing with a parameter", cat(typed("", "", domain), bind("", "", "stale"), sync_())),
		late("bind of a session command with a parameter", cat(typed("s", "set work_mem = '1MB'", domain), bind("", "s", "stale"), sync_())),
		late("call", q("call late()")),
		late("call, extended", cat(run("call late()"), sync_())),
		late("do", q("do $$begin insert into t (v) values ('stale'); commit; end$$")),
		late("fast path call", call(oidOf(s, "'wstale'::regproc"))),
		late("fast path call in a block", cat(call(oidOf(s, "'wstale'::regproc")), q("commit")), q("begin")),
		late("copy", cat(q("copy t (v) from stdin"), wiretest.CopyData("stale\n"), wiretest.CopyDone())),
		late("copy, extended", cat(run("copy t (v) from stdin"), wiretest.CopyData("stale\n"), wiretest.CopyDone(), sync_())),
		late("explain analyze", q("explain analyze "+stale)),
		late("create table as", q("create table stale as select 1")),
		traced("lock table", "select count(*) from pg_locks where relation = 'c'::regclass", q("lock table c"), q("begin")),
		traced("update", "select count(*) from c where v <> 'one'", q("update c set v = 'stale'")),
		traced("delete", "select 1 - count(*) from c", cat(run("delete from c"), sync_())),
		traced("truncate", "select 1 - count(*) from c", q("truncate c")),
		traced("nextval", "select last_value - 1 from w_seq", q("select nextval('w_seq')")),
		traced("ddl", "select count(*) from pg_class where relname = 'stale'", q("create table stale (a int)")),
		traced("create index concurrently", "select count(*) from pg_class where relname = 'stale_i'", q("create index concurrently stale_i on t (v)")),
		traced("vacuum", "select count(*) from pg_class where relname = 'c' and relpages > 0", q("vacuum c")),
		traced("large object", "select count(*) from pg_largeobject_metadata", q("select lo_create(77)")),
		traced("large object by fast path", "select count(*) from pg_largeobject_metadata", wiretest.Msg('F', oidBytes(957), []byte{0, 0, 0, 1, 0, 0, 0, 4, 0, 2, 0, 0, 0, 0})),
	}
}

// TestSafetyStaleWriteIsRefused: the worker led, another was granted since, and
// its proxy knows nothing of that: the next write is answered by FATAL ZF001,
// leaves nothing behind, and the connection ends.
func TestSafetyStaleWriteIsRefused(t *testing.T) {
	t.Parallel()
	for name, pg := range map[string]*pgtest.Server{"default": pgtest.Shared(t), "18": own18(t)} {
		s := fixture.NewCluster(t, pg)
		s.Exec("create function wstale() returns void language sql as $$insert into t (v) values ('stale')$$; create sequence w_seq; grant all on w_seq to app; alter table c owner to app; alter table t owner to app")
		for _, c := range staleCases(s) {
			t.Run(name+"/"+strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
				s := s.With(t)
				s.Exec("truncate t; drop table if exists stale")
				if c.trace == "" {
					c.trace = "select count(*) from t"
				}
				refusesStale(s, c)
			})
		}
	}
}

func refusesStale(s *fixture.Cluster, c staleCase) {
	s.T.Helper()
	client := s.Leader("w" + strings.ReplaceAll(c.name, " ", ""))
	for _, piece := range c.before {
		fixture.MustPass(s.T, client, piece)
	}
	s.Supersede()
	f := fixture.MustEnd(s.T, client, "ZF001", c.write)
	if !strings.Contains(f['M'], "superseded on resource") || f['H'] == "" || f['D'] == "" || f['W'] != "" {
		s.T.Errorf("the error does not say what there is to say: %v", f)
	}
	if n := s.Number(c.trace); n != 0 {
		s.T.Errorf("the refused write left %d behind", n)
	}
}

// TestSafetyStaleThoughTheSuccessorHasLeft: being superseded is for good; a new
// connection is a new candidacy, which may lead but has to begin anew.
func TestSafetyStaleThoughTheSuccessorHasLeft(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	client := s.Leader("w")
	successor := s.Connect("v")
	s.Grant("v")
	fixture.MustFail(t, successor, "ZF003", q("insert into t (v) values ('told by this')"))
	fixture.MustPass(t, successor, q("insert into t (v) values ('new')"))
	successor.Send(wiretest.Terminate())
	successor.Rest()

	fixture.MustEnd(t, client, "ZF001", q(stale))
	s.Connect("w")
	s.Grant("w")
	again := s.Connect("w")
	fixture.MustFail(t, again, "ZF003", q(stale))
	fixture.MustPass(t, again, q("insert into t (v) values ('anew')"))
	if s.Rows("stale") != 0 || s.Rows("new") != 1 || s.Rows("anew") != 1 {
		t.Errorf("rows: stale %d, new %d, anew %d; want 0, 1, 1", s.Rows("stale"), s.Rows("new"), s.Rows("anew"))
	}
}
