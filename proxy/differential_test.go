package proxy_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// sequence is what a client sends, in pieces: before each piece but the first
// it waits for a ReadyForQuery.
type sequence struct {
	name   string
	pieces [][]byte
}

func seq(name string, pieces ...[]byte) sequence { return sequence{name, pieces} }

func cat(parts ...[]byte) []byte {
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

var (
	q     = wiretest.Query
	parse = wiretest.Parse
	bind  = wiretest.Bind
	desc  = wiretest.Describe
	exec  = wiretest.Execute
	shut  = wiretest.Close
	sync_ = wiretest.Sync
	flush = wiretest.Flush
	run   = wiretest.Run
)

const prelude = `create table t (id int primary key, v text);
create table d (id int primary key, t int references t (id) deferrable initially deferred);
create function wr(i int) returns int language sql as 'insert into t values (i, ''f''); select i';
create procedure twice(i int) language plpgsql as $$begin insert into t values (i, 'p'); commit; insert into t values (i + 1, 'p'); end$$;
create view w as select wr(900) as x;
insert into t values (1, 'one'), (2, 'two'), (3, 'three')`

// reset makes every sequence begin with the same tables.
const reset = `reset role; drop schema public cascade; create schema public; grant all on schema public to app;
select lo_unlink(oid) from pg_largeobject_metadata; set role app; ` + prelude

func sequences() []sequence {
	return []sequence{
		seq("insert", q("insert into t values (10, 'a')")),
		seq("select", q("select * from t order by id")),
		seq("several messages", q("select 1"), q("insert into t values (10, 'a')"), q("select count(*) from t")),
		seq("error in the middle of a text", q("select * from missing")),
		seq("error position in a long text", q("/* é */ select 1, 'ü', nothing from t")),
		seq("syntax error", q("selec 1")),
		seq("syntax error behind a semicolon", q("select 1; selec 2")),
		seq("empty", q("")), seq("semicolons", q(" ;; ")), seq("comment", q("-- nothing")),
		seq("two statements", q("insert into t values (10, 'a'); select * from t order by id")),
		seq("two statements, the second fails", q("insert into t values (10, 'a'); select 1/0"), q("select count(*) from t")),
		seq("commit inside a text", q("insert into t values (10, 'a'); commit; insert into t values (11, 'b')"), q("select count(*) from t")),
		seq("rollback inside a text", q("begin; insert into t values (10, 'a'); rollback; insert into t values (11, 'b'); select nothing"), q("select count(*) from t")),
		seq("error behind a commit inside a text", q("begin; insert into t values (10, 'é'); commit; insert into t values (11, 'é'); select 'ü', nothing"), q("select count(*) from t")),
		seq("begin and chain", q("begin"), q("insert into t values (10, 'a')"), q("commit and chain"), q("insert into t values (11, 'a')"), q("commit"), q("select * from t order by id")),
		seq("isolation", q("begin isolation level serializable"), q("select count(*) from t"), q("insert into t values (10, 'a')"), q("commit")),
		seq("set transaction", q("begin"), q("set transaction isolation level repeatable read"), q("insert into t values (10, 'a')"), q("commit")),
		seq("read only", q("begin read only"), q("insert into t values (10, 'a')"), q("rollback")),
		seq("savepoints", q("begin"), q("savepoint a"), q("insert into t values (10, 'a')"), q("rollback to a"), q("insert into t values (11, 'b')"), q("release a"), q("commit"), q("select * from t order by id")),
		seq("failed transaction", q("begin"), q("select 1/0"), q("select 1"), q("insert into t values (10, 'a')"), q("rollback"), q("select count(*) from t")),
		seq("failed and rolled back to", q("begin"), q("savepoint a"), q("select 1/0"), q("rollback to a"), q("insert into t values (10, 'a')"), q("commit")),
		seq("commit of a failed one", q("begin"), q("select 1/0"), q("commit")),
		seq("warnings", q("commit"), q("rollback"), q("begin"), q("begin"), q("commit"), q("set local work_mem = '1MB'"), q("set constraints all deferred")),
		seq("deferred constraint", q("insert into d values (1, 99)"), q("begin"), q("insert into d values (1, 99)"), q("commit")),
		seq("ddl", q("create table x (a int); create index on x (a)"), q("alter table x add b text"), q("drop table x")),
		seq("vacuum", q("vacuum t"), q("analyze t"), q("vacuum t; select 1")),
		seq("vacuum in a block", q("begin"), q("vacuum t"), q("rollback")),
		seq("concurrently", q("create index concurrently ti on t (v)"), q("drop index concurrently ti")),
		seq("call with commit", q("call twice(20)"), q("select count(*) from t")),
		seq("call with commit in a block", q("begin"), q("call twice(20)"), q("rollback"), q("select count(*) from t")),
		seq("call with commit among others", q("select 1; call twice(20)"), q("select count(*) from t")),
		seq("do with commit", q("do $$begin insert into t values (30, 'x'); commit; insert into t values (31, 'x'); end$$"), q("select count(*) from t")),
		seq("functions that write", q("select wr(40)"), q("select * from w"), q("select count(*) from t")),
		seq("lock", q("lock table t")), seq("lock in a block", q("begin"), q("lock table t"), q("commit")),
		seq("copy in", q("copy t from stdin"), nil),
		seq("sql prepare", q("prepare p as select 1 as a"), q("execute p"), q("deallocate p"), q("execute p")),
		seq("sql prepare with a write", q("prepare p(int) as insert into t values ($1, 'p')"), q("execute p(50)"), q("execute p(50)"), q("select count(*) from t")),
		seq("cursor", q("begin"), q("declare c cursor for select * from t order by id"), q("fetch 2 from c"), q("move 1 from c"), q("close c"), q("commit")),
		seq("cursor with hold", q("declare c cursor with hold for select * from t order by id"), q("fetch 2 from c"), q("close c")),
		seq("query text", q("select current_query()"), q("prepare pp as select 2"), q("select name, statement from pg_prepared_statements where name = 'pp'")),
		seq("discard all", q("discard all"), q("insert into t values (10, 'a')"), q("discard all"), q("select count(*) from t")),
		seq("discard all in a block", q("begin"), q("discard all"), q("rollback"), q("insert into t values (10, 'a')")),
		seq("deallocate all", q("deallocate all"), q("insert into t values (10, 'a')"), cat(run("insert into t values (11, 'a')"), sync_())),
		seq("two phase refused by us only", q("select 1")),
		seq("listen", q("listen ch"), q("notify ch, 'x'"), q("unlisten ch")),
		seq("show and set", q("show work_mem"), q("set work_mem = '5MB'"), q("show work_mem"), q("reset work_mem"), q("set nothing = 1")),
		seq("explain", q("explain (costs off) select * from t"), q("explain (analyze, costs off, timing off, summary off) insert into t values (60, 'e')"), q("select count(*) from t")),
		seq("returning", q("insert into t values (10, 'a') returning *"), q("update t set v = 'z' where id = 10 returning v"), q("delete from t where id = 10")),
		seq("conflict", q("insert into t values (1, 'a')"), q("insert into t values (1, 'a') on conflict do nothing")),
		seq("truncate", q("truncate t, d"), q("select count(*) from t")),
		seq("select into", q("select * into x from t"), q("create table y as select * from t")),
		seq("raise notice", q("do $$begin raise notice 'hello'; end$$"), q("select 1")),
		seq("temp tables", q("create temp table tt (a int); insert into tt values (1); select * from tt")),
		seq("large object", q("select lo_create(4711)"), q("begin; select lo_unlink(4711); commit")),
		seq("nul in the text", wiretest.Msg('Q', []byte("select 1\x00select 2\x00")), q("select 3")),
		seq("pipelined queries", cat(q("select 1"), q("insert into t values (10, 'a')"), q("select 1/0"), q("select count(*) from t")), nil, nil, nil),
		seq("pipelined block", cat(q("begin"), q("insert into t values (10, 'a')"), q("commit"), q("insert into t values (11, 'a')")), nil, nil, nil),
		seq("pipelined failed block", cat(q("begin"), q("savepoint s"), q("select 1/0"), q("rollback to s"), q("insert into t values (11, 'a')"), q("commit")), nil, nil, nil, nil, nil),

		seq("extended", cat(run("insert into t values ($1, $2)", "10", "a"), sync_()), cat(run("select * from t where id = $1", "10"), sync_())),
		seq("extended without describe", cat(parse("", "insert into t values (10, 'a')"), bind("", ""), exec("", 0), sync_())),
		seq("named", cat(parse("s1", "insert into t values ($1::int, 'n')"), desc('S', "s1"), sync_()), cat(bind("", "s1", "70"), exec("", 0), sync_()), cat(bind("", "s1", "71"), exec("", 0), sync_()), cat(shut('S', "s1"), sync_()), cat(bind("", "s1", "72"), exec("", 0), sync_()), q("select count(*) from t")),
		seq("named twice", cat(parse("s1", "select 1"), sync_()), cat(parse("s1", "insert into t values (10, 'a')"), sync_()), cat(bind("", "s1"), exec("", 0), sync_())),
		seq("several executes, one sync", cat(run("insert into t values (10, 'a')"), run("insert into t values (11, 'a')"), run("select count(*) from t"), sync_())),
		seq("several executes, one fails", cat(run("insert into t values (10, 'a')"), run("select 1/0"), run("select count(*) from t"), sync_()), q("select count(*) from t")),
		seq("pipelined syncs", cat(run("insert into t values (10, 'a')"), sync_(), run("select 1/0"), sync_(), run("insert into t values (11, 'a')"), sync_(), run("select count(*) from t"), sync_()), nil, nil, nil),
		seq("extended block", cat(run("begin"), sync_()), cat(run("insert into t values (10, 'a')"), sync_()), cat(run("commit"), sync_()), q("select count(*) from t")),
		seq("extended block in one batch", cat(run("begin"), run("insert into t values (10, 'a')"), run("commit"), run("insert into t values (11, 'a')"), sync_()), q("select count(*) from t")),
		seq("extended failed block in one batch", cat(run("begin"), run("insert into t values (10, 'a')"), run("select 1/0"), sync_()), cat(run("select 1"), sync_()), cat(run("rollback"), run("insert into t values (12, 'a')"), sync_()), q("select count(*) from t")),
		seq("isolation by extended messages", cat(run("begin isolation level repeatable read"), sync_()), cat(run("insert into t values (10, 'a')"), sync_()), cat(run("commit"), sync_())),
		seq("portal with rows", cat(run("begin"), parse("", "select * from t order by id"), bind("c1", ""), exec("c1", 2), flush(), exec("c1", 2), sync_()), cat(run("commit"), sync_())),
		seq("portal over messages", cat(run("begin"), sync_()), cat(parse("", "select * from t order by id"), bind("c1", ""), exec("c1", 1), sync_()), cat(exec("c1", 1), sync_()), cat(shut('P', "c1"), exec("c1", 1), sync_()), cat(run("rollback"), sync_())),
		seq("portal of a finished transaction", cat(parse("", "select * from t order by id"), bind("c1", ""), exec("c1", 1), sync_()), cat(exec("c1", 1), sync_())),
		seq("empty by extended messages", cat(parse("", ""), desc('S', ""), bind("", ""), desc('P', ""), exec("", 0), sync_())),
		seq("unknown names", cat(bind("", "nope"), sync_()), cat(desc('S', "nope"), sync_()), cat(desc('P', "nope"), sync_()), cat(exec("nope", 0), sync_()), cat(shut('S', "nope"), shut('P', "nope"), sync_())),
		seq("wrong number of parameters", cat(parse("", "select $1::int"), bind("", ""), exec("", 0), sync_())),
		seq("zero columns", q("select from t"), cat(run("select from t"), sync_())),
		seq("vacuum by extended messages", cat(run("vacuum t"), sync_())),
		seq("vacuum in a pipeline", cat(run("vacuum t"), run("select 1"), sync_())),
		seq("call by extended messages", cat(run("call twice(20)"), sync_()), q("select count(*) from t")),
		seq("call with parameters", cat(run("call twice($1)", "20"), sync_()), q("select count(*) from t")),
		seq("do by extended messages", cat(run("do $$begin insert into t values (30, 'x'); commit; insert into t values (31, 'x'); end$$"), sync_()), q("select count(*) from t")),
		seq("prepared call", cat(parse("c", "call twice($1)"), sync_()), cat(bind("", "c", "20"), exec("", 0), sync_()), q("select count(*) from t")),
		seq("discard all by extended messages", cat(run("discard all"), sync_()), cat(run("insert into t values (10, 'a')"), sync_())),
		seq("lone syncs", cat(sync_(), sync_(), sync_()), nil, nil, q("select 1")),
		seq("flush alone", cat(flush(), flush(), q("select 1"))),
		seq("query behind extended messages", cat(run("insert into t values (10, 'a')"), sync_(), q("select count(*) from t"), run("select 2"), sync_()), nil, nil),
		seq("query in an open batch", cat(parse("s", "select 1"), q("insert into t values (10, 'a')")), cat(sync_(), q("select count(*) from t")), nil),
		seq("query after a failed batch", cat(run("select 1/0"), q("insert into t values (10, 'a')"), sync_()), q("select count(*) from t")),
		seq("copy by extended messages", cat(parse("", "copy t from stdin"), bind("", ""), exec("", 0), wiretest.CopyData("80\tx\n"), wiretest.CopyDone(), sync_()), q("select count(*) from t")),
		seq("copy with sync right after execute", cat(parse("", "copy t from stdin"), bind("", ""), exec("", 0), sync_(), wiretest.CopyData("80\tx\n"), wiretest.CopyDone(), sync_()), q("select count(*) from t")),
		seq("copy that fails at once, with sync", cat(parse("", "copy nope from stdin"), bind("", ""), exec("", 0), sync_(), wiretest.CopyData("80\tx\n"), wiretest.CopyDone(), sync_()), nil, q("select count(*) from t")),
		seq("copy data in advance", cat(q("copy t from stdin"), wiretest.CopyData("80\tx\n81\ty\n"), wiretest.CopyDone()), q("select count(*) from t")),
		seq("copy fail", cat(q("copy t from stdin"), wiretest.CopyData("80\tx\n"), wiretest.CopyFail("no more")), q("select count(*) from t")),
		seq("copy with bad data", cat(q("copy t from stdin"), wiretest.CopyData("80\tx\nbad\n"), wiretest.CopyData("81\ty\n"), wiretest.CopyDone()), q("select count(*) from t")),
		seq("copy among others", cat(q("insert into t values (10, 'a'); copy t from stdin; select count(*) from t"), wiretest.CopyData("80\tx\n"), wiretest.CopyDone()), q("select 1")),
		seq("copy out", q("copy (select * from t order by id) to stdout"), cat(run("copy t to stdout"), sync_()), q("select 1")),
		seq("stray copy messages", cat(wiretest.CopyData("x"), wiretest.CopyDone(), wiretest.CopyFail("x"), q("select 1")), q("select 2")),
		seq("query inside a copy", cat(q("copy t from stdin"), wiretest.CopyData("80\tx\n"), q("select 1")), nil, nil), // ends the connection
		seq("function call", cat(wiretest.Msg('F', []byte{0, 0, 4, 0x57}, []byte{0, 0, 0, 0, 0, 0})), q("select 1")),   // an oid that is no function
		seq("malformed bind", cat(wiretest.Msg('B', []byte("x")), sync_())),
		seq("malformed describe", cat(wiretest.Msg('D', []byte("Z\x00")), sync_())),
		seq("malformed parse", cat(wiretest.Msg('P', []byte("x")), sync_())),
		seq("unknown message", wiretest.Msg('y', []byte("x"))),
		seq("password message", wiretest.Msg('p', []byte("x\x00"))),
	}
}

// transcript plays s on a new connection and returns what came back, up to the
// end of the connection.
func transcript(t *testing.T, address string, s sequence, params ...string) []string {
	t.Helper()
	c, _ := wiretest.Connect(t, address, params...)
	var all []wiretest.Message
	add := func() bool {
		for {
			m, err := c.Next()
			if errors.Is(err, io.EOF) {
				return false
			}
			if err != nil {
				t.Fatalf("%s: the next reply: %v; before it: %v", s.name, err, all)
			}
			all = append(all, m)
			if m.Type == 'Z' || m.Type == 'G' {
				return true
			}
		}
	}
	for i, p := range s.pieces {
		if i > 0 && !add() {
			break
		}
		if p != nil {
			c.Send(p)
		}
	}
	if _, err := c.Write(wiretest.Terminate()); err == nil {
		all = append(all, c.Rest()...)
	}
	lines := make([]string, 0, len(all))
	for _, m := range all {
		if line := m.String(); !strings.HasPrefix(line, `S "fencepost.`) {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestLeaderSeesWhatPostgresSays plays each sequence against Postgres itself
// and through the proxy as leader, and compares message by message, and the
// tables afterwards.
func TestLeaderSeesWhatPostgresSays(t *testing.T) {
	t.Parallel()
	for name, pg := range map[string]*pgtest.Server{"default": pgtest.Shared(t), "18": pgtest.Start(t, pgtest.WithBinaries(pgtest.Binaries(t, 18)))} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, pg, nil)
			db := pg.Database(t)
			direct, proxied := pg.Connect(t, pgtest.Superuser, pg.Database(t)), pg.Connect(t, pgtest.Superuser, db)
			holder, _ := wiretest.Connect(t, b.addr, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "w")
			b.seat(db, "r", "w").Grant()
			defer holder.Close()
			for _, s := range sequences() {
				t.Run(strings.ReplaceAll(s.name, " ", "_"), func(t *testing.T) {
					compareAsLeader(t, b, direct, proxied, s)
				})
			}
		})
	}
}

