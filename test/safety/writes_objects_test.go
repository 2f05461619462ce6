package safety

// objectPaths define, change and drop what a database is made of.
func objectPaths() []writePath {
	var all []writePath
	for _, sql := range []string{
		"create table made (a int primary key, b text default 'x' check (b <> ''))", "create unlogged table made (a int)",
		"create table made partition of part default", "create table if not exists made (like t including all)",
		"alter table t add x int default 5", "alter table t add constraint k check (v <> '') not valid", "alter table t rename to made",
		"alter table t rename v to w", "alter table gone alter a type bigint", "alter table gone drop a", "alter table t owner to other",
		"alter table t set (fillfactor = 50)", "alter table t enable row level security", "alter table t replica identity full",
		"alter table t set unlogged", "alter table part detach partition part2", "alter table triggered disable trigger tr", "drop table gone", "drop table t cascade",
		"create index made on t (v)", "alter index ti rename to made", "drop index ti", "create view made as select 1 as a", "create or replace view vw as select 'w' as v",
		"create recursive view made (a) as select 1", "drop view gonev", "create materialized view made as select * from t", "drop materialized view m",
		"create function made() returns int language sql as 'select 1'", "create function made() returns int language sql begin atomic insert into t values (10, 'w'); select 1; end",
		"create or replace function gonef() returns int language sql as 'select 2'", "alter function gonef() strict", "alter function gonef() set work_mem = '1MB'", "drop function gonef()",
		"create procedure made() language sql as 'select 1'", "drop procedure once(int)", "alter routine gonef() rename to made",
		"create aggregate made (int) (sfunc = int4pl, stype = int)", "create type made as enum ('a', 'b')", "create type made as (a int)", "create type made as range (subtype = int)",
		"alter type mood add value 'better'", "alter type mood rename value 'ok' to 'fine'", "alter type pair add attribute c int", "drop type mood cascade",
		"create domain made as int check (value > 0)", "alter domain wd set not null", "drop domain wd cascade",
		"create sequence made start 5", "alter sequence s restart 7", "drop sequence s", "create schema made create table a (b int)", "alter schema public rename to made", "drop schema gones",
		"create trigger made after insert on t for each row execute function wrt()", "alter trigger tr on triggered rename to made", "drop trigger tr on triggered",
		"create rule made as on insert to t do also notify wp", "drop rule ru on ruled", "create policy made on t using (true)", "alter policy p on secured rename to made", "drop policy p on secured",
		"create operator === (leftarg = int, rightarg = int, function = wri)", "drop operator public.+ (int, int)",
		"create cast (pair as text) with function wrx(pair)", "create collation made (locale = 'C')", "create statistics made on id, v from t",
		"create text search configuration made (copy = simple)", "create text search dictionary made (template = simple)",
		"create conversion made for 'LATIN1' to 'UTF8' from iso8859_1_to_utf8", "create extension citext", "create publication made for table t",
		"comment on table t is 'w'", "comment on column t.v is 'w'", "security label on table t is 'w'", "grant select on t to public", "revoke all on t from app", "grant usage on schema public to fencepost",
		"grant other to wp_role", "alter default privileges grant select on tables to public", "reassign owned by app to other", "drop owned by other",
		"create role wp_made", "create user wp_made createdb", "alter role wp_role createdb", "drop role wp_role", "alter role app set work_mem = '1MB'",
		"alter database {db} set work_mem = '1MB'", "alter database wp_db connection limit 3", "alter database wp_db rename to wp_made",
		"create server made foreign data wrapper postgres_fdw", "create foreign table made (a int) server loop", "create user mapping for other server loop", "alter server loop options (add fetch_size '5')",
		"alter foreign table ft options (add fetch_size '5')", "import foreign schema public limit to (kept) from server loop into gones",
		"create transform for int language sql (from sql with function f(internal))",
	} {
		all = append(all, path(sql, sql))
	}
	for _, sql := range []string{
		"create event trigger made on ddl_command_end execute function wret()", "create language made handler plpgsql_call_handler", "create access method made type index handler bthandler",
		"create type made", "create operator class made for type int using btree as function 1 btint4cmp(int, int)", "create foreign data wrapper made",
		"alter event trigger tr disable", "alter database {db} owner to other",
		"create subscription wp_made connection 'dbname=nowhere' publication p with (connect = false, slot_name = none, enabled = false)", "create text search template made (lexize = dsimple_lexize)",
	} {
		all = append(all, path(sql, sql).but(how{super: true}))
	}
	all = append(all,
		path("a definition seen by an event trigger", "create table made (a int)"),
		path("extension dropped", "drop extension citext").but(how{before: []string{"create extension if not exists citext"}}),
		path("a not null that is not valid", "alter table t add constraint k not null v not valid").but(how{since: 18}),
		path("a computed column", "create table made (a int, b int generated always as (a * 2) virtual)").but(how{since: 18}),
		path("a key without overlaps", "create table made (a int4range, b int4range, primary key (a, b without overlaps))").but(how{since: 18}),
		path("a constraint not enforced", "alter table t add constraint k check (v <> 'one') not enforced").but(how{since: 18}),
	)
	return all
}

