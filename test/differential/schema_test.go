package differential

import (
	"fmt"
	"strings"
)

// initialSQL is the initial content of the database. The role that runs the scripts
// owns it. The columns are short, so that recreating tables creates few files. Scripts
// decide what is vacuumed, and when.
const initialSQL = `
set role app;
create table t (id int primary key, v varchar(300)) with (autovacuum_enabled = off);
create table keys (id int primary key) with (autovacuum_enabled = off);
create table d (id int primary key, t int references keys (id) deferrable initially deferred) with (autovacuum_enabled = off);
create table log (id serial primary key, v varchar(300)) with (autovacuum_enabled = off);
create table trg (id int, v varchar(300) default 'new') with (autovacuum_enabled = off);
create table wide (a int, b text, c numeric, d bytea, e timestamptz, f bool[]) with (autovacuum_enabled = off);
create sequence s;
create type mood as enum ('sad', 'ok');
create type pair as (a int, b int);
create function wr(i int) returns int language sql as 'insert into t values (i, ''f''); select i';
create function wrb(v int) returns boolean language plpgsql as 'begin insert into log (v) values (v::text); return true; end';
create function boom() returns int language plpgsql as 'begin raise exception ''boom'' using detail = ''d'', hint = ''h''; end';
create function noise(n int) returns int language plpgsql as 'begin for i in 1..n loop raise notice ''noise %'', i; end loop; return n; end';
create function forget() returns int language plpgsql as 'begin execute ''deallocate all''; return 1; end';
create function many(n int) returns setof int language plpgsql as 'begin for i in 1..n loop insert into log (v) values (''many''); return next i; end loop; end';
create function told() returns trigger language plpgsql as 'begin raise notice ''% %'', tg_op, tg_when; return new; end';
create function late() returns trigger language plpgsql as 'begin insert into log (v) values (''late''); if new.id = 13 then raise exception ''unlucky''; end if; return null; end';
create function to_int(p pair) returns int language plpgsql as 'begin insert into log (v) values (''cast''); return p.a; end';
create cast (pair as int) with function to_int(pair);
create domain wd as int check (wrb(value));
create procedure twice(i int) language plpgsql as $$begin insert into t values (i, 'p'); commit; insert into t values (i + 1, 'p'); end$$;
create procedure undone(i int) language plpgsql as $$begin insert into t values (i, 'p'); rollback; insert into t values (i + 1, 'p'); end$$;
create procedure plain(i int, inout o int) language plpgsql as $$begin insert into t values (i, 'p'); o := i; end$$;
create trigger told before insert or update on trg for each row execute function told();
create constraint trigger late after insert on trg deferrable initially deferred for each row execute function late();
create view w as select wr(900) as x;
create view v as select id, v from t where id > 1;
create rule quiet as on delete to log do instead insert into t values (old.id + 500, 'rule');
create materialized view mv with (autovacuum_enabled = off) as select count(*) from t;
create unique index on mv (count);
create function evil.pg_sequence_last_value(regclass) returns bigint language sql as 'select 1::bigint';
create function evil.set_config(text, text, boolean) returns text language sql as 'select ''evil''';
create function evil.no(bigint, bigint) returns boolean language sql as 'select false';
create operator evil.= (leftarg = bigint, rightarg = bigint, function = evil.no);
insert into keys values (1), (2), (3), (4);` + fillT + fillD + fillWide + `
reset role;
create table harness.beside (n int);
grant usage on schema harness to app; grant insert on harness.beside to app;
refresh materialized view mv;
create table harness.initial as select oid, relpages, reltuples from pg_class union all select oid, 0, 0 from pg_proc;`

// guardsOf returns the SQL that guards the tables by a fence, without stamps, which scripts
// would see. It lets the administrator pass, who restores the tables.
func guardsOf(fence int32) string {
	return fmt.Sprintf("\nset constraints all immediate;\nselect fencepost.make_guard(%d, null);\n", fence) +
		triggers(fmt.Sprintf("fencepost.guard_%d('refuse', 'postgres')", fence)) +
		fmt.Sprintf("select fencepost.record_guards(%d, null, null);", fence)
}

// passing has a trigger of the same kind on each table that is guarded on the other side: a
// trigger that fires before each row, with a volatile function, changes what Postgres does.
var passing = `
set constraints all immediate;
create function harness.passes() returns trigger language plpgsql as 'begin if random() < 0 then return null; end if; if tg_op = ''DELETE'' then return old; end if; return new; end';
` + triggers("harness.passes()")

