package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
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

// copyWithSyncs copies into a table of its own, with Syncs among the data, which the server ignores, and sends the
// rest behind that.
func copyWithSyncs(rest ...[]byte) []byte {
	return Cat(Run("create temp table mine (v text)"), Run("copy mine from stdin"), Sync(), wiretest.CopyData("x\n"), Sync(), wiretest.CopyDone(), Cat(rest...))
}

func staleCases(s *fixture.Cluster) []staleCase {
	domain := oidOf(s, "'wd'::regtype")
	return []staleCase{
		late("simple", Q(stale)),
		late("extended", Batch(Run(stale))),
		late("prepared under the old epoch", Batch(Bind("", "s"), Exec("", 0)), Batch(Parse("s", stale))),
		late("prepared by SQL under the old epoch", Q("execute s"), Q("prepare s as "+stale)),
		late("begun before, nothing done", Q(stale), Q("begin")),
		late("begun after a transaction that was checked", Q(stale), Q("select * from c"), Q("begin")),
		late("begun before, in one text", Q(stale+"; commit"), Q("begin")),
		late("between begin and the write", Batch(Run(stale)), Batch(Run("begin"))),
		late("between the write and commit", Q("commit"), Q("begin"), Q(stale)),
		late("between the write and commit, extended", Batch(Run("commit")), Batch(Run("begin"), Run(stale))),
		late("behind a read of the same transaction", Q(stale+"; commit"), Q("begin"), Q("select * from c")),
		late("savepoint taken before", Q(stale+"; commit"), Q("begin"), Q("savepoint a")),
		late("rolled back to a savepoint", Q("rollback to a; "+stale+"; commit"), Q("begin; savepoint a"), Q(stale)),
		late("repeatable read, no snapshot yet", Q(stale+"; commit"), Q("begin isolation level repeatable read")),
		late("repeatable read, old snapshot", Q(stale+"; commit"), Q("begin isolation level repeatable read"), Q("select * from c")),
		late("serializable, old snapshot", Q(stale+"; commit"), Q("begin isolation level serializable"), Q("select * from c")),
		late("serializable by default", Batch(Run(stale)), Q("set default_transaction_isolation = serializable")),
		late("several statements", Q("select 1; "+stale)),
		late("with a commit of its own", Q("begin; commit; "+stale)),
		late("begin, write and commit in one text", Q("begin; "+stale+"; commit")),
		late("pipeline of several executes", Batch(Run("select 1"), Run(stale), Run("select 2"))),
		late("pipeline of several syncs", Cat(Run(stale), Sync(), Run(stale), Sync())),
		late("pipelined queries", Cat(Q(stale), Q(stale))),
		late("after discard all", Q(stale), Q("discard all")),
		late("after deallocate all", Batch(Run(stale)), Q("deallocate all")),
		late("behind discard all, pipelined", Batch(Run("discard all"), Run(stale))),
		late("in a text that shows query texts", Q("select current_query(); "+stale+"; commit; "+stale)),
		late("in a text too long to read", Q("begin; "+stale+"; commit -- "+long)),
		late("a view that writes", Q("select * from vw")),
		late("a domain that writes", Batch(Run("select 'stale'::wd"))),
		late("a cast that writes", Q("select row(1, 2)::pair::int")),
		late("an operator that writes", Q("set search_path = public, pg_catalog; select 1 + 2")),
		late("an operator by its schema", Batch(Run("select 1 operator(public.+) 2"))),
		late("parse alone of a domain that writes", Batch(Parse("", "select 'stale'::wd"))),
		late("describe of a statement", Batch(Desc('S', "s")), Batch(Parse("s", stale))),
		late("bind alone of a domain that writes", Batch(Parse("", "select $1::wd"), Bind("", "", "stale"))),
		late("bind of begin with a parameter", Cat(typed("", "begin", domain), Bind("", "", "stale"), Sync(), Q("commit"))),
		late("bind of nothing with a parameter", Batch(typed("", "", domain), Bind("", "", "stale"))),
		late("bind of a session command with a parameter", Batch(typed("s", "set work_mem = '1MB'", domain), Bind("", "s", "stale"))),
		late("call", Q("call late()")),
		late("call, extended", Batch(Run("call late()"))),
		late("do", Q("do $$begin insert into t (v) values ('stale'); commit; end$$")),
		late("fast path call", call(oidOf(s, "'wstale'::regproc"))),
		late("fast path call in a block", Cat(call(oidOf(s, "'wstale'::regproc")), Q("commit")), Q("begin")),
		late("copy", Cat(Q("copy t (v) from stdin"), wiretest.CopyData("stale\n"), wiretest.CopyDone())),
		late("copy, extended", Batch(Run("copy t (v) from stdin"), wiretest.CopyData("stale\n"), wiretest.CopyDone())),
		late("extended, behind a copy with syncs", Batch(Run(stale)), copyWithSyncs(Sync())),
		late("simple, behind a copy with syncs", Q(stale), copyWithSyncs(Sync(), Flush())),
		late("simple, behind a copy with syncs and a commit", Q(stale), copyWithSyncs(Q("commit"))),
		late("simple, behind a copy with syncs in a block", Q(stale), Q("begin"), copyWithSyncs(Run("commit"), Sync())),
		late("explain analyze", Q("explain analyze "+stale)),
		late("create table as", Q("create table stale as select 1")),
		traced("lock table", "select count(*) from pg_locks where relation = 'c'::regclass", Q("lock table c"), Q("begin")),
		traced("update", "select count(*) from c where v <> 'one'", Q("update c set v = 'stale'")),
		traced("delete", "select 1 - count(*) from c", Batch(Run("delete from c"))),
		traced("truncate", "select 1 - count(*) from c", Q("truncate c")),
		traced("nextval", "select last_value - 1 from w_seq", Q("select nextval('w_seq')")),
		traced("ddl", "select count(*) from pg_class where relname = 'stale'", Q("create table stale (a int)")),
		traced("create index concurrently", "select count(*) from pg_class where relname = 'stale_i'", Q("create index concurrently stale_i on t (v)")),
		traced("vacuum", "select count(*) from pg_class where relname = 'c' and relpages > 0", Q("vacuum c")),
		traced("large object", "select count(*) from pg_largeobject_metadata", Q("select lo_create(77)")),
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
	fixture.MustFail(t, successor, "ZF003", Q("insert into t (v) values ('told by this')"))
	fixture.MustPass(t, successor, Q("insert into t (v) values ('new')"))
	successor.Send(wiretest.Terminate())
	successor.Rest()

	fixture.MustEnd(t, client, "ZF001", Q(stale))
	s.Connect("w")
	s.Grant("w")
	again := s.Connect("w")
	fixture.MustFail(t, again, "ZF003", Q(stale))
	fixture.MustPass(t, again, Q("insert into t (v) values ('anew')"))
	if s.Rows("stale") != 0 || s.Rows("new") != 1 || s.Rows("anew") != 1 {
		t.Errorf("rows: stale %d, new %d, anew %d; want 0, 1, 1", s.Rows("stale"), s.Rows("new"), s.Rows("anew"))
	}
}
