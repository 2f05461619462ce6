package protocol

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

func sequences() []fixture.Sequence {
	return []fixture.Sequence{
		fixture.NewSequence("insert", q("insert into t values (10, 'a')")),
		fixture.NewSequence("select", q("select * from t order by id")),
		fixture.NewSequence("several messages", q("select 1"), q("insert into t values (10, 'a')"), q("select count(*) from t")),
		fixture.NewSequence("error in the middle of a text", q("select * from missing")),
		fixture.NewSequence("error position in a long text", q("/* é */ select 1, 'ü', nothing from t")),
		fixture.NewSequence("syntax error", q("selec 1")),
		fixture.NewSequence("syntax error behind a semicolon", q("select 1; selec 2")),
		fixture.NewSequence("empty", q("")), fixture.NewSequence("semicolons", q(" ;; ")), fixture.NewSequence("comment", q("-- nothing")),
		fixture.NewSequence("two statements", q("insert into t values (10, 'a'); select * from t order by id")),
		fixture.NewSequence("two statements, the second fails", q("insert into t values (10, 'a'); select 1/0"), q("select count(*) from t")),
		fixture.NewSequence("commit inside a text", q("insert into t values (10, 'a'); commit; insert into t values (11, 'b')"), q("select count(*) from t")),
		fixture.NewSequence("rollback inside a text", q("begin; insert into t values (10, 'a'); rollback; insert into t values (11, 'b'); select nothing"), q("select count(*) from t")),
		fixture.NewSequence("error behind a commit inside a text", q("begin; insert into t values (10, 'é'); commit; insert into t values (11, 'é'); select 'ü', nothing"), q("select count(*) from t")),
		fixture.NewSequence("begin and chain", q("begin"), q("insert into t values (10, 'a')"), q("commit and chain"), q("insert into t values (11, 'a')"), q("commit"), q("select * from t order by id")),
		fixture.NewSequence("isolation", q("begin isolation level serializable"), q("select count(*) from t"), q("insert into t values (10, 'a')"), q("commit")),
		fixture.NewSequence("set transaction", q("begin"), q("set transaction isolation level repeatable read"), q("insert into t values (10, 'a')"), q("commit")),
		fixture.NewSequence("read only", q("begin read only"), q("insert into t values (10, 'a')"), q("rollback")),
		fixture.NewSequence("savepoints", q("begin"), q("savepoint a"), q("insert into t values (10, 'a')"), q("rollback to a"), q("insert into t values (11, 'b')"), q("release a"), q("commit"), q("select * from t order by id")),
		fixture.NewSequence("failed transaction", q("begin"), q("select 1/0"), q("select 1"), q("insert into t values (10, 'a')"), q("rollback"), q("select count(*) from t")),
		fixture.NewSequence("failed and rolled back to", q("begin"), q("savepoint a"), q("select 1/0"), q("rollback to a"), q("insert into t values (10, 'a')"), q("commit")),
		fixture.NewSequence("commit of a failed one", q("begin"), q("select 1/0"), q("commit")),
		fixture.NewSequence("warnings", q("commit"), q("rollback"), q("begin"), q("begin"), q("commit"), q("set local work_mem = '1MB'"), q("set constraints all deferred")),
		fixture.NewSequence("deferred constraint", q("insert into d values (1, 99)"), q("begin"), q("insert into d values (1, 99)"), q("commit")),
		fixture.NewSequence("ddl", q("create table x (a int); create index on x (a)"), q("alter table x add b text"), q("drop table x")),
		fixture.NewSequence("vacuum", q("vacuum t"), q("analyze t"), q("vacuum t; select 1")),
		fixture.NewSequence("vacuum in a block", q("begin"), q("vacuum t"), q("rollback")),
		fixture.NewSequence("concurrently", q("create index concurrently ti on t (v)"), q("drop index concurrently ti")),
		fixture.NewSequence("call with commit", q("call twice(20)"), q("select count(*) from t")),
		fixture.NewSequence("call with commit in a block", q("begin"), q("call twice(20)"), q("rollback"), q("select count(*) from t")),
		fixture.NewSequence("call with commit among others", q("select 1; call twice(20)"), q("select count(*) from t")),
		fixture.NewSequence("do with commit", q("do $$begin insert into t values (30, 'x'); commit; insert into t values (31, 'x'); end$$"), q("select count(*) from t")),
		fixture.NewSequence("functions that write", q("select wr(40)"), q("select * from w"), q("select count(*) from t")),
		fixture.NewSequence("lock", q("lock table t")), fixture.NewSequence("lock in a block", q("begin"), q("lock table t"), q("commit")),
		fixture.NewSequence("copy in", q("copy t from stdin"), nil),
		fixture.NewSequence("sql prepare", q("prepare p as select 1 as a"), q("execute p"), q("deallocate p"), q("execute p")),
		fixture.NewSequence("sql prepare with a write", q("prepare p(int) as insert into t values ($1, 'p')"), q("execute p(50)"), q("execute p(50)"), q("select count(*) from t")),
		fixture.NewSequence("cursor", q("begin"), q("declare c cursor for select * from t order by id"), q("fetch 2 from c"), q("move 1 from c"), q("close c"), q("commit")),
		fixture.NewSequence("cursor with hold", q("declare c cursor with hold for select * from t order by id"), q("fetch 2 from c"), q("close c")),
		fixture.NewSequence("query text", q("select current_query()"), q("prepare pp as select 2"), q("select name, statement from pg_prepared_statements where name = 'pp'")),
		fixture.NewSequence("discard all", q("discard all"), q("insert into t values (10, 'a')"), q("discard all"), q("select count(*) from t")),
		fixture.NewSequence("discard all in a block", q("begin"), q("discard all"), q("rollback"), q("insert into t values (10, 'a')")),
		fixture.NewSequence("deallocate all", q("deallocate all"), q("insert into t values (10, 'a')"), cat(run("insert into t values (11, 'a')"), sync_())),
		fixture.NewSequence("two phase refused by us only", q("select 1")),
		fixture.NewSequence("listen", q("listen ch"), q("notify ch, 'x'"), q("unlisten ch")),
		fixture.NewSequence("show and set", q("show work_mem"), q("set work_mem = '5MB'"), q("show work_mem"), q("reset work_mem"), q("set nothing = 1")),
		fixture.NewSequence("explain", q("explain (costs off) select * from t"), q("explain (analyze, costs off, timing off, summary off) insert into t values (60, 'e')"), q("select count(*) from t")),
		fixture.NewSequence("returning", q("insert into t values (10, 'a') returning *"), q("update t set v = 'z' where id = 10 returning v"), q("delete from t where id = 10")),
		fixture.NewSequence("conflict", q("insert into t values (1, 'a')"), q("insert into t values (1, 'a') on conflict do nothing")),
		fixture.NewSequence("truncate", q("truncate t, d"), q("select count(*) from t")),
		fixture.NewSequence("select into", q("select * into x from t"), q("create table y as select * from t")),
		fixture.NewSequence("raise notice", q("do $$begin raise notice 'hello'; end$$"), q("select 1")),
		fixture.NewSequence("temp tables", q("create temp table tt (a int); insert into tt values (1); select * from tt")),
		fixture.NewSequence("large object", q("select lo_create(4711)"), q("begin; select lo_unlink(4711); commit")),
		fixture.NewSequence("nul in the text", wiretest.Msg('Q', []byte("select 1\x00select 2\x00")), q("select 3")),
		fixture.NewSequence("pipelined queries", cat(q("select 1"), q("insert into t values (10, 'a')"), q("select 1/0"), q("select count(*) from t")), nil, nil, nil),
		fixture.NewSequence("pipelined block", cat(q("begin"), q("insert into t values (10, 'a')"), q("commit"), q("insert into t values (11, 'a')")), nil, nil, nil),
		fixture.NewSequence("pipelined failed block", cat(q("begin"), q("savepoint s"), q("select 1/0"), q("rollback to s"), q("insert into t values (11, 'a')"), q("commit")), nil, nil, nil, nil, nil),

		fixture.NewSequence("extended", cat(run("insert into t values ($1, $2)", "10", "a"), sync_()), cat(run("select * from t where id = $1", "10"), sync_())),
		fixture.NewSequence("extended without describe", cat(parse("", "insert into t values (10, 'a')"), bind("", ""), exec("", 0), sync_())),
		fixture.NewSequence("named", cat(parse("s1", "insert into t values ($1::int, 'n')"), desc('S', "s1"), sync_()), cat(bind("", "s1", "70"), exec("", 0), sync_()), cat(bind("", "s1", "71"), exec("", 0), sync_()), cat(shut('S', "s1"), sync_()), cat(bind("", "s1", "72"), exec("", 0), sync_()), q("select count(*) from t")),
		fixture.NewSequence("named twice", cat(parse("s1", "select 1"), sync_()), cat(parse("s1", "insert into t values (10, 'a')"), sync_()), cat(bind("", "s1"), exec("", 0), sync_())),
		fixture.NewSequence("several executes, one sync", cat(run("insert into t values (10, 'a')"), run("insert into t values (11, 'a')"), run("select count(*) from t"), sync_())),
		fixture.NewSequence("several executes, one fails", cat(run("insert into t values (10, 'a')"), run("select 1/0"), run("select count(*) from t"), sync_()), q("select count(*) from t")),
		fixture.NewSequence("pipelined syncs", cat(run("insert into t values (10, 'a')"), sync_(), run("select 1/0"), sync_(), run("insert into t values (11, 'a')"), sync_(), run("select count(*) from t"), sync_()), nil, nil, nil),
		fixture.NewSequence("extended block", cat(run("begin"), sync_()), cat(run("insert into t values (10, 'a')"), sync_()), cat(run("commit"), sync_()), q("select count(*) from t")),
		fixture.NewSequence("extended block in one batch", cat(run("begin"), run("insert into t values (10, 'a')"), run("commit"), run("insert into t values (11, 'a')"), sync_()), q("select count(*) from t")),
		fixture.NewSequence("extended failed block in one batch", cat(run("begin"), run("insert into t values (10, 'a')"), run("select 1/0"), sync_()), cat(run("select 1"), sync_()), cat(run("rollback"), run("insert into t values (12, 'a')"), sync_()), q("select count(*) from t")),
		fixture.NewSequence("isolation by extended messages", cat(run("begin isolation level repeatable read"), sync_()), cat(run("insert into t values (10, 'a')"), sync_()), cat(run("commit"), sync_())),
		fixture.NewSequence("portal with rows", cat(run("begin"), parse("", "select * from t order by id"), bind("c1", ""), exec("c1", 2), flush(), exec("c1", 2), sync_()), cat(run("commit"), sync_())),
		fixture.NewSequence("portal over messages", cat(run("begin"), sync_()), cat(parse("", "select * from t order by id"), bind("c1", ""), exec("c1", 1), sync_()), cat(exec("c1", 1), sync_()), cat(shut('P', "c1"), exec("c1", 1), sync_()), cat(run("rollback"), sync_())),
		fixture.NewSequence("portal of a finished transaction", cat(parse("", "select * from t order by id"), bind("c1", ""), exec("c1", 1), sync_()), cat(exec("c1", 1), sync_())),
		fixture.NewSequence("empty by extended messages", cat(parse("", ""), desc('S', ""), bind("", ""), desc('P', ""), exec("", 0), sync_())),
		fixture.NewSequence("unknown names", cat(bind("", "nope"), sync_()), cat(desc('S', "nope"), sync_()), cat(desc('P', "nope"), sync_()), cat(exec("nope", 0), sync_()), cat(shut('S', "nope"), shut('P', "nope"), sync_())),
		fixture.NewSequence("wrong number of parameters", cat(parse("", "select $1::int"), bind("", ""), exec("", 0), sync_())),
		fixture.NewSequence("zero columns", q("select from t"), cat(run("select from t"), sync_())),
		fixture.NewSequence("vacuum by extended messages", cat(run("vacuum t"), sync_())),
		fixture.NewSequence("vacuum in a pipeline", cat(run("vacuum t"), run("select 1"), sync_())),
		fixture.NewSequence("call by extended messages", cat(run("call twice(20)"), sync_()), q("select count(*) from t")),
		fixture.NewSequence("call with parameters", cat(run("call twice($1)", "20"), sync_()), q("select count(*) from t")),
		fixture.NewSequence("do by extended messages", cat(run("do $$begin insert into t values (30, 'x'); commit; insert into t values (31, 'x'); end$$"), sync_()), q("select count(*) from t")),
		fixture.NewSequence("prepared call", cat(parse("c", "call twice($1)"), sync_()), cat(bind("", "c", "20"), exec("", 0), sync_()), q("select count(*) from t")),
		fixture.NewSequence("discard all by extended messages", cat(run("discard all"), sync_()), cat(run("insert into t values (10, 'a')"), sync_())),
		fixture.NewSequence("lone syncs", cat(sync_(), sync_(), sync_()), nil, nil, q("select 1")),
		fixture.NewSequence("flush alone", cat(flush(), flush(), q("select 1"))),
		fixture.NewSequence("query behind extended messages", cat(run("insert into t values (10, 'a')"), sync_(), q("select count(*) from t"), run("select 2"), sync_()), nil, nil),
		fixture.NewSequence("query in an open batch", cat(parse("s", "select 1"), q("insert into t values (10, 'a')")), cat(sync_(), q("select count(*) from t")), nil),
		fixture.NewSequence("query after a failed batch", cat(run("select 1/0"), q("insert into t values (10, 'a')"), sync_()), q("select count(*) from t")),
		fixture.NewSequence("copy by extended messages", cat(parse("", "copy t from stdin"), bind("", ""), exec("", 0), wiretest.CopyData("80\tx\n"), wiretest.CopyDone(), sync_()), q("select count(*) from t")),
		fixture.NewSequence("copy with sync right after execute", cat(parse("", "copy t from stdin"), bind("", ""), exec("", 0), sync_(), wiretest.CopyData("80\tx\n"), wiretest.CopyDone(), sync_()), q("select count(*) from t")),
		fixture.NewSequence("copy that fails at once, with sync", cat(parse("", "copy nope from stdin"), bind("", ""), exec("", 0), sync_(), wiretest.CopyData("80\tx\n"), wiretest.CopyDone(), sync_()), nil, q("select count(*) from t")),
		fixture.NewSequence("copy data in advance", cat(q("copy t from stdin"), wiretest.CopyData("80\tx\n81\ty\n"), wiretest.CopyDone()), q("select count(*) from t")),
		fixture.NewSequence("copy fail", cat(q("copy t from stdin"), wiretest.CopyData("80\tx\n"), wiretest.CopyFail("no more")), q("select count(*) from t")),
		fixture.NewSequence("copy with bad data", cat(q("copy t from stdin"), wiretest.CopyData("80\tx\nbad\n"), wiretest.CopyData("81\ty\n"), wiretest.CopyDone()), q("select count(*) from t")),
		fixture.NewSequence("copy among others", cat(q("insert into t values (10, 'a'); copy t from stdin; select count(*) from t"), wiretest.CopyData("80\tx\n"), wiretest.CopyDone()), q("select 1")),
		fixture.NewSequence("copy out", q("copy (select * from t order by id) to stdout"), cat(run("copy t to stdout"), sync_()), q("select 1")),
		fixture.NewSequence("stray copy messages", cat(wiretest.CopyData("x"), wiretest.CopyDone(), wiretest.CopyFail("x"), q("select 1")), q("select 2")),
		fixture.NewSequence("query inside a copy", cat(q("copy t from stdin"), wiretest.CopyData("80\tx\n"), q("select 1")), nil, nil), // ends the connection
		fixture.NewSequence("function call", cat(wiretest.Msg('F', []byte{0, 0, 4, 0x57}, []byte{0, 0, 0, 0, 0, 0})), q("select 1")),   // an oid that is no function
		fixture.NewSequence("malformed bind", cat(wiretest.Msg('B', []byte("x")), sync_())),
		fixture.NewSequence("malformed describe", cat(wiretest.Msg('D', []byte("Z\x00")), sync_())),
		fixture.NewSequence("malformed parse", cat(wiretest.Msg('P', []byte("x")), sync_())),
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
