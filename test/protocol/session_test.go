package protocol

import (
	"strconv"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
)

func itoa(n int) string { return strconv.Itoa(n) }

// TestProtocolTransactions: what a check in front could disturb in a
// transaction: its isolation, its snapshot, its times, its id.
func TestProtocolTransactions(t *testing.T) {
	t.Parallel()
	ins := "insert into t values (10, 'x')"
	compareScripts(t,
		newScript("set transaction behind begin", at("Z", q("begin")), at("Z", q("set transaction isolation level serializable, read write")), at("Z", q("show transaction_isolation")), at("Z", q(ins)), at("Z", q("commit"))),
		newScript("set transaction behind begin by messages", at("ZZZZ", run("begin"), sync_(), run("set transaction isolation level repeatable read"), sync_(), run(ins), sync_(), run("commit"), sync_())),
		newScript("set transaction in one text", at("Z", q("begin; set transaction isolation level serializable; show transaction_isolation; "+ins+"; commit"))),
		newScript("set transaction in one text without begin", at("Z", q("set transaction isolation level serializable; show transaction_isolation; "+ins))),
		newScript("set transaction too late", at("Z", q("begin")), at("Z", q("select 1")), at("Z", q("set transaction isolation level serializable")), at("Z", q("rollback"))),
		newScript("set transaction outside", at("Z", q("set transaction isolation level serializable")), at("Z", q("show transaction_isolation"))),
		newScript("set session characteristics", at("Z", q("set session characteristics as transaction isolation level serializable")), at("Z", q("show transaction_isolation")), at("Z", q(ins)), at("Z", run("update t set v = 'y'"), sync_())),
		newScript("read only deferrable", at("Z", q("begin; set transaction isolation level serializable, read only, deferrable")), at("Z", q("select count(*) from t")), at("Z", q(ins)), at("Z", q("rollback"))),
		newScript("default isolation", at("Z", q("set default_transaction_isolation = serializable")), at("Z", q("show transaction_isolation")), at("Z", q(ins)), at("Z", run("select count(*) from t"), sync_())),
		newScript("default read only", at("Z", q("set default_transaction_read_only = on")), at("Z", q(ins)), at("Z", q("select 1")), at("Z", q("begin read write")), at("Z", q(ins)), at("Z", q("commit"))),
		newScript("default read only by messages", at("Z", q("set default_transaction_read_only = on")), at("Z", run(ins), sync_()), at("Z", run("begin read write"), sync_()), at("Z", run(ins), sync_()), at("Z", run("commit"), sync_())),
		newScript("read only within", at("Z", q("begin")), at("Z", q("set transaction read only")), at("Z", q(ins)), at("Z", q("rollback"))),
		newScript("begin twice in one text", at("Z", q("begin; begin; "+ins+"; commit; commit"))),
		newScript("no snapshot before the first query", at("Z", q("begin isolation level repeatable read")), then(func(s *session) { s.sql("insert into t values (500, 'beside')") }), at("Z", q("select count(*) from t")), at("Z", q("commit"))),
		newScript("no snapshot before the first query, by messages", at("Z", run("begin isolation level serializable"), sync_()), then(func(s *session) { s.sql("insert into t values (500, 'beside')") }), at("Z", run("select count(*) from t"), sync_()), at("Z", run("commit"), sync_())),
		newScript("a snapshot exported and imported", at("Z", q("begin isolation level repeatable read")), at("Z", q("set transaction snapshot 'nonsense'")), at("Z", q("rollback")), at("Z", q("begin isolation level repeatable read; select pg_export_snapshot() is not null; commit"))),
		newScript("no id is assigned", at("Z", q("begin")), at("Z", q("select count(*) from t")), at("Z", q("select txid_current_if_assigned(), pg_current_xact_id_if_assigned()")), at("Z", q(ins)), at("Z", q("select txid_current_if_assigned() is not null")), at("Z", q("commit"))),
		newScript("one id, one time", at("Z", q("begin")), at("Z", q("create temp table ids as select now() n, transaction_timestamp() tt, pg_current_xact_id()::text x")), at("Z", q("select n = now(), tt = now(), x = pg_current_xact_id()::text from ids")), at("Z", run("select n = now(), x = pg_current_xact_id()::text from ids"), sync_()), at("Z", q("commit"))),
		newScript("times of one query", at("Z", q("select now() = statement_timestamp(), now() = transaction_timestamp()")), at("Z", q("begin; select now() = statement_timestamp(); commit"))),
		newScript("tags and counts", at("Z", q("update t set v = 'z'")), at("Z", q("delete from t where id > 1 returning id")), at("Z", q("insert into t select g, 'g' from generate_series(10, 14) g")), at("Z", q("select count(*) from t")), at("Z", run("update t set v = 'q' where id > 10"), sync_()), at("Z", q("move 0 from nothing"))),
		newScript("found and row count in a function", at("Z", q("do $$declare n int; begin update t set v = 'x'; get diagnostics n = row_count; raise notice '% %', n, found; end$$"))),
		newScript("command counter", at("Z", q("begin; insert into t values (10, 'a'); insert into t values (11, 'b')")), at("Z", q("select id, cmin from t where id >= 10 order by id")), at("Z", q("commit")), at("Z", run("insert into t values (12, 'c')"), run("insert into t values (13, 'd')"), sync_()), at("Z", q("select id, cmin from t where id >= 12 order by id"))),
		newScript("lastval is the client's", at("Z", q("create sequence s")), at("Z", q("select lastval()")), at("Z", q("select nextval('s'), lastval(), currval('s')")), at("Z", run("select lastval()"), sync_())),
		newScript("savepoints in one text", at("Z", q("begin; insert into t values (10, 'a'); savepoint a; insert into t values (11, 'b'); rollback to a; release a; commit; insert into t values (12, 'c')")), at("Z", q("select count(*) from t"))),
		newScript("savepoint outside in one text", at("Z", q("savepoint a")), at("Z", q(ins+"; savepoint a; select 1")), at("Z", q("select count(*) from t"))),
		newScript("chains", at("Z", q("begin isolation level serializable; "+ins+"; commit and chain; show transaction_isolation; insert into t values (11, 'y'); rollback and chain")), at("Z", q("show transaction_isolation")), at("Z", q("insert into t values (12, 'z')")), at("Z", q("commit")), at("Z", q("select count(*) from t")), at("Z", q("commit and chain"))),
		newScript("a commit that rolls back", at("Z", q("begin; select 1/0")), at("Z", q("commit")), at("Z", q("begin; "+ins+"; select 1/0; commit")), at("Z", q("select 1")), at("Z", q("rollback"))),
		newScript("a write behind a commit in one text", at("Z", q("begin; "+ins+"; commit; insert into t values (11, 'y')")), at("Z", q(ins+"; commit; insert into t values (12, 'y'); select nothing")), at("Z", q("select count(*) from t"))),
		newScript("errors behind a commit have their positions", at("Z", q("begin; insert into t values (10, 'ä'); commit; insert into t values (11, 'ö'); rollback; select 'ß', nothing")), at("Z", q("rollback; select 'ß'; insert into t values (12, nothing)")), at("Z", q("begin; select 1; commit; select 2; bogus"))),
		newScript("errors of the parser without a position", at("Z", q("alter table t alter constraint nothing no inherit")), at("Z", q("alter table t alter constraint nothing not valid")), at("Z", q("select 1; alter table t alter constraint nothing no inherit")), at("Z", run("alter table t alter constraint nothing no inherit"), sync_())),
		newScript("errors of functions have their places", at("Z", q("create function bad() returns int language plpgsql as $$begin return (select nothing); end$$")), at("Z", q("select 1, bad()")), at("Z", q("begin; select bad(); commit")), at("Z", run("select bad()"), sync_()), at("Z", q("create function worse() returns int language sql as 'select nothing'")), at("Z", q("do 'begin foo; end'"))),
		newScript("only in a block, outside", at("Z", run("lock table t"), sync_()), at("Z", run("set constraints all deferred"), sync_()), at("Z", run("set local work_mem = '1MB'"), sync_()), at("Z", run("savepoint a"), sync_()), at("Z", run("release a"), sync_()), at("Z", run("rollback to a"), sync_()), at("Z", run("fetch all from nothing"), sync_()), at("Z", run("move 1 from nothing"), sync_()), at("Z", run("close nothing"), sync_()), at("Z", parse("l", "lock table t"), desc('S', "l"), sync_()), at("Z", bind("", "l"), exec("", 0), sync_())),
		newScript("only in a block, outside, in flight", at("ZZZZ", q("select 1"), q("lock table t"), q("set constraints all deferred"), q("declare c cursor for select 1")), at("ZZ", run("select 1"), sync_(), run("lock table t"), sync_())),
		newScript("only in a block, inside", at("Z", parse("l", "lock table t"), parse("d", "declare c cursor for select 1"), sync_()), at("Z", q("begin")), at("Z", bind("", "l"), exec("", 0), bind("", "d"), exec("", 0), sync_()), at("Z", run("fetch all from c"), sync_()), at("Z", q("commit"))),
		newScript("only in a block, behind another", at("Z", run("select 1"), run("lock table t"), sync_()), at("Z", run("insert into t values (10, 'x')"), run("declare c cursor for select 1"), run("fetch c"), sync_())),
		newScript("a timeout for each execute", at("Z", q("set statement_timeout = '2s'")), at("Z", run("select pg_sleep(0.7)"), run("select pg_sleep(0.7)"), run("select pg_sleep(0.7)"), sync_())),
		newScript("another role", then(func(s *session) {
			s.sql("reset role; do $$begin if not exists (select from pg_roles where rolname = 'plain') then create role plain; grant plain to app; end if; exception when unique_violation or duplicate_object then null; end$$; set role app")
		}), at("Z", q("set role plain")), at("Z", q("select * from t")), at("Z", run(ins), sync_()), at("Z", q("select current_user, session_user")), at("Z", q("reset role")), at("Z", q(ins))),
		newScript("exclusive locks and their failure", at("Z", q("begin; lock table t in access exclusive mode")), at("Z", q("select count(*) from pg_locks where pid = pg_backend_pid() and relation = 't'::regclass")), at("Z", q("commit"))),
	)
}