// triggers has a function called before each change of a row, and before TRUNCATE.
func triggers(function string) string {
	var sql strings.Builder
	for _, table := range []string{"t", "keys", "d", "log", "trg", "wide"} {
		for name, events := range map[string]string{"~fencepost": "insert or update or delete on %s for each row", "~fencepost_truncate": "truncate on %s"} {
			fmt.Fprintf(&sql, `create trigger %q before `+events+` execute function %s; alter table %[2]s enable always trigger %[1]q;`+"\n", name, table, function)
		}
	}
	return sql.String()
}

// The initial rows.
const (
	fillT = `
insert into t values (1, 'one'), (2, 'two'), (3, 'three'), (4, null);`
	fillD = `
insert into d values (1, 1);`
	fillWide = `
insert into wide values (1, 'é', 1.50, '\x00ff', '2001-02-03 04:05:06+00', '{t,f,null}');`
)

// parts are the objects that scripts write rows into: how to read each, and how to
// restore it if the shape of the database is unchanged.
var parts = []struct{ look, refill string }{
	{"(select string_agg(x::text, e'\n' order by x) from t x)", "truncate t;" + fillT},
	{"(select string_agg(x::text, e'\n' order by x) from d x)", "truncate d;" + fillD},
	{"(select string_agg(x::text, e'\n' order by x) from log x)", "truncate log;"},
	{"(select string_agg(x::text, e'\n' order by x) from trg x)", "truncate trg;"},
	{"(select string_agg(x::text, e'\n' order by x) from wide x)", "truncate wide;" + fillWide},
	{"(select pg_sequence_last_value('log_id_seq')::text)", "select setval('log_id_seq', 1, false);"},
	{"(select pg_sequence_last_value('s')::text)", "select setval('s', 1, false);"},
	{largeObjects, "select lo_unlink(oid) from pg_largeobject_metadata;"},
	{"(select string_agg(gid, ' ') from pg_prepared_xacts where database = current_database())", ""},
	{"(select string_agg(x::text, e'\n' order by x) from mv x)", "refresh materialized view mv;"}, // after t
	// The planner's statistics. Scripts do not write them, so they are not compared.
	{"(select string_agg(format('%s %s %s', oid, relpages, reltuples), ' ' order by oid) from pg_class where oid in (select oid from harness.initial) and relnamespace = 'public'::regnamespace)",
		"update pg_class c set relpages = f.relpages, reltuples = f.reltuples, relallvisible = 0 from harness.initial f where f.oid = c.oid and relnamespace = 'public'::regnamespace;" +
			"delete from pg_statistic where starelid >= 16384;"},
}

// compared is the number of parts that must be the same through Fencepost.
var compared = len(parts) - 1

const largeObjects = `(select string_agg(format('%s: %s', m.oid, (select string_agg(encode(data, 'hex'), ' ' order by pageno) from pg_largeobject l where l.loid = m.oid)), e'\n' order by m.oid) from pg_largeobject_metadata m)`

var rowsSQL = func() string {
	var looks []string
	for _, p := range parts {
		looks = append(looks, "coalesce("+p.look+", '')")
	}
	return "select array[" + strings.Join(looks, ",\n") + "]"
}()

// shapeSQL returns a digest of everything in the catalog that is not built in, except
// what changes with rows alone. It cannot be compared across databases.
const shapeSQL = `
select md5(string_agg(x, ' ' order by x)) from (
  select format('c%s %s %s %s %s %s', oid, relname, relnamespace, relkind, relispopulated, relacl) as x from pg_class
    where oid >= 16384 and relpersistence <> 't' and relnamespace <> 'pg_toast'::regnamespace
  union all select format('a%s %s %s', attrelid, attnum, a.xmin) from pg_attribute a join pg_class c on c.oid = attrelid
    where attrelid >= 16384 and relpersistence <> 't' and relnamespace <> 'pg_toast'::regnamespace
  union all select format('i%s %s', indexrelid, indisvalid) from pg_index where indexrelid >= 16384 and indrelid in (select oid from pg_class where relpersistence <> 't' and relkind <> 't')
  union all select format('p%s %s', oid, xmin) from pg_proc where oid >= 16384
  union all select format('y%s %s', oid, xmin) from pg_type where oid >= 16384 and typnamespace in (select oid from pg_namespace where nspname !~ '^pg_')
  union all select format('n%s %s', oid, nspname) from pg_namespace where nspname !~ '^pg_'
  union all select format('d%s %s', objoid, xmin) from pg_description where objoid >= 16384
  union all select format('t%s %s', oid, xmin) from pg_trigger where oid >= 16384
  union all select format('r%s %s', oid, xmin) from pg_rewrite where oid >= 16384
  union all select format('o%s %s', oid, xmin) from pg_constraint where oid >= 16384
) as all_of_it`

