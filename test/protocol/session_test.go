package protocol

import (
	"strconv"
	"strings"
	"testing"

	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

func itoa(n int) string { return strconv.Itoa(n) }

// TestProtocolTransactions: what a check in front could disturb in a
// transaction: its isolation, its snapshot, its times, its id.
func TestProtocolTransactions(t *testing.T) {
	t.Parallel()
	ins := "insert into t values (10, 'x')"
	compareScripts(t,
		newScript("set transaction behind begin", at("Z", Q("begin")), at("Z", Q("set transaction isolation level serializable, read write")), at("Z", Q("show transaction_isolation")), at("Z", Q(ins)), at("Z", Q("commit"))),
		newScript("set transaction behind begin by messages", at("ZZZZ", Run("begin"), Sync(), Run("set transaction isolation level repeatable read"), Sync(), Run(ins), Sync(), Run("commit"), Sync())),
		newScript("set transaction in one text", at("Z", Q("begin; set transaction isolation level serializable; show transaction_isolation; "+ins+"; commit"))),
		newScript("set transaction in one text without begin", at("Z", Q("set transaction isolation level serializable; show transaction_isolation; "+ins))),
		newScript("set transaction too late", at("Z", Q("begin")), at("Z", Q("select 1")), at("Z", Q("set transaction isolation level serializable")), at("Z", Q("rollback"))),
		newScript("set transaction outside", at("Z", Q("set transaction isolation level serializable")), at("Z", Q("show transaction_isolation"))),
		newScript("set session characteristics", at("Z", Q("set session characteristics as transaction isolation level serializable")), at("Z", Q("show transaction_isolation")), at("Z", Q(ins)), at("Z", Run("update t set v = 'y'"), Sync())),
		newScript("read only deferrable", at("Z", Q("begin; set transaction isolation level serializable, read only, deferrable")), at("Z", Q("select count(*) from t")), at("Z", Q(ins)), at("Z", Q("rollback"))),
		newScript("default isolation", at("Z", Q("set default_transaction_isolation = serializable")), at("Z", Q("show transaction_isolation")), at("Z", Q(ins)), at("Z", Run("select count(*) from t"), Sync())),
		newScript("default read only", at("Z", Q("set default_transaction_read_only = on")), at("Z", Q(ins)), at("Z", Q("select 1")), at("Z", Q("begin read write")), at("Z", Q(ins)), at("Z", Q("commit"))),
		newScript("default read only by messages", at("Z", Q("set default_transaction_read_only = on")), at("Z", Run(ins), Sync()), at("Z", Run("begin read write"), Sync()), at("Z", Run(ins), Sync()), at("Z", Run("commit"), Sync())),
		newScript("read only within", at("Z", Q("begin")), at("Z", Q("set transaction read only")), at("Z", Q(ins)), at("Z", Q("rollback"))),
		newScript("begin twice in one text", at("Z", Q("begin; begin; "+ins+"; commit; commit"))),
		newScript("no snapshot before the first query", at("Z", Q("begin isolation level repeatable read")), then(func(s *session) { s.sql("insert into t values (500, 'beside')") }), at("Z", Q("select count(*) from t")), at("Z", Q("commit"))),
		newScript("no snapshot before the first query, by messages", at("Z", Run("begin isolation level serializable"), Sync()), then(func(s *session) { s.sql("insert into t values (500, 'beside')") }), at("Z", Run("select count(*) from t"), Sync()), at("Z", Run("commit"), Sync())),
		newScript("a snapshot exported and imported", at("Z", Q("begin isolation level repeatable read")), at("Z", Q("set transaction snapshot 'nonsense'")), at("Z", Q("rollback")), at("Z", Q("begin isolation level repeatable read; select pg_export_snapshot() is not null; commit"))),
		newScript("no id is assigned", at("Z", Q("begin")), at("Z", Q("select count(*) from t")), at("Z", Q("select txid_current_if_assigned(), pg_current_xact_id_if_assigned()")), at("Z", Q(ins)), at("Z", Q("select txid_current_if_assigned() is not null")), at("Z", Q("commit"))),
		newScript("one id, one time", at("Z", Q("begin")), at("Z", Q("create temp table ids as select now() n, transaction_timestamp() tt, pg_current_xact_id()::text x")), at("Z", Q("select n = now(), tt = now(), x = pg_current_xact_id()::text from ids")), at("Z", Run("select n = now(), x = pg_current_xact_id()::text from ids"), Sync()), at("Z", Q("commit"))),
		newScript("times of one query", at("Z", Q("select now() = statement_timestamp(), now() = transaction_timestamp()")), at("Z", Q("begin; select now() = statement_timestamp(); commit"))),
		newScript("tags and counts", at("Z", Q("update t set v = 'z'")), at("Z", Q("delete from t where id > 1 returning id")), at("Z", Q("insert into t select g, 'g' from generate_series(10, 14) g")), at("Z", Q("select count(*) from t")), at("Z", Run("update t set v = 'q' where id > 10"), Sync()), at("Z", Q("move 0 from nothing"))),
		newScript("found and row count in a function", at("Z", Q("do $$declare n int; begin update t set v = 'x'; get diagnostics n = row_count; raise notice '% %', n, found; end$$"))),
		newScript("command counter", at("Z", Q("begin; insert into t values (10, 'a'); insert into t values (11, 'b')")), at("Z", Q("select id, cmin from t where id >= 10 order by id")), at("Z", Q("commit")), at("Z", Run("insert into t values (12, 'c')"), Run("insert into t values (13, 'd')"), Sync()), at("Z", Q("select id, cmin from t where id >= 12 order by id"))),
		newScript("lastval is the client's", at("Z", Q("create sequence s")), at("Z", Q("select lastval()")), at("Z", Q("select nextval('s'), lastval(), currval('s')")), at("Z", Run("select lastval()"), Sync())),
		newScript("savepoints in one text", at("Z", Q("begin; insert into t values (10, 'a'); savepoint a; insert into t values (11, 'b'); rollback to a; release a; commit; insert into t values (12, 'c')")), at("Z", Q("select count(*) from t"))),
		newScript("savepoint outside in one text", at("Z", Q("savepoint a")), at("Z", Q(ins+"; savepoint a; select 1")), at("Z", Q("select count(*) from t"))),
		newScript("chains", at("Z", Q("begin isolation level serializable; "+ins+"; commit and chain; show transaction_isolation; insert into t values (11, 'y'); rollback and chain")), at("Z", Q("show transaction_isolation")), at("Z", Q("insert into t values (12, 'z')")), at("Z", Q("commit")), at("Z", Q("select count(*) from t")), at("Z", Q("commit and chain"))),
		newScript("a commit that rolls back", at("Z", Q("begin; select 1/0")), at("Z", Q("commit")), at("Z", Q("begin; "+ins+"; select 1/0; commit")), at("Z", Q("select 1")), at("Z", Q("rollback"))),
		newScript("a write behind a commit in one text", at("Z", Q("begin; "+ins+"; commit; insert into t values (11, 'y')")), at("Z", Q(ins+"; commit; insert into t values (12, 'y'); select nothing")), at("Z", Q("select count(*) from t"))),
		newScript("errors behind a commit have their positions", at("Z", Q("begin; insert into t values (10, 'ä'); commit; insert into t values (11, 'ö'); rollback; select 'ß', nothing")), at("Z", Q("rollback; select 'ß'; insert into t values (12, nothing)")), at("Z", Q("begin; select 1; commit; select 2; bogus"))),
		newScript("errors of the parser without a position", at("Z", Q("alter table t alter constraint nothing no inherit")), at("Z", Q("alter table t alter constraint nothing not valid")), at("Z", Q("select 1; alter table t alter constraint nothing no inherit")), at("Z", Run("alter table t alter constraint nothing no inherit"), Sync())),
		newScript("errors of functions have their places", at("Z", Q("create function bad() returns int language plpgsql as $$begin return (select nothing); end$$")), at("Z", Q("select 1, bad()")), at("Z", Q("begin; select bad(); commit")), at("Z", Run("select bad()"), Sync()), at("Z", Q("create function worse() returns int language sql as 'select nothing'")), at("Z", Q("do 'begin foo; end'"))),
		newScript("only in a block, outside", at("Z", Run("lock table t"), Sync()), at("Z", Run("set constraints all deferred"), Sync()), at("Z", Run("set local work_mem = '1MB'"), Sync()), at("Z", Run("savepoint a"), Sync()), at("Z", Run("release a"), Sync()), at("Z", Run("rollback to a"), Sync()), at("Z", Run("fetch all from nothing"), Sync()), at("Z", Run("move 1 from nothing"), Sync()), at("Z", Run("close nothing"), Sync()), at("Z", Parse("l", "lock table t"), Desc('S', "l"), Sync()), at("Z", Bind("", "l"), Exec("", 0), Sync())),
		newScript("only in a block, outside, in flight", at("ZZZZ", Q("select 1"), Q("lock table t"), Q("set constraints all deferred"), Q("declare c cursor for select 1")), at("ZZ", Run("select 1"), Sync(), Run("lock table t"), Sync())),
		newScript("only in a block, inside", at("Z", Parse("l", "lock table t"), Parse("d", "declare c cursor for select 1"), Sync()), at("Z", Q("begin")), at("Z", Bind("", "l"), Exec("", 0), Bind("", "d"), Exec("", 0), Sync()), at("Z", Run("fetch all from c"), Sync()), at("Z", Q("commit"))),
		newScript("only in a block, behind another", at("Z", Run("select 1"), Run("lock table t"), Sync()), at("Z", Run("insert into t values (10, 'x')"), Run("declare c cursor for select 1"), Run("fetch c"), Sync())),
		newScript("a timeout for each execute", at("Z", Q("set statement_timeout = '6s'")), at("Z", Run("select pg_sleep(1.7)"), Run("select pg_sleep(1.7)"), Run("select pg_sleep(1.7)"), Run("select pg_sleep(1.7)"), Sync())),
		newScript("another role", then(func(s *session) {
			s.sql("reset role; do $$begin if not exists (select from pg_roles where rolname = 'plain') then create role plain; grant plain to app; end if; exception when unique_violation or duplicate_object then null; end$$; set role app")
		}), at("Z", Q("set role plain")), at("Z", Q("select * from t")), at("Z", Run(ins), Sync()), at("Z", Q("select current_user, session_user")), at("Z", Q("reset role")), at("Z", Q(ins))),
		newScript("exclusive locks and their failure", at("Z", Q("begin; lock table t in access exclusive mode")), at("Z", Q("select count(*) from pg_locks where pid = pg_backend_pid() and relation = 't'::regclass")), at("Z", Q("commit"))),
	)
}

// TestProtocolStatements: the check's own prepared statement, under everything
// that may take it away or stand in its way.
func TestProtocolStatements(t *testing.T) {
	t.Parallel()
	ins := func(id int) []byte { return Q("insert into t values (" + itoa(id) + ", 'x')") }
	both2 := func(id int) []step {
		return []step{at("Z", ins(id)), at("Z", Run("insert into t values ($1, 'x')", itoa(id+1)), Sync()), at("Z", Q("begin; select 1; commit; insert into t values ("+itoa(id+2)+", 'x')"))}
	}
	after := func(name string, steps ...step) script { return newScript(name, append(steps, both2(100)...)...) }
	hostile := `reset role; drop schema if exists evil cascade; create schema evil; grant all on schema evil to app; create function evil.current_setting(text) returns text language sql as 'select ''x''';
create function evil.pg_sequence_last_value(regclass) returns bigint language sql as 'select 0::bigint';
create function evil.eq(bigint, bigint) returns bool language sql as 'select false';
create operator evil.= (leftarg = bigint, rightarg = bigint, function = evil.eq);
create function evil.set_config(text, text, bool) returns text language sql as 'select ''x'''; create domain evil.int8 as text; create domain evil.regclass as text; grant all on all functions in schema evil to app; set role app`
	compareScripts(t,
		after("discard all", at("Z", Q("discard all"))),
		after("discard all by messages", at("Z", Run("discard all"), Sync())),
		after("discard plans, temp and sequences", at("Z", Q("discard plans")), at("Z", Q("discard temp")), at("Z", Q("discard sequences"))),
		after("deallocate all", at("Z", Q("deallocate all"))),
		after("deallocate all by messages", at("Z", Run("deallocate all"), Sync())),
		after("deallocate all in a pipeline", at("ZZ", Run("deallocate all"), Run("insert into t values (10, 'x')"), Sync(), Run("insert into t values (11, 'x')"), Sync())),
		after("deallocate all in one text", at("Z", Q("deallocate all; insert into t values (10, 'x')"))),
		after("deallocate all in flight", at("ZZZ", Q("deallocate all"), Q("insert into t values (10, 'x')"), Q("insert into t values (11, 'x')"))),
		after("deallocate all in do", at("Z", Q("do $$begin execute 'deallocate all'; end$$"))),
		after("deallocate all in a function", at("Z", Q("create function da() returns int language plpgsql as $$begin execute 'deallocate all'; return 1; end$$")), at("Z", Q("select da()"))),
		after("deallocate all in a function, by messages", at("Z", Q("create function da() returns int language plpgsql as $$begin execute 'deallocate all'; return 1; end$$")), at("Z", Run("select da()"), Sync()), at("Z", Run("insert into t values (10, 'x')"), Sync())),
		after("prepare of deallocate", at("Z", Parse("da", "deallocate all"), Sync()), at("Z", Bind("", "da"), Exec("", 0), Sync()), at("Z", Parse("da", "deallocate all"), Sync()), at("Z", Q("execute da"))),
		after("reset all", at("Z", Q("reset all"))),
		after("set role", at("Z", Q("set role none")), at("Z", Q("set role app"))),
		after("session authorization", at("Z", Q("set session authorization app")), at("Z", Q("reset session authorization"))),
		after("a hostile search path", then(func(s *session) { s.sql(hostile) }), at("Z", Q("set search_path = evil, public, pg_catalog")), at("Z", Q("show search_path"))),
		after("an empty search path", at("Z", Q("set search_path = ''")), at("Z", Q("set search_path = public"))),
		after("row security and planner settings", at("Z", Q("set row_security = off; set enable_seqscan = off; set plan_cache_mode = force_generic_plan; set jit = on; set jit_above_cost = 0"))),
		after("generic plans", at("Z", Q("set plan_cache_mode = force_custom_plan"))),
		after("verbosity and styles", at("Z", Q("set datestyle = 'German'; set intervalstyle = 'iso_8601'; set bytea_output = escape; set extra_float_digits = 0; set timezone = 'Asia/Tokyo'")), at("Z", Q("select date '2026-01-02', 0.1::float8, '\\x01'::bytea"))),
		after("encodings", at("Z", Q("set client_encoding = latin1")), at("Z", Q("select 'x'")), at("Z", Q("set client_encoding = sjis"))),
		after("strings", at("Z", Q("set standard_conforming_strings = off")), at("Z", Q("select 'a\\'b'")), at("Z", Q("set standard_conforming_strings = on"))),
		after("statement_timeout off and on", at("Z", Q("set statement_timeout = '5s'; set lock_timeout = '5s'; set idle_in_transaction_session_timeout = '60s'"))),
		after("a schema of the client's named as ours", at("Z", Q("create temp table refuse (a int); create function public.refuse(int, bigint, text, text, bigint, bool) returns text language sql as 'select ''mine'''"))),
		newScript("statements seen", at("Z", Q("prepare mine as select 1")), at("Z", Parse("wire", "select 2"), Sync()), at("Z", Q("select name, statement, from_sql from pg_prepared_statements where name in ('mine', 'wire') order by 1"))),
		newScript("cursors seen", at("Z", Q("begin")), at("Z", Q("declare c cursor for select 1")), at("Z", Parse("", "select 1 union select 2"), Bind("wire", ""), Sync()), at("Z", Q("select name, statement, is_holdable, is_binary from pg_cursors order by 1")), at("Z", Run("select count(*) from pg_cursors"), Sync()), at("Z", Q("commit"))),
		newScript("cursors seen outside a block", at("Z", Q("declare c cursor with hold for select 1")), at("Z", Q("select name, statement from pg_cursors order by 1")), at("Z", Q("close all")), at("Z", Q("select name from pg_cursors; select 1")), at("Z", Q("begin; declare d cursor for select 2; select name, statement from pg_cursors where name = 'e'; commit"))),
		newScript("query texts seen", at("Z", Q("select current_query()")), at("Z", Run("select current_query()"), Sync()), at("Z", Q("select query from pg_stat_activity where pid = pg_backend_pid()")), at("Z", Q("select 1; select current_query()")), at("Z", Q("do $$begin raise notice '%', current_query(); end$$"))),
		newScript("application name", at("Z", Q("set application_name = 'mine'")), at("Z", Q("select application_name from pg_stat_activity where pid = pg_backend_pid()"))),
	)
}

// TestRestatedStatementsAnswerAsPostgresDoes: a prepared statement brings its notices at its
// Parse only, and means what it meant there, whatever setting has changed since.
func TestRestatedStatementsAnswerAsPostgresDoes(t *testing.T) {
	t.Parallel()
	compareScripts(t,
		newScript("a notice of the Parse", at("Z", Parse("s", "listen "+strings.Repeat("n", 70)), Sync()),
			at("Z", Bind("", "s"), Exec("", 0), Sync()), at("Z", Desc('S', "s"), Sync())),
		newScript("backslash_quote", at("Z", Parse("s", `set application_name = e'a\'b'`), Sync()),
			at("Z", Q("set backslash_quote = off")), at("Z", Bind("", "s"), Exec("", 0), Sync())),
		newScript("client_encoding", at("Z", Parse("s", "set search_path = \"caf\u00e9\", public"), Sync()),
			at("Z", Q("set client_encoding = latin1")), at("Z", Bind("", "s"), Exec("", 0), Sync()),
			at("Z", Q("set client_encoding = utf8")), at("Z", Q("show search_path"))),
	)
}