// TestProtocolStatements: the check's own prepared statement, under everything
// that may take it away or stand in its way.
func TestProtocolStatements(t *testing.T) {
	t.Parallel()
	ins := func(id int) []byte { return q("insert into t values (" + itoa(id) + ", 'x')") }
	both2 := func(id int) []step {
		return []step{at("Z", ins(id)), at("Z", run("insert into t values ($1, 'x')", itoa(id+1)), sync_()), at("Z", q("begin; select 1; commit; insert into t values ("+itoa(id+2)+", 'x')"))}
	}
	after := func(name string, steps ...step) script { return newScript(name, append(steps, both2(100)...)...) }
	hostile := `reset role; drop schema if exists evil cascade; create schema evil; grant all on schema evil to app; create function evil.current_setting(text) returns text language sql as 'select ''x''';
create function evil.pg_sequence_last_value(regclass) returns bigint language sql as 'select 0::bigint';
create function evil.eq(bigint, bigint) returns bool language sql as 'select false';
create operator evil.= (leftarg = bigint, rightarg = bigint, function = evil.eq);
create function evil.set_config(text, text, bool) returns text language sql as 'select ''x'''; create domain evil.int8 as text; create domain evil.regclass as text; grant all on all functions in schema evil to app; set role app`
	compareScripts(t,
		after("discard all", at("Z", q("discard all"))),
		after("discard all by messages", at("Z", run("discard all"), sync_())),
		after("discard plans, temp and sequences", at("Z", q("discard plans")), at("Z", q("discard temp")), at("Z", q("discard sequences"))),
		after("deallocate all", at("Z", q("deallocate all"))),
		after("deallocate all by messages", at("Z", run("deallocate all"), sync_())),
		after("deallocate all in a pipeline", at("ZZ", run("deallocate all"), run("insert into t values (10, 'x')"), sync_(), run("insert into t values (11, 'x')"), sync_())),
		after("deallocate all in one text", at("Z", q("deallocate all; insert into t values (10, 'x')"))),
		after("deallocate all in flight", at("ZZZ", q("deallocate all"), q("insert into t values (10, 'x')"), q("insert into t values (11, 'x')"))),
		after("deallocate all in do", at("Z", q("do $$begin execute 'deallocate all'; end$$"))),
		after("deallocate all in a function", at("Z", q("create function da() returns int language plpgsql as $$begin execute 'deallocate all'; return 1; end$$")), at("Z", q("select da()"))),
		after("deallocate all in a function, by messages", at("Z", q("create function da() returns int language plpgsql as $$begin execute 'deallocate all'; return 1; end$$")), at("Z", run("select da()"), sync_()), at("Z", run("insert into t values (10, 'x')"), sync_())),
		after("prepare of deallocate", at("Z", parse("da", "deallocate all"), sync_()), at("Z", bind("", "da"), exec("", 0), sync_()), at("Z", parse("da", "deallocate all"), sync_()), at("Z", q("execute da"))),
		after("reset all", at("Z", q("reset all"))),
		after("set role", at("Z", q("set role none")), at("Z", q("set role app"))),
		after("session authorization", at("Z", q("set session authorization app")), at("Z", q("reset session authorization"))),
		after("a hostile search path", then(func(s *session) { s.sql(hostile) }), at("Z", q("set search_path = evil, public, pg_catalog")), at("Z", q("show search_path"))),
		after("an empty search path", at("Z", q("set search_path = ''")), at("Z", q("set search_path = public"))),
		after("row security and planner settings", at("Z", q("set row_security = off; set enable_seqscan = off; set plan_cache_mode = force_generic_plan; set jit = on; set jit_above_cost = 0"))),
		after("generic plans", at("Z", q("set plan_cache_mode = force_custom_plan"))),
		after("verbosity and styles", at("Z", q("set datestyle = 'German'; set intervalstyle = 'iso_8601'; set bytea_output = escape; set extra_float_digits = 0; set timezone = 'Asia/Tokyo'")), at("Z", q("select date '2026-01-02', 0.1::float8, '\\x01'::bytea"))),
		after("encodings", at("Z", q("set client_encoding = latin1")), at("Z", q("select 'x'")), at("Z", q("set client_encoding = sjis"))),
		after("strings", at("Z", q("set standard_conforming_strings = off")), at("Z", q("select 'a\\'b'")), at("Z", q("set standard_conforming_strings = on"))),
		after("statement_timeout off and on", at("Z", q("set statement_timeout = '5s'; set lock_timeout = '5s'; set idle_in_transaction_session_timeout = '60s'"))),
		after("a schema of the client's named as ours", at("Z", q("create temp table refuse (a int); create function public.refuse(int, bigint, text, text, bigint, bool) returns text language sql as 'select ''mine'''"))),
		newScript("statements seen", at("Z", q("prepare mine as select 1")), at("Z", parse("wire", "select 2"), sync_()), at("Z", q("select name, statement, from_sql from pg_prepared_statements where name in ('mine', 'wire') order by 1"))),
		newScript("cursors seen", at("Z", q("begin")), at("Z", q("declare c cursor for select 1")), at("Z", parse("", "select 1 union select 2"), bind("wire", ""), sync_()), at("Z", q("select name, statement, is_holdable, is_binary from pg_cursors order by 1")), at("Z", run("select count(*) from pg_cursors"), sync_()), at("Z", q("commit"))),
		newScript("cursors seen outside a block", at("Z", q("declare c cursor with hold for select 1")), at("Z", q("select name, statement from pg_cursors order by 1")), at("Z", q("close all")), at("Z", q("select name from pg_cursors; select 1")), at("Z", q("begin; declare d cursor for select 2; select name, statement from pg_cursors where name = 'e'; commit"))),
		newScript("query texts seen", at("Z", q("select current_query()")), at("Z", run("select current_query()"), sync_()), at("Z", q("select query from pg_stat_activity where pid = pg_backend_pid()")), at("Z", q("select 1; select current_query()")), at("Z", q("do $$begin raise notice '%', current_query(); end$$"))),
		newScript("application name", at("Z", q("set application_name = 'mine'")), at("Z", q("select application_name from pg_stat_activity where pid = pg_backend_pid()"))),
	)
}