// tidySQL drops what scripts have added, and undoes their changes to the initial objects.
const tidySQL = `
do $$declare o record; begin
  for o in select oid::regclass as name, relkind from pg_class
    where relnamespace in ('public'::regnamespace, 'evil'::regnamespace) and oid not in (select oid from harness.initial)
      and relkind in ('r', 'v', 'm', 'i', 'S') order by relkind = 'i', relkind = 'S' loop
    if to_regclass(o.name::text) is null then continue; end if;
    execute format('drop %s if exists %s cascade', case o.relkind when 'r' then 'table' when 'v' then 'view' when 'm' then 'materialized view' when 'i' then 'index' else 'sequence' end, o.name);
  end loop;
  for o in select oid::regprocedure as name from pg_proc
    where pronamespace in ('public'::regnamespace, 'evil'::regnamespace) and oid not in (select oid from harness.initial) loop
    execute format('drop routine %s cascade', o.name);
  end loop;
  drop schema if exists sc cascade;
  if exists (select from pg_description where objoid = to_regclass('public.t')) then comment on table public.t is null; end if;
  for o in select oid::regclass as name from pg_class where relnamespace = 'public'::regnamespace and relacl is not null and relkind = 'r' loop
    execute format('update pg_class set relacl = null where oid = %s', o.name::oid);
  end loop;
end$$;`

// rebuild empties the database except for the fence.
const rebuild = `
do $$declare n name; begin
  for n in select nspname from pg_namespace where nspname !~ '^pg_' and nspname not in ('information_schema', 'fencepost') loop
    execute format('drop schema %I cascade', n);
  end loop;
end$$;
create schema public;
create schema harness;
grant all on schema public to app;
create schema evil authorization app;
select lo_unlink(oid) from pg_largeobject_metadata;
`

// contentsSQL returns one text of everything that a script can have written, without
// object ids. It reads sequences without locking them.
const contentsSQL = `
with rel as (
  select c.* from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'fencepost', 'harness')
)
select coalesce(string_agg(x, e'\n' order by x), '') from (
  select format('%s %s: %s', relkind, relname, regexp_replace(query_to_xml(format('select regexp_replace(x::text, ''[\x01-\x1f]'', ''?'', ''g'') as x from only %s x order by 1', oid::regclass), true, true, '')::text, '\s*<[^x>]*>\s*', '', 'g')) as x
    from rel where relkind in ('r', 'm') and relispopulated
  union all select format('%s %s (%s) %s', relkind, relname, relnamespace::regnamespace, relpersistence) from rel
  union all select format('column %s.%s %s %s', rel.relname, attname, format_type(atttypid, atttypmod), attnotnull)
    from rel join pg_attribute a on a.attrelid = rel.oid where attnum > 0
  union all select format('sequence %s: %s', relname, pg_sequence_last_value(oid)) from rel where relkind = 'S'
  union all select format('index %s valid %s', indexrelid::regclass, indisvalid) from pg_index where indrelid in (select oid from rel)
  union all select format('function %s %s', oid::regprocedure, md5(prosrc)) from pg_proc where pronamespace in (select oid from pg_namespace where nspname !~ '^pg_' and nspname not in ('information_schema', 'fencepost', 'harness'))
  union all select format('type %s', oid::regtype) from pg_type where typtype in ('d', 'e', 'r') and typnamespace in (select oid from pg_namespace where nspname !~ '^pg_' and nspname not in ('information_schema', 'fencepost', 'harness'))
  union all select format('schema %s', nspname) from pg_namespace where nspname !~ '^pg_'
  union all select format('comment %s', description) from pg_description where objoid in (select oid from rel)
  union all select format('trigger %s', tgname) from pg_trigger where not tgisinternal and tgname !~ '^~fencepost'
  union all select format('large object %s: %s', m.oid, (select string_agg(encode(data, 'hex'), ' ' order by pageno) from pg_largeobject l where l.loid = m.oid)) from pg_largeobject_metadata m
  union all select format('prepared %s', gid) from pg_prepared_xacts where database = current_database()
) as all_of_it`
