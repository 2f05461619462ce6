package differential

// furniture is what scripts find in the database. All of it belongs to the
// role that plays them.
const furniture = `
set role app;
create table t (id int primary key, v text);
create table d (id int primary key, t int references t (id) deferrable initially deferred);
create table log (id serial primary key, v text);
create table trg (id int, v text default 'new');
create table wide (a int, b text, c numeric, d bytea, e timestamptz, f bool[]);
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
create materialized view mv as select count(*) from t;
create unique index on mv (count);
create function evil.pg_sequence_last_value(regclass) returns bigint language sql as 'select 1::bigint';
create function evil.set_config(text, text, boolean) returns text language sql as 'select ''evil''';
create function evil.no(bigint, bigint) returns boolean language sql as 'select false';
create operator evil.= (leftarg = bigint, rightarg = bigint, function = evil.no);
` + fill + `
reset role;`

// fill puts the rows in that scripts begin with.
const fill = `
insert into t values (1, 'one'), (2, 'two'), (3, 'three'), (4, null);
insert into d values (1, 1);
insert into wide values (1, 'é', 1.50, '\x00ff', '2001-02-03 04:05:06+00', '{t,f,null}');
refresh materialized view mv;
`

// refill makes the tables new where nothing but rows has changed.
const refill = `
truncate t, d, log, trg, wide restart identity;
alter sequence s restart;
select lo_unlink(oid) from pg_largeobject_metadata;
set role app;` + fill + `
reset role;`

// rebuild empties the database but for the fence.
const rebuild = `
do $$declare n name; begin
  for n in select nspname from pg_namespace where nspname !~ '^pg_' and nspname not in ('information_schema', 'fencepost') loop
    execute format('drop schema %I cascade', n);
  end loop;
end$$;
create schema public;
grant all on schema public to app;
create schema evil authorization app;
select lo_unlink(oid) from pg_largeobject_metadata;
`

// contentsSQL is one text of all that a script can have written, without object
// ids. Sequences are looked at without locking them.
const contentsSQL = `
with rel as (
  select c.* from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'fencepost')
)
select coalesce(string_agg(x, e'\n' order by x), '') from (
  select format('%s %s: %s', relkind, relname, regexp_replace(query_to_xml(format('select regexp_replace(x::text, ''[\x01-\x1f]'', ''?'', ''g'') as x from only %s x order by 1', oid::regclass), true, true, '')::text, '\s*<[^x>]*>\s*', '', 'g')) as x
    from rel where relkind in ('r', 'm') and relispopulated
  union all select format('%s %s (%s) %s', relkind, relname, relnamespace::regnamespace, relpersistence) from rel
  union all select format('column %s.%s %s %s', rel.relname, attname, format_type(atttypid, atttypmod), attnotnull)
    from rel join pg_attribute a on a.attrelid = rel.oid where attnum > 0
  union all select format('sequence %s: %s', relname, pg_sequence_last_value(oid)) from rel where relkind = 'S'
  union all select format('index %s valid %s', indexrelid::regclass, indisvalid) from pg_index where indrelid in (select oid from rel)
  union all select format('function %s %s', oid::regprocedure, md5(prosrc)) from pg_proc where pronamespace in (select oid from pg_namespace where nspname !~ '^pg_' and nspname not in ('information_schema', 'fencepost'))
  union all select format('type %s', oid::regtype) from pg_type where typtype in ('d', 'e', 'r') and typnamespace in (select oid from pg_namespace where nspname !~ '^pg_' and nspname not in ('information_schema', 'fencepost'))
  union all select format('schema %s', nspname) from pg_namespace where nspname !~ '^pg_'
  union all select format('comment %s', description) from pg_description where objoid in (select oid from rel)
  union all select format('trigger %s', tgname) from pg_trigger where not tgisinternal
  union all select format('large object %s: %s', m.oid, (select string_agg(encode(data, 'hex'), ' ' order by pageno) from pg_largeobject l where l.loid = m.oid)) from pg_largeobject_metadata m
  union all select format('prepared %s', gid) from pg_prepared_xacts where database = current_database()
) as all_of_it`