// TestProtocolReplacedChecksAreClosed: a check that is prepared anew, because the
// last one may be gone, does not stay beside it for as long as the session lives.
func TestProtocolReplacedChecksAreClosed(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		c := fixture.LeaderConn(t, p, db)
		fixture.MustExec(t, c, "create table t (id int); create function prepared() returns setof text language sql as 'select name from pg_prepared_statements'") // seen by its name, they are closed
		for range 5 {
			fixture.MustExec(t, c, "insert into t values (1); insert into t values (2) -- "+long)
			fixture.MustExec(t, c, "insert into t values (3)")
		}
		if n := fixture.FirstValue(t, c.Exec("select count(*) from prepared() n where n like 'fencepost%'")); n != "3" {
			t.Errorf("%s prepared statements of Fencepost's, want the check, the one for the front, and the read-only mode", n)
		}
	})
}

// TestProtocolHiddenDeallocate: a function that frees all prepared statements
// frees the check's, and nothing in the protocol says so. What comes next is sent
// once more; in a transaction block, where BEGIN has run, it is refused once, and
// the block behind it passes.
func TestProtocolHiddenDeallocate(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		c := fixture.LeaderConn(t, p, db)
		fixture.MustExec(t, c, "create table t (id int); create function da() returns int language plpgsql as $$begin execute 'deallocate all'; return 1; end$$")
		for _, write := range [][]byte{q("insert into t values (1)"), cat(run("insert into t values (1)"), sync_())} {
			fixture.MustExec(t, c, "select da()")
			fixture.MustPass(t, c, write)
			fixture.MustExec(t, c, "select da()")
			fixture.MustExec(t, c, "begin")
			fixture.MustFail(t, c, "ZF004", write)
			fixture.MustExec(t, c, "rollback; begin")
			fixture.MustPass(t, c, write)
			fixture.MustExec(t, c, "commit")
		}
		if n := fixture.FirstValue(t, c.Exec("select count(*) from t")); n != "4" {
			t.Errorf("%s rows, want 4", n)
		}
	})
}
