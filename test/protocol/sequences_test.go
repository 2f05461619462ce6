package protocol

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

func sequences() []fixture.Sequence {
	return []fixture.Sequence{
		fixture.NewSequence("insert", Q("insert into t values (10, 'a')")),
		fixture.NewSequence("select", Q("select * from t order by id")),
		fixture.NewSequence("several messages", Q("select 1"), Q("insert into t values (10, 'a')"), Q("select count(*) from t")),
		fixture.NewSequence("error in the middle of a text", Q("select * from missing")),
		fixture.NewSequence("error position in a long text", Q("/* é */ select 1, 'ü', nothing from t")),
		fixture.NewSequence("syntax error", Q("selec 1")),
		fixture.NewSequence("syntax error behind a semicolon", Q("select 1; selec 2")),
		fixture.NewSequence("empty", Q("")), fixture.NewSequence("semicolons", Q(" ;; ")), fixture.NewSequence("comment", Q("-- nothing")),
		fixture.NewSequence("two statements", Q("insert into t values (10, 'a'); select * from t order by id")),
		fixture.NewSequence("two statements, the second fails", Q("insert into t values (10, 'a'); select 1/0"), Q("select count(*) from t")),
		fixture.NewSequence("commit inside a text", Q("insert into t values (10, 'a'); commit; insert into t values (11, 'b')"), Q("select count(*) from t")),
		fixture.NewSequence("rollback inside a text", Q("begin; insert into t values (10, 'a'); rollback; insert into t values (11, 'b'); select nothing"), Q("select count(*) from t")),
		fixture.NewSequence("error behind a commit inside a text", Q("begin; insert into t values (10, 'é'); commit; insert into t values (11, 'é'); select 'ü', nothing"), Q("select count(*) from t")),
		fixture.NewSequence("begin and chain", Q("begin"), Q("insert into t values (10, 'a')"), Q("commit and chain"), Q("insert into t values (11, 'a')"), Q("commit"), Q("select * from t order by id")),
		fixture.NewSequence("isolation", Q("begin isolation level serializable"), Q("select count(*) from t"), Q("insert into t values (10, 'a')"), Q("commit")),
		fixture.NewSequence("set transaction", Q("begin"), Q("set transaction isolation level repeatable read"), Q("insert into t values (10, 'a')"), Q("commit")),
		fixture.NewSequence("read only", Q("begin read only"), Q("insert into t values (10, 'a')"), Q("rollback")),
		fixture.NewSequence("savepoints", Q("begin"), Q("savepoint a"), Q("insert into t values (10, 'a')"), Q("rollback to a"), Q("insert into t values (11, 'b')"), Q("release a"), Q("commit"), Q("select * from t order by id")),
		fixture.NewSequence("failed transaction", Q("begin"), Q("select 1/0"), Q("select 1"), Q("insert into t values (10, 'a')"), Q("rollback"), Q("select count(*) from t")),
		fixture.NewSequence("failed and rolled back to", Q("begin"), Q("savepoint a"), Q("select 1/0"), Q("rollback to a"), Q("insert into t values (10, 'a')"), Q("commit")),
		fixture.NewSequence("commit of a failed one", Q("begin"), Q("select 1/0"), Q("commit")),
		fixture.NewSequence("warnings", Q("commit"), Q("rollback"), Q("begin"), Q("begin"), Q("commit"), Q("set local work_mem = '1MB'"), Q("set constraints all deferred")),
		fixture.NewSequence("deferred constraint", Q("insert into d values (1, 99)"), Q("begin"), Q("insert into d values (1, 99)"), Q("commit")),
		fixture.NewSequence("ddl", Q("create table x (a int); create index on x (a)"), Q("alter table x add b text"), Q("drop table x")),
		fixture.NewSequence("vacuum", Q("vacuum t"), Q("analyze t"), Q("vacuum t; select 1")),
		fixture.NewSequence("vacuum in a block", Q("begin"), Q("vacuum t"), Q("rollback")),
		fixture.NewSequence("concurrently", Q("create index concurrently ti on t (v)"), Q("drop index concurrently ti")),
		fixture.NewSequence("call with commit", Q("call twice(20)"), Q("select count(*) from t")),
		fixture.NewSequence("call with commit in a block", Q("begin"), Q("call twice(20)"), Q("rollback"), Q("select count(*) from t")),
		fixture.NewSequence("call with commit among others", Q("select 1; call twice(20)"), Q("select count(*) from t")),
		fixture.NewSequence("do with commit", Q("do $$begin insert into t values (30, 'x'); commit; insert into t values (31, 'x'); end$$"), Q("select count(*) from t")),
		fixture.NewSequence("functions that write", Q("select wr(40)"), Q("select * from w"), Q("select count(*) from t")),
		fixture.NewSequence("lock", Q("lock table t")), fixture.NewSequence("lock in a block", Q("begin"), Q("lock table t"), Q("commit")),
		fixture.NewSequence("copy in", Q("copy t from stdin"), nil),
		fixture.NewSequence("sql prepare", Q("prepare p as select 1 as a"), Q("execute p"), Q("deallocate p"), Q("execute p")),
		fixture.NewSequence("sql prepare with a write", Q("prepare p(int) as insert into t values ($1, 'p')"), Q("execute p(50)"), Q("execute p(50)"), Q("select count(*) from t")),
		fixture.NewSequence("cursor", Q("begin"), Q("declare c cursor for select * from t order by id"), Q("fetch 2 from c"), Q("move 1 from c"), Q("close c"), Q("commit")),
		fixture.NewSequence("cursor with hold", Q("declare c cursor with hold for select * from t order by id"), Q("fetch 2 from c"), Q("close c")),
		fixture.NewSequence("query text", Q("select current_query()"), Q("prepare pp as select 2"), Q("select name, statement from pg_prepared_statements where name = 'pp'")),
		fixture.NewSequence("discard all", Q("discard all"), Q("insert into t values (10, 'a')"), Q("discard all"), Q("select count(*) from t")),
		fixture.NewSequence("discard all in a block", Q("begin"), Q("discard all"), Q("rollback"), Q("insert into t values (10, 'a')")),
		fixture.NewSequence("deallocate all", Q("deallocate all"), Q("insert into t values (10, 'a')"), Batch(Run("insert into t values (11, 'a')"))),
		fixture.NewSequence("two phase refused by us only", Q("select 1")),
		fixture.NewSequence("listen", Q("listen ch"), Q("notify ch, 'x'"), Q("unlisten ch")),
		fixture.NewSequence("show and set", Q("show work_mem"), Q("set work_mem = '5MB'"), Q("show work_mem"), Q("reset work_mem"), Q("set nothing = 1")),
		fixture.NewSequence("explain", Q("explain (costs off) select * from t"), Q("explain (analyze, costs off, timing off, summary off) insert into t values (60, 'e')"), Q("select count(*) from t")),
		fixture.NewSequence("returning", Q("insert into t values (10, 'a') returning *"), Q("update t set v = 'z' where id = 10 returning v"), Q("delete from t where id = 10")),
		fixture.NewSequence("conflict", Q("insert into t values (1, 'a')"), Q("insert into t values (1, 'a') on conflict do nothing")),
		fixture.NewSequence("truncate", Q("truncate t, d"), Q("select count(*) from t")),
		fixture.NewSequence("select into", Q("select * into x from t"), Q("create table y as select * from t")),
		fixture.NewSequence("raise notice", Q("do $$begin raise notice 'hello'; end$$"), Q("select 1")),
		fixture.NewSequence("temp tables", Q("create temp table tt (a int); insert into tt values (1); select * from tt")),
		fixture.NewSequence("large object", Q("select lo_create(4711)"), Q("begin; select lo_unlink(4711); commit")),
		fixture.NewSequence("nul in the text", wiretest.Msg('Q', []byte("select 1\x00select 2\x00")), Q("select 3")),
		fixture.NewSequence("pipelined queries", Cat(Q("select 1"), Q("insert into t values (10, 'a')"), Q("select 1/0"), Q("select count(*) from t")), nil, nil, nil),
		fixture.NewSequence("pipelined block", Cat(Q("begin"), Q("insert into t values (10, 'a')"), Q("commit"), Q("insert into t values (11, 'a')")), nil, nil, nil),
		fixture.NewSequence("pipelined failed block", Cat(Q("begin"), Q("savepoint s"), Q("select 1/0"), Q("rollback to s"), Q("insert into t values (11, 'a')"), Q("commit")), nil, nil, nil, nil, nil),

		fixture.NewSequence("extended", Batch(Run("insert into t values ($1, $2)", "10", "a")), Batch(Run("select * from t where id = $1", "10"))),
		fixture.NewSequence("extended without describe", Batch(Parse("", "insert into t values (10, 'a')"), Bind("", ""), Exec("", 0))),
		fixture.NewSequence("named", Batch(Parse("s1", "insert into t values ($1::int, 'n')"), Desc('S', "s1")), Batch(Bind("", "s1", "70"), Exec("", 0)), Batch(Bind("", "s1", "71"), Exec("", 0)), Batch(Shut('S', "s1")), Batch(Bind("", "s1", "72"), Exec("", 0)), Q("select count(*) from t")),
		fixture.NewSequence("named twice", Batch(Parse("s1", "select 1")), Batch(Parse("s1", "insert into t values (10, 'a')")), Batch(Bind("", "s1"), Exec("", 0))),
		fixture.NewSequence("several executes, one sync", Batch(Run("insert into t values (10, 'a')"), Run("insert into t values (11, 'a')"), Run("select count(*) from t"))),
		fixture.NewSequence("several executes, one fails", Batch(Run("insert into t values (10, 'a')"), Run("select 1/0"), Run("select count(*) from t")), Q("select count(*) from t")),
		fixture.NewSequence("pipelined syncs", Cat(Run("insert into t values (10, 'a')"), Sync(), Run("select 1/0"), Sync(), Run("insert into t values (11, 'a')"), Sync(), Run("select count(*) from t"), Sync()), nil, nil, nil),
		fixture.NewSequence("extended block", Batch(Run("begin")), Batch(Run("insert into t values (10, 'a')")), Batch(Run("commit")), Q("select count(*) from t")),
		fixture.NewSequence("extended block in one batch", Batch(Run("begin"), Run("insert into t values (10, 'a')"), Run("commit"), Run("insert into t values (11, 'a')")), Q("select count(*) from t")),
		fixture.NewSequence("extended failed block in one batch", Batch(Run("begin"), Run("insert into t values (10, 'a')"), Run("select 1/0")), Batch(Run("select 1")), Batch(Run("rollback"), Run("insert into t values (12, 'a')")), Q("select count(*) from t")),
		fixture.NewSequence("isolation by extended messages", Batch(Run("begin isolation level repeatable read")), Batch(Run("insert into t values (10, 'a')")), Batch(Run("commit"))),
		fixture.NewSequence("portal with rows", Batch(Run("begin"), Parse("", "select * from t order by id"), Bind("c1", ""), Exec("c1", 2), Flush(), Exec("c1", 2)), Batch(Run("commit"))),
		fixture.NewSequence("portal over messages", Batch(Run("begin")), Batch(Parse("", "select * from t order by id"), Bind("c1", ""), Exec("c1", 1)), Batch(Exec("c1", 1)), Batch(Shut('P', "c1"), Exec("c1", 1)), Batch(Run("rollback"))),
		fixture.NewSequence("portal of a finished transaction", Batch(Parse("", "select * from t order by id"), Bind("c1", ""), Exec("c1", 1)), Batch(Exec("c1", 1))),
		fixture.NewSequence("empty by extended messages", Batch(Parse("", ""), Desc('S', ""), Bind("", ""), Desc('P', ""), Exec("", 0))),
		fixture.NewSequence("unknown names", Batch(Bind("", "nope")), Batch(Desc('S', "nope")), Batch(Desc('P', "nope")), Batch(Exec("nope", 0)), Batch(Shut('S', "nope"), Shut('P', "nope"))),
		fixture.NewSequence("wrong number of parameters", Batch(Parse("", "select $1::int"), Bind("", ""), Exec("", 0))),
		fixture.NewSequence("zero columns", Q("select from t"), Batch(Run("select from t"))),
		fixture.NewSequence("vacuum by extended messages", Batch(Run("vacuum t"))),
		fixture.NewSequence("vacuum in a pipeline", Batch(Run("vacuum t"), Run("select 1"))),
		fixture.NewSequence("call by extended messages", Batch(Run("call twice(20)")), Q("select count(*) from t")),
		fixture.NewSequence("call with parameters", Batch(Run("call twice($1)", "20")), Q("select count(*) from t")),
		fixture.NewSequence("do by extended messages", Batch(Run("do $$begin insert into t values (30, 'x'); commit; insert into t values (31, 'x'); end$$")), Q("select count(*) from t")),
		fixture.NewSequence("prepared call", Batch(Parse("c", "call twice($1)")), Batch(Bind("", "c", "20"), Exec("", 0)), Q("select count(*) from t")),
		fixture.NewSequence("discard all by extended messages", Batch(Run("discard all")), Batch(Run("insert into t values (10, 'a')"))),
		fixture.NewSequence("lone syncs", Cat(Sync(), Sync(), Sync()), nil, nil, Q("select 1")),
		fixture.NewSequence("flush alone", Cat(Flush(), Flush(), Q("select 1"))),
		fixture.NewSequence("query behind extended messages", Cat(Run("insert into t values (10, 'a')"), Sync(), Q("select count(*) from t"), Run("select 2"), Sync()), nil, nil),
		fixture.NewSequence("query in an open batch", Cat(Parse("s", "select 1"), Q("insert into t values (10, 'a')")), Cat(Sync(), Q("select count(*) from t")), nil),
		fixture.NewSequence("query after a failed batch", Cat(Run("select 1/0"), Q("insert into t values (10, 'a')"), Sync()), Q("select count(*) from t")),
		fixture.NewSequence("copy by extended messages", Batch(Parse("", "copy t from stdin"), Bind("", ""), Exec("", 0), wiretest.CopyData("80\tx\n"), wiretest.CopyDone()), Q("select count(*) from t")),
		fixture.NewSequence("copy with sync right after execute", Cat(Parse("", "copy t from stdin"), Bind("", ""), Exec("", 0), Sync(), wiretest.CopyData("80\tx\n"), wiretest.CopyDone(), Sync()), Q("select count(*) from t")),
		fixture.NewSequence("copy that fails at once, with sync", Cat(Parse("", "copy nope from stdin"), Bind("", ""), Exec("", 0), Sync(), wiretest.CopyData("80\tx\n"), wiretest.CopyDone(), Sync()), nil, Q("select count(*) from t")),
		fixture.NewSequence("copy data in advance", Cat(Q("copy t from stdin"), wiretest.CopyData("80\tx\n81\ty\n"), wiretest.CopyDone()), Q("select count(*) from t")),
		fixture.NewSequence("copy fail", Cat(Q("copy t from stdin"), wiretest.CopyData("80\tx\n"), wiretest.CopyFail("no more")), Q("select count(*) from t")),
		fixture.NewSequence("copy with bad data", Cat(Q("copy t from stdin"), wiretest.CopyData("80\tx\nbad\n"), wiretest.CopyData("81\ty\n"), wiretest.CopyDone()), Q("select count(*) from t")),
		fixture.NewSequence("copy among others", Cat(Q("insert into t values (10, 'a'); copy t from stdin; select count(*) from t"), wiretest.CopyData("80\tx\n"), wiretest.CopyDone()), Q("select 1")),
		fixture.NewSequence("copy out", Q("copy (select * from t order by id) to stdout"), Batch(Run("copy t to stdout")), Q("select 1")),
		fixture.NewSequence("stray copy messages", Cat(wiretest.CopyData("x"), wiretest.CopyDone(), wiretest.CopyFail("x"), Q("select 1")), Q("select 2")),
		fixture.NewSequence("query inside a copy", Cat(Q("copy t from stdin"), wiretest.CopyData("80\tx\n"), Q("select 1")), nil, nil), // ends the connection
		fixture.NewSequence("function call", Cat(wiretest.Msg('F', []byte{0, 0, 4, 0x57}, []byte{0, 0, 0, 0, 0, 0})), Q("select 1")),   // an oid that is no function
		fixture.NewSequence("malformed bind", Batch(wiretest.Msg('B', []byte("x")))),
		fixture.NewSequence("malformed describe", Batch(wiretest.Msg('D', []byte("Z\x00")))),
		fixture.NewSequence("malformed parse", Batch(wiretest.Msg('P', []byte("x")))),
		fixture.NewSequence("unknown message", wiretest.Msg('y', []byte("x"))),
		fixture.NewSequence("password message", wiretest.Msg('p', []byte("x\x00"))),
	}
}

// TestLeaderSeesWhatPostgresSays runs each sequence against Postgres itself
// and through the proxy as leader, and compares message by message, and the
// tables afterwards.
func TestLeaderSeesWhatPostgresSays(t *testing.T) {
	t.Parallel()
	for name, pg := range map[string]*pgtest.Server{"default": pgtest.Shared(t), "18": pgtest.Start(t, pgtest.WithBinaries(pgtest.Binaries(t, 18)))} {
		t.Run(name, func(t *testing.T) {
			p := fixture.NewProxy(t, pg, nil)
			db := pg.Database(t)
			direct, proxied := pg.Connect(t, pgtest.Superuser, pg.Database(t)), pg.Connect(t, pgtest.Superuser, db)
			holder, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "w")
			p.Candidacy(db, "r", "w").Grant()
			defer holder.Close()
			for _, s := range sequences() {
				t.Run(strings.ReplaceAll(s.Name, " ", "_"), func(t *testing.T) {
					fixture.CompareAsLeader(t, p, direct, proxied, s)
				})
			}
		})
	}
}
