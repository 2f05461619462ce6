package protocol

import (
	"fmt"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
)

const shouts = `create function say(i int) returns int language plpgsql as $$begin raise notice 'said %', i; raise warning 'warned %', i using detail = 'd', hint = 'h'; return i; end$$;
create function later() returns trigger language plpgsql as $$begin raise notice 'at the end'; return null; end$$;
create constraint trigger later after insert on t deferrable initially deferred for each row execute function later()`

// TestProtocolNotices: NoticeResponse, ParameterStatus and NotificationResponse
// at every point, in the server's order.
func TestProtocolNotices(t *testing.T) {
	t.Parallel()
	setup := at("Z", q(shouts))
	beside := func(sql string) step { return then(func(s *session) { s.sql(sql) }) }
	compareScripts(t,
		newScript("notices among rows", setup, at("Z", q("select say(g) from generate_series(1, 3) g")), at("Z", run("select say(g) from generate_series(1, 3) g"), sync_())),
		newScript("notices and an error", setup, at("Z", q("select say(1), 1/0; select say(2)")), at("Z", run("select say(1)"), run("select 1/0"), run("select say(2)"), sync_())),
		newScript("notices at the end", setup, at("Z", q("insert into t values (10, 'x')")), at("Z", run("insert into t values (11, 'x')"), sync_()), at("Z", q("begin")), at("Z", q("insert into t values (12, 'x')")), at("Z", q("commit")), at("Z", run("insert into t values (13, 'x')"), run("select 1"), sync_())),
		newScript("notices of a planner", setup, at("Z", q("create function fold(int) returns int immutable language plpgsql as $$begin raise notice 'folded'; return $1; end$$")), at("Z", q("select fold(1)")), at("Z", parse("s", "select fold(1)"), desc('S', "s"), bind("", "s"), exec("", 0), sync_())),
		newScript("notices hidden and shown", setup, at("Z", q("set client_min_messages = error")), at("Z", q("select say(1)")), at("Z", q("set client_min_messages = debug1")), at("Z", q("select say(1)"))),
		newScript("warnings of statements", at("Z", q("commit")), at("Z", q("rollback; select 1; commit")), at("Z", run("commit"), sync_()), at("Z", q("set local work_mem = '1MB'")), at("Z", q("select 1; set local work_mem = '1MB'")), at("Z", q("drop table if exists nope; create table if not exists t ()")), at("Z", q("begin; begin; commit")), at("Z", q("abort"))),
		newScript("parameters in their places", at("Z", q("set application_name = 'a'; select 1; set application_name = 'b'; select 2")), at("Z", run("set application_name = 'c'"), run("select 3"), run("set datestyle = 'German'"), sync_()), at("Z", q("select set_config('timezone', 'Asia/Tokyo', false), 1")), at("Z", q("reset all")), at("Z", q("discard all"))),
		newScript("parameters that a rollback sets back", at("Z", q("begin; set application_name = 'x'")), at("Z", q("select 1")), at("Z", q("rollback")), at("Z", q("begin; savepoint a; set application_name = 'y'; rollback to a; set local application_name = 'z'; commit")), at("Z", q("begin; set application_name = 'w'; select 1/0"))),
		newScript("parameters that a function sets", at("Z", q("create function named() returns int language sql set application_name = 'inner' as 'select 1'")), at("Z", q("select named()")), at("Z", run("select named()"), sync_()), at("Z", q("select set_config('application_name', 'tx', true)"))),
		newScript("a notification of one's own", at("Z", q("listen ch")), at("Z", q("notify ch, 'one'")), at("Z", q("begin; notify ch, 'two'; notify ch, 'three'; notify ch, 'two'; commit")), at("Z", run("notify ch, 'four'"), sync_()), at("Z", q("select pg_notify('ch', 'five')")), at("Z", q("notify ch; select 1; commit; select 2"))),
		newScript("a notification while idle", at("Z", q("listen ch")), beside("notify ch, 'x'"), at("A"), beside("notify ch, 'y'; notify ch, 'z'"), at("AA"), at("Z", q("select 1")), at("Z", q("unlisten *")), beside("notify ch, 'unheard'"), at("Z", q("select 2"))),
		newScript("a notification while idle, listened by messages", at("Z", run("listen ch"), sync_()), beside("notify ch, 'x'"), at("A"), at("Z", sync_())),
		newScript("a notification inside a block", at("Z", q("listen ch")), at("Z", q("begin")), beside("notify ch, 'x'"), at("Z", q("select 1")), at("Z", q("insert into t values (10, 'x')")), at("AZ", q("commit"))),
		newScript("a notification inside an open batch", at("Z", q("listen ch")), at("1", parse("", "select 1"), flush()), beside("notify ch, 'x'"), at("2C", bind("", ""), exec("", 0), flush()), at("AZ", sync_())),
		newScript("a notification inside a failed block", at("Z", q("listen ch")), at("Z", q("begin")), at("Z", q("select 1/0")), beside("notify ch, 'x'"), at("Z", q("select 1")), at("AZ", q("rollback"))),
		newScript("a notification inside COPY", at("Z", q("listen ch")), at("G", q("copy t from stdin")), beside("notify ch, 'x'"), at("AZ", wiretest.CopyData("80\tx\n"), wiretest.CopyDone())),
		newScript("listen undone", at("Z", q("begin; listen ch; rollback")), beside("notify ch, 'x'"), at("Z", q("select * from pg_listening_channels()"))),
		newScript("many notifications", at("Z", q("listen ch")), beside("select pg_notify('ch', 'n' || g) from generate_series(1, 2000) g"), at("AAA"), at("Z", q("select 1"))),
	)
}