func compareAsLeader(t *testing.T, b *bench, direct, proxied *pgx.Conn, s sequence) {
	for _, admin := range []*pgx.Conn{direct, proxied} {
		if _, err := admin.Exec(t.Context(), reset); err != nil {
			t.Fatal(err)
		}
	}
	params := func(c *pgx.Conn) []string {
		return []string{"user", pgtest.App, "database", c.Config().Database, "client_encoding", "UTF8"}
	}
	own := []string{"options", "-c fencepost.resource=r -c fencepost.worker=w"}

	want := transcript(t, b.pg.Addr(), s, params(direct)...)
	got := transcript(t, b.addr, s, append(params(proxied), own...)...)
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			t.Fatalf("message %d differs\nPostgres:\n  %s\nFencepost:\n  %s", i, strings.Join(want, "\n  "), strings.Join(got, "\n  "))
		}
	}
	if w, g := tables(t, direct), tables(t, proxied); w != g {
		t.Errorf("tables differ: Postgres %s, Fencepost %s", w, g)
	}
}

func tables(t *testing.T, admin *pgx.Conn) string {
	t.Helper()
	var all string
	err := admin.QueryRow(t.Context(), "select coalesce(string_agg(t::text, ' ' order by id), '') from t").Scan(&all)
	if err != nil {
		t.Fatal(err)
	}
	return all
}