// upkeepPaths look after what is there. Most run alone.
func upkeepPaths() []writePath {
	all := []writePath{
		path("analyze", "analyze t"),
		path("analyze of several", "analyze (skip_locked) t, c"),
		path("reindex table", "reindex table t"),
		path("reindex index", "reindex index ti"),
		path("cluster of a table", "cluster t using t_pkey"),
		path("refresh", "refresh materialized view m").but(how{before: []string{"insert into t values (9, 'n') on conflict do nothing"}}),
		path("refresh concurrently", "refresh materialized view concurrently m").but(how{before: []string{"insert into t values (9, 'n') on conflict do nothing"}}),
		path("refresh with no data", "refresh materialized view m with no data"),
		path("checkpoint", "checkpoint").but(how{super: true}),
		path("load", "load 'plpgsql'").but(how{super: true}),
	}
	for _, x := range []struct {
		sql string
		how
	}{
		{"vacuum t", how{}}, {"vacuum full t", how{}}, {"vacuum (analyze) t", how{}}, {"vacuum freeze t", how{}},
		{"reindex table concurrently t", how{}}, {"reindex schema public", how{}},
		{"create index concurrently made on t (v)", how{}}, {"create unique index concurrently if not exists made on t (id)", how{}}, {"drop index concurrently ti", how{}},
		{"alter table part detach partition part2 concurrently", how{}}, {"cluster", how{}},
		{"create database wp_made", how{}}, {"drop database wp_db", how{}}, {"drop database wp_db with (force)", how{}},
		{"alter system set work_mem = '5MB'", how{super: true}}, {"alter system reset all", how{super: true}},
		{"create tablespace wp_made location '{dir}/space'", how{super: true}},
	} {
		x.alone = true
		all = append(all, path(x.sql, x.sql).but(x.how))
	}
	return all
}

// outsidePaths write through another connection of the server's.
func outsidePaths() []writePath {
	connected := []string{"select ext.dblink_connect_u('k', 'host=127.0.0.1 port={port} dbname={db} user=app application_name=worker')"}
	return []writePath{
		path("dblink_exec", "select ext.dblink_exec('k', 'insert into t values (10, ''w'')')").but(how{before: connected}),
		path("dblink", "select * from ext.dblink('k', 'insert into t values (10, ''w'') returning id') as x(id int)").but(how{before: connected}),
		path("dblink_send_query", "select ext.dblink_send_query('k', 'insert into t values (10, ''w'')')", "select * from ext.dblink_get_result('k') as x(v text)").but(how{before: connected}),
		path("insert into a foreign table", "insert into ft values (10, 'w')"),
		path("update of a foreign table", "update ft set v = 'w' where id = 1 returning *"),
		path("copy into a foreign table", "copy ft from stdin").but(how{data: "80\tx\n"}),
		path("truncate of a foreign table", "truncate ft"),
	}
}