// TestProtocolEnds: how a session ends, by either side and in the middle.
func TestProtocolEnds(t *testing.T) {
	t.Parallel()
	ins := q("insert into t values (10, 'x')")
	end := then(func(s *session) {
		fixture.AwaitBackend(s.t, s.admin, fmt.Sprintf("pid = %d and wait_event = 'ClientRead'", s.pid()))
		s.sql(fmt.Sprintf("select pg_terminate_backend(%d, 5000)", s.pid()))
	})
	// A statement_timeout that expires between two messages is raised at the second.
	limit, off := at("Z", q("set statement_timeout = '400ms'")), at("Z", q("set statement_timeout = 0"))
	late := then(func(s *session) { s.sql("select pg_sleep(0.5)") })
	batch := func(sql string) step { return at("2", parse("", sql), bind("", ""), flush()) }
	other := "insert into t values (11, 'x')"
	compareScripts(t,
		newScript("terminate behind work", at("$", ins, wiretest.Terminate())),
		newScript("terminate behind a batch", at("$", run("insert into t values (10, 'x')"), sync_(), wiretest.Terminate())),
		newScript("terminate behind half a batch", at("$", run("insert into t values (10, 'x')"), wiretest.Terminate())),
		newScript("terminate inside a block", at("Z", q("begin")), at("$", ins, wiretest.Terminate(), ins)),
		newScript("terminate behind a block", at("$", q("begin"), ins, q("commit"), wiretest.Terminate())),
		newScript("ended while idle", at("Z", ins), end, at("$")),
		newScript("ended in a block", at("Z", q("begin")), at("Z", ins), end, at("$")),
		newScript("ended in a failed block", at("Z", q("begin")), at("Z", q("select 1/0")), end, at("$")),
		newScript("ended in an open batch", at("C", run("insert into t values (10, 'x')"), flush()), end, at("$")),
		newScript("ended inside COPY", at("G", q("copy t from stdin")), end, at("$")),
		newScript("ended by itself", at("Z", ins), at("$", q("select pg_terminate_backend(pg_backend_pid())"))),
		newScript("ended by itself in a batch", at("$", run("insert into t values (10, 'x')"), run("select pg_terminate_backend(pg_backend_pid())"), run("select 1"), sync_())),
		newScript("idle in a transaction for too long", at("Z", q("begin")), at("Z", ins), at("Z", q("set idle_in_transaction_session_timeout = '20ms'")), at("$")),
		newScript("idle for too long", at("Z", q("set idle_session_timeout = '20ms'")), at("$")),
		newScript("a statement for too long", at("Z", q("set statement_timeout = '300ms'")), at("Z", q("select pg_sleep(60)")), at("Z", run("select pg_sleep(60)"), sync_()), at("Z", q("select 1; select pg_sleep(60)")), at("Z", q("set statement_timeout = 0")), at("Z", ins)),
		newScript("a timeout at a flush", limit, batch("select 1"), late, at("E", flush()), at("Z", exec("", 0), sync_()), off, at("Z", ins)),
		newScript("a timeout at a flush behind a write", limit, batch(other), late, at("E", flush()), at("Z", q("skipped"), exec("", 0), sync_()), off, at("Z", ins)),
		newScript("a timeout at a flush in a block", limit, at("Z", q("begin")), at("Z", q(other)), batch("select 1"), late, at("E", flush()), at("Z", sync_()), at("Z", q("commit")), off, at("Z", ins)),
		newScript("a timeout at a query", limit, batch("select 1"), late, at("Z", ins), off, at("Z", ins)),
		newScript("a timeout at a query behind a write", limit, batch(other), late, at("Z", ins), at("Z", exec("", 0), sync_()), off, at("Z", ins)),
		newScript("a timeout at a function call", limit, batch(other), late, at("Z", fnCall(1610)), off, at("Z", ins)),
		newScript("a timeout at a parse of what runs alone", limit, batch(other), late, at("E", parse("", "vacuum t")), at("Z", bind("", ""), exec("", 0), sync_()), off, at("Z", ins)),
		newScript("a timeout at a flush before a query", limit, batch(other), late, at("Z", flush(), q("skipped"), sync_()), off, at("Z", sync_()), at("Z", ins)),
		newScript("a timeout at a query behind a flush", limit, batch(other), at("2", parse("", other), bind("", ""), flush()), late, at("ZZ", q("select 1"), sync_()), off, at("Z", sync_()), at("Z", ins)),
		newScript("a timeout at a query that lists the checks", limit, batch("select 1"), late, at("Z", q("select name from pg_prepared_statements")), at("Z", sync_()), off, at("Z", ins)),
		newScript("a timeout at a query that lists the checks, and a pipeline", limit, batch("select 1"), late, at("ZZ", q("select name from pg_prepared_statements"), sync_()), at("Z", sync_()), off, at("Z", ins)),
		newScript("a timeout at a query behind a show", limit, at("1", parse("", "show work_mem"), flush()), late, at("Z", q("select 1")), at("Z", sync_()), off, at("Z", ins)),
		newScript("a timeout at a parse", limit, batch(other), late, at("E", parse("p", other)), at("Z", sync_()), off, at("Z", ins)),
		newScript("a timeout at a sync", limit, batch(other), late, at("Z", sync_()), off, at("Z", ins)),
		newScript("canceled by a backend", at("Z", q("begin")), at("Z", q("select pg_cancel_backend(pg_backend_pid())")), at("Z", q("rollback"))),
		newScript("a protocol error", at("Z", ins), at("$", wiretest.Msg('y', []byte("x")))),
		newScript("a wrong function call", at("Z", wiretest.Msg('F', []byte{0, 0, 6, 74, 0, 0, 0, 9, 0, 1})), at("Z", q("select 1"))),
		newScript("a message of no length", at("Z", ins), at("Z", []byte{'Q', 0, 0, 0, 4}), at("Z", []byte{'S', 0, 0, 0, 4})),
		newScript("a query that does not end", at("Z", wiretest.Msg('Q', []byte("select 1"))), at("Z", q("select 2"))),
		newScript("a bind that is cut", at("Z", parse("", "select $1::text"), wiretest.Msg('B', []byte("\x00\x00\x00\x00\x00\x01\x00\x00\x00\x09x")), sync_())),
	)
}
