package protocol

import (
	"fmt"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

const shouts = `create function say(i int) returns int language plpgsql as $$begin raise notice 'said %', i; raise warning 'warned %', i using detail = 'd', hint = 'h'; return i; end$$;
create function later() returns trigger language plpgsql as $$begin raise notice 'at the end'; return null; end$$;
create constraint trigger later after insert on t deferrable initially deferred for each row execute function later()`

// TestProtocolNotices: NoticeResponse, ParameterStatus and NotificationResponse
// at every point, in the server's order.
func TestProtocolNotices(t *testing.T) {
	t.Parallel()
	setup := at("Z", Q(shouts))
	beside := func(sql string) step { return then(func(s *session) { s.sql(sql) }) }
	compareScripts(t,
		newScript("notices among rows", setup, at("Z", Q("select say(g) from generate_series(1, 3) g")), at("Z", Run("select say(g) from generate_series(1, 3) g"), Sync())),
		newScript("notices and an error", setup, at("Z", Q("select say(1), 1/0; select say(2)")), at("Z", Run("select say(1)"), Run("select 1/0"), Run("select say(2)"), Sync())),
		newScript("notices at the end", setup, at("Z", Q("insert into t values (10, 'x')")), at("Z", Run("insert into t values (11, 'x')"), Sync()), at("Z", Q("begin")), at("Z", Q("insert into t values (12, 'x')")), at("Z", Q("commit")), at("Z", Run("insert into t values (13, 'x')"), Run("select 1"), Sync())),
		newScript("notices of a planner", setup, at("Z", Q("create function fold(int) returns int immutable language plpgsql as $$begin raise notice 'folded'; return $1; end$$")), at("Z", Q("select fold(1)")), at("Z", Parse("s", "select fold(1)"), Desc('S', "s"), Bind("", "s"), Exec("", 0), Sync())),
		newScript("notices hidden and shown", setup, at("Z", Q("set client_min_messages = error")), at("Z", Q("select say(1)")), at("Z", Q("set client_min_messages = debug1")), at("Z", Q("select say(1)"))),
		newScript("warnings of statements", at("Z", Q("commit")), at("Z", Q("rollback; select 1; commit")), at("Z", Run("commit"), Sync()), at("Z", Q("set local work_mem = '1MB'")), at("Z", Q("select 1; set local work_mem = '1MB'")), at("Z", Q("drop table if exists nope; create table if not exists t ()")), at("Z", Q("begin; begin; commit")), at("Z", Q("abort"))),
		newScript("parameters in their places", at("Z", Q("set application_name = 'a'; select 1; set application_name = 'b'; select 2")), at("Z", Run("set application_name = 'c'"), Run("select 3"), Run("set datestyle = 'German'"), Sync()), at("Z", Q("select set_config('timezone', 'Asia/Tokyo', false), 1")), at("Z", Q("reset all")), at("Z", Q("discard all"))),
		newScript("parameters that a rollback sets back", at("Z", Q("begin; set application_name = 'x'")), at("Z", Q("select 1")), at("Z", Q("rollback")), at("Z", Q("begin; savepoint a; set application_name = 'y'; rollback to a; set local application_name = 'z'; commit")), at("Z", Q("begin; set application_name = 'w'; select 1/0"))),
		newScript("parameters that a function sets", at("Z", Q("create function named() returns int language sql set application_name = 'inner' as 'select 1'")), at("Z", Q("select named()")), at("Z", Run("select named()"), Sync()), at("Z", Q("select set_config('application_name', 'tx', true)"))),
		newScript("a notification of one's own", at("Z", Q("listen ch")), at("Z", Q("notify ch, 'one'")), at("Z", Q("begin; notify ch, 'two'; notify ch, 'three'; notify ch, 'two'; commit")), at("Z", Run("notify ch, 'four'"), Sync()), at("Z", Q("select pg_notify('ch', 'five')")), at("Z", Q("notify ch; select 1; commit; select 2"))),
		newScript("a notification while idle", at("Z", Q("listen ch")), beside("notify ch, 'x'"), at("A"), beside("notify ch, 'y'; notify ch, 'z'"), at("AA"), at("Z", Q("select 1")), at("Z", Q("unlisten *")), beside("notify ch, 'unheard'"), at("Z", Q("select 2"))),
		newScript("a notification while idle, listened by messages", at("Z", Run("listen ch"), Sync()), beside("notify ch, 'x'"), at("A"), at("Z", Sync())),
		newScript("a notification inside a block", at("Z", Q("listen ch")), at("Z", Q("begin")), beside("notify ch, 'x'"), at("Z", Q("select 1")), at("Z", Q("insert into t values (10, 'x')")), at("AZ", Q("commit"))),
		newScript("a notification inside an open batch", at("Z", Q("listen ch")), at("1", Parse("", "select 1"), Flush()), beside("notify ch, 'x'"), at("2C", Bind("", ""), Exec("", 0), Flush()), at("AZ", Sync())),
		newScript("a notification inside a failed block", at("Z", Q("listen ch")), at("Z", Q("begin")), at("Z", Q("select 1/0")), beside("notify ch, 'x'"), at("Z", Q("select 1")), at("AZ", Q("rollback"))),
		newScript("a notification inside COPY", at("Z", Q("listen ch")), at("G", Q("copy t from stdin")), beside("notify ch, 'x'"), at("AZ", wiretest.CopyData("80\tx\n"), wiretest.CopyDone())),
		newScript("listen undone", at("Z", Q("begin; listen ch; rollback")), beside("notify ch, 'x'"), at("Z", Q("select * from pg_listening_channels()"))),
		newScript("many notifications", at("Z", Q("listen ch")), beside("select pg_notify('ch', 'n' || g) from generate_series(1, 2000) g"), at("AAA"), at("Z", Q("select 1"))),
	)
}

// TestProtocolEnds: how a session ends, by either side and in the middle.
func TestProtocolEnds(t *testing.T) {
	t.Parallel()
	ins := Q("insert into t values (10, 'x')")
	end := then(func(s *session) {
		fixture.AwaitBackend(s.t, s.admin, fmt.Sprintf("pid = %d and wait_event = 'ClientRead'", s.pid()))
		s.sql(fmt.Sprintf("select pg_terminate_backend(%d, 5000)", s.pid()))
	})
	compareScripts(t,
		newScript("terminate behind work", at("$", ins, wiretest.Terminate())),
		newScript("terminate behind a batch", at("$", Run("insert into t values (10, 'x')"), Sync(), wiretest.Terminate())),
		newScript("terminate behind half a batch", at("$", Run("insert into t values (10, 'x')"), wiretest.Terminate())),
		newScript("terminate inside a block", at("Z", Q("begin")), at("$", ins, wiretest.Terminate(), ins)),
		newScript("terminate behind a block", at("$", Q("begin"), ins, Q("commit"), wiretest.Terminate())),
		newScript("ended while idle", at("Z", ins), end, at("$")),
		newScript("ended in a block", at("Z", Q("begin")), at("Z", ins), end, at("$")),
		newScript("ended in a failed block", at("Z", Q("begin")), at("Z", Q("select 1/0")), end, at("$")),
		newScript("ended in an open batch", at("C", Run("insert into t values (10, 'x')"), Flush()), end, at("$")),
		newScript("ended inside COPY", at("G", Q("copy t from stdin")), end, at("$")),
		newScript("ended by itself", at("Z", ins), at("$", Q("select pg_terminate_backend(pg_backend_pid())"))),
		newScript("ended by itself in a batch", at("$", Run("insert into t values (10, 'x')"), Run("select pg_terminate_backend(pg_backend_pid())"), Run("select 1"), Sync())),
		newScript("idle in a transaction for too long", at("Z", Q("begin")), at("Z", ins), at("Z", Q("set idle_in_transaction_session_timeout = '20ms'")), at("$")),
		newScript("idle for too long", at("Z", Q("set idle_session_timeout = '20ms'")), at("$")),
		newScript("a statement for too long", at("Z", Q("set statement_timeout = '1s'")), at("Z", Q("select pg_sleep(60)")), at("Z", Run("select pg_sleep(60)"), Sync()), at("Z", Q("select 1; select pg_sleep(60)")), at("Z", Q("set statement_timeout = 0")), at("Z", ins)),
		newScript("canceled by a backend", at("Z", Q("begin")), at("Z", Q("select pg_cancel_backend(pg_backend_pid())")), at("Z", Q("rollback"))),
		newScript("a protocol error", at("Z", ins), at("$", wiretest.Msg('y', []byte("x")))),
		newScript("a wrong function call", at("Z", wiretest.Msg('F', []byte{0, 0, 6, 74, 0, 0, 0, 9, 0, 1})), at("Z", Q("select 1"))),
		newScript("a message of no length", at("Z", ins), at("Z", []byte{'Q', 0, 0, 0, 4}), at("Z", []byte{'S', 0, 0, 0, 4})),
		newScript("a query that does not end", at("Z", wiretest.Msg('Q', []byte("select 1"))), at("Z", Q("select 2"))),
		newScript("a bind that is cut", at("Z", Parse("", "select $1::text"), wiretest.Msg('B', []byte("\x00\x00\x00\x00\x00\x01\x00\x00\x00\x09x")), Sync())),
	)
}
