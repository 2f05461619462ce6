package protocol_test

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// targets are what the ways to write work on. opens and resets are ways out of read-only mode.
const targets = `
create sequence s; create type pair as (a int, b int);
create function wr(v text) returns text language sql volatile as 'insert into public.t (v) values (v) returning v';
create function wrb(v text) returns boolean language plpgsql volatile as 'begin perform public.wr(v); return true; end';
create function wrp(pair) returns int language plpgsql volatile as 'begin perform public.wr(''c''); return 0; end';
create function wri(int, int) returns int language plpgsql volatile as 'begin perform public.wr(''o''); return 0; end';
create function opens() returns text language sql as 'select set_config(''default_transaction_read_only'', ''off'', false)';
create function lies() returns int language plpgsql immutable as $$begin set transaction_read_only = off; perform public.wr('l'); return 1; end$$;
create function frees() returns int language plpgsql as $$begin reset transaction_read_only; perform public.wr('f'); return 1; end$$;
create function hides() returns int language plpgsql as $$begin begin perform public.wr('h'); exception when others then null; end; return 1; end$$;
create domain wd as text check (wrb(value));
create operator + (leftarg = int, rightarg = int, function = wri);
create cast (pair as int) with function wrp(pair);
create view vw as select wr('view') as v; create view upd as select * from c;
create table ruled (a int); create rule ru as on insert to ruled do instead insert into t (v) values ('rule');
create table secured (a int); insert into secured values (1); alter table secured enable row level security; create policy p on secured using (wrb('policy'));
create materialized view m as select id from c; create unique index on m (id);
create procedure once(i int) language sql as 'insert into public.t (v) values (''called'')';
create procedure twice(i int) language plpgsql as $$begin insert into public.t (v) values ('p'); commit; insert into public.t (v) values ('p'); end$$;
select lo_create(4700);
grant all on all tables in schema public to public; grant all on all sequences in schema public to public; grant all on large object 4700 to public;
alter table t owner to app; alter table c owner to app; alter materialized view m owner to app; alter sequence s owner to app; alter view vw owner to app`

// ways are statements that write, or do something else that only a leader may do.
var ways = []string{
	"insert into t (v) values ('w')", "insert into c values (1, 'w') on conflict (id) do update set v = 'w'", "update c set v = 'w'", "update c set v = 'w' returning id", "delete from c",
	"truncate c", "merge into c using (select 1 as i) x on c.id = x.i when matched then update set v = 'w'", "with x as (insert into t (v) values ('w') returning id) select * from x",
	"select * into made from c", "create table made as select 1 as a", "create table made (a int)", "create temp table made (a int)", "create view made as select 1 as a", "create index made on c (v)", "create index concurrently made on c (v)",
	"create function made() returns int language sql as 'select 1'", "create schema made", "drop table c", "drop view vw", "alter table c add x int", "comment on table c is 'w'", "grant select on c to postgres", "security label on table c is 'x'",
	"select * from c for update", "select * from c for key share", "insert into upd values (10, 'w')", "insert into ruled values (1)",
	"copy t (v) from stdin", "copy t (v) from program 'echo w'", "copy c to '/tmp/fencepost-settled'", "copy c to program 'cat > /tmp/fencepost-settled'", "copy (insert into t (v) values ('w') returning id) to stdout",
	"select wr('w')", "select * from c where wrb('w')", "values (wr('w'))", "select 1 limit length(wr('w'))", "copy (select wr('w')) to stdout", "table vw", "select 'w'::wd", "select '{w}'::wd[]", "select row(1, 2)::pair::int",
	"select 1 operator(public.+) 2", "select (row(1, 2)::pair).wrp", "select * from secured", "select lies()", "select wrb('w') or lies() = 1",
	"call once(1)", "call twice(1)", "do $$begin insert into t (v) values ('w'); end$$", "do $$begin insert into t (v) values ('w'); commit; insert into t (v) values ('w'); end$$",
	"do $$begin set transaction_read_only = off; insert into t (v) values ('w'); end$$", "do $$begin set default_transaction_read_only = off; commit; insert into t (v) values ('w'); end$$",
	"select nextval('s')", "select setval('s', 9)", "select lo_create(4711)", "select lo_from_bytea(4711, '\\x01')", "select lo_put(4700, 0, '\\x09')", "select lo_unlink(4700)", "alter large object 4700 owner to app",
	"notify wp", "select pg_notify('wp', 'x')", "select query_to_xml('select wr(''w'')', true, true, '')", "select pg_logical_emit_message(false, 'wp', 'x') is null", "select pg_create_physical_replication_slot('wp')",
	"explain analyze insert into t (v) values ('w')", "explain analyze select wr('w')", "prepare w as insert into t (v) values ('w')", "prepare w as select pg_notify('wp', 'x')", "declare k cursor with hold for select wr('w')",
	"vacuum c", "analyze c", "vacuum", "cluster", "reindex table c", "refresh materialized view m", "refresh materialized view concurrently m", "checkpoint", "load 'plpgsql'", "alter system set work_mem = '1MB'", "create database made", "lock table c in share mode",
	"select set_config('transaction_read_only', 'off', true)", "insert into t (v) values (pg_notify('wp', 'x')::text)", "insert into t (v) select wr('x')", "alter role app set work_mem = '1MB'", "alter database postgres set work_mem = '1MB'",
	"prepare transaction 'x'", "commit prepared 'x'", "select frees()", "select frees(), pg_notify('wp', 'y')", "select * from dblink('host=127.0.0.1', 'select 1') as x(a int)", "reassign owned by app to app", "drop owned by app", "import foreign schema x from server y into z",
	"alter materialized view m rename to made", "alter sequence s restart", "alter table c rename to made", "create role made", "create extension lo", "create publication made", "create statistics made on id, v from c",
}

// locks counts those by which a client holds up others on the table c.
const locks = `(select count(*) from pg_locks l join pg_stat_activity a using (pid) where relation = to_regclass('c') and mode <> 'AccessShareLock' and backend_type = 'client backend')`

// state shows all that the ways change.
const state = `select concat_ws('|',
	(select string_agg(t::text, ',' order by id) from t), (select string_agg(c::text, ',' order by id) from c), (select last_value::text || is_called from s),
	(select string_agg(relname || ' ' || relfilenode || ' ' || reltuples || ' ' || relhasindex || coalesce(relacl::text, ''), ',' order by oid) from pg_class where relnamespace = 'public'::regnamespace or relpersistence = 't'),
	(select string_agg(proname, ',' order by oid) from pg_proc where pronamespace = 'public'::regnamespace),
	(select string_agg(nspname, ',' order by oid) from pg_namespace where nspname !~ '^pg_t'), (select count(*) from pg_description), (select string_agg(datname, ',') from pg_database where datname ~ 'made'),
	(select count(*) from pg_statistic where starelid >= 16384), (select string_agg(oid::text || coalesce(lomacl::text, '') || lomowner, ',' order by oid) from pg_largeobject_metadata), (select string_agg(encode(data, 'hex'), ',') from pg_largeobject),
	(select count(*) from pg_replication_slots), (select string_agg(setconfig::text, ',') from pg_db_role_setting), (select string_agg(extname, ',') from pg_extension), (select count(*) from pg_attribute where attrelid = to_regclass('c')),
	(select count(*) from pg_prepared_xacts), (select count(*) from pg_roles where rolname = 'made'), ` + locks + `)`

// forms are how a statement is sent. Each item is answered before the next.
var forms = map[string]func(sql string) [][]byte{
	"simple":   func(sql string) [][]byte { return [][]byte{Q(sql)} },
	"extended": func(sql string) [][]byte { return [][]byte{Batch(Run(sql))} },
	"named": func(sql string) [][]byte {
		return [][]byte{Batch(Shut('S', "w"), Parse("w", sql)), Batch(Desc('S', "w")), Batch(Bind("", "w"), Exec("", 0))}
	},
	"in a block":            func(sql string) [][]byte { return [][]byte{Q("begin"), Q("select 1"), Q(sql), Q("commit")} },
	"in a block, extended":  func(sql string) [][]byte { return [][]byte{Batch(Run("begin"), Run(sql)), Batch(Run("commit"))} },
	"read write":            func(sql string) [][]byte { return [][]byte{Q("begin read write"), Q(sql), Q("commit")} },
	"read write in a text":  func(sql string) [][]byte { return [][]byte{Q("begin read write; " + sql + "; commit")} },
	"read write in a batch": func(sql string) [][]byte { return [][]byte{Batch(Run("begin read write"), Run(sql), Run("commit"))} },
	"read write, pipelined": func(sql string) [][]byte {
		return [][]byte{Cat(Batch(Run("start transaction isolation level read committed, read write")), Batch(Run(sql)), Batch(Run("commit")))}
	},
	"read write, savepoint": func(sql string) [][]byte {
		return [][]byte{Q("begin read write; savepoint a; select 1"), Q("rollback to a"), Q(sql), Q("rollback to a"), Q("release a"), Q(sql), Q("commit")}
	},
	"set transaction": func(sql string) [][]byte {
		return [][]byte{Q("begin"), Q("set transaction read write"), Q(sql), Q("commit")}
	},
	"set transaction in a text": func(sql string) [][]byte {
		return [][]byte{Q("begin; savepoint a; set transaction read write; " + sql + "; release a; commit")}
	},
	"set parameter": func(sql string) [][]byte {
		return [][]byte{Q("begin; set transaction_read_only = off"), Q(sql), Q("commit")}
	},
	"set local parameter, batch": func(sql string) [][]byte {
		return [][]byte{Batch(Run("begin"), Run("set local transaction_read_only to 'off'"), Run(sql), Run("commit"))}
	},
	"reset parameter": func(sql string) [][]byte {
		return [][]byte{Q("begin; select 1; reset transaction_read_only; " + sql + "; commit"), Batch(Run("reset transaction_read_only"), Run(sql))}
	},
	"a function opens":            func(sql string) [][]byte { return [][]byte{Q("select opens()"), Q(sql)} },
	"a function opens, pipelined": func(sql string) [][]byte { return [][]byte{Cat(Q("select opens()"), Q(sql))} },
	"a function opens, commit":    func(sql string) [][]byte { return [][]byte{Q("select opens(); commit; " + sql)} },
	"a function opens, chain": func(sql string) [][]byte {
		return [][]byte{Q("begin; select opens(); commit and chain; " + sql + "; commit"), Q("commit")}
	},
	"a function opens, begin": func(sql string) [][]byte { return [][]byte{Q("select opens(); commit; begin"), Q(sql), Q("commit")} },
	"a function opens, batch": func(sql string) [][]byte { return [][]byte{Batch(Run("select opens()"), Run("commit"), Run(sql))} },
	"a function opens, begin in a batch": func(sql string) [][]byte {
		return [][]byte{Batch(Run("select opens()"), Run("commit"), Run("begin"), Run(sql)), Batch(Run("select opens()"), Run("rollback"), Run("begin")), Q(sql), Q("commit")}
	},
	"a function opens, names": func(sql string) [][]byte {
		return [][]byte{Batch(Shut('S', "o"), Shut('S', "c"), Parse("o", "select opens()"), Parse("c", "commit")), Batch(Shut('S', "w"), Parse("w", sql)),
			Batch(Bind("", "o"), Exec("", 0), Bind("", "c"), Exec("", 0), Bind("", "w"), Exec("", 0)), Batch(Bind("", "o"), Exec("", 0), Bind("", "c"), Exec("", 0), Run(sql))}
	},
	"a portal of another exchange": func(sql string) [][]byte {
		bound := Cat(Q("begin"), Batch(Parse("", "commit"), Bind("p", "")))
		return [][]byte{bound, Batch(Run("select opens()"), Exec("p", 0), Run(sql)), Q("rollback"), bound, Batch(Run("select opens()"), Exec("p", 0), Flush(), Run("begin"), Run(sql)), Q("commit")}
	},
	"a function opens, names by SQL": func(sql string) [][]byte {
		return [][]byte{Q("prepare o as select opens()"), Q("execute o; commit; " + sql), Batch(Run("execute o"), Run("end"), Run(sql)), Q("deallocate all")}
	},
	"session characteristics": func(sql string) [][]byte {
		return [][]byte{Q("set session characteristics as transaction read write; commit; " + sql), Q(sql), Q("set default_transaction_read_only = off; " + sql)}
	},
	"discard all": func(sql string) [][]byte {
		return [][]byte{Q("discard all"), Q(sql), Batch(Run("discard all"), Run(sql))}
	},
	"reset all": func(sql string) [][]byte {
		return [][]byte{Q("reset all; commit; " + sql), Batch(Run("reset all"), Run("commit"), Run("begin")), Q(sql), Q("commit")}
	},
	"among others": func(sql string) [][]byte {
		return [][]byte{Q("select 1; " + sql + "; select 2"), Batch(Run("select 1"), Run(sql), Run("select 2"))}
	},
	"in a failed block": func(sql string) [][]byte {
		return [][]byte{Q("begin; select 1/0"), Q(sql), Q("rollback; " + sql), Q("begin; select 1/0"), Batch(Run("rollback"), Run(sql))}
	},
	"behind a flush": func(sql string) [][]byte {
		return [][]byte{Cat(Run("begin read write"), Flush(), Run(sql), Flush(), Sync()), Q("rollback")}
	},
	"query behind a batch": func(sql string) [][]byte { return [][]byte{Cat(Run("select 1"), Q(sql), Sync())} },
	"not readable": func(sql string) [][]byte {
		return [][]byte{Q(sql + "; select 1 from from"), Q("set standard_conforming_strings = off"), Q(`select '\'; ` + sql + `; --'`), Q("reset all")}
	},
	"long": func(sql string) [][]byte {
		return [][]byte{Q(sql + " -- " + strings.Repeat("x", 300<<10)), Q(sql + " -- " + strings.Repeat("x", 3<<10))}
	},
}

var allForms = flag.Bool("all-forms", false, "try each way to write in each form, and not in every third")

// TestFollowersWriteNothing sends each way to write in many forms.
func TestFollowersWriteNothing(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) { writeNothing(t, h, 1) })
}

// TestUnfencedConnectionsWriteNothing does so without a resource.
func TestUnfencedConnectionsWriteNothing(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		h.config = func(c *protocol.Config) { c.Mode, c.Unfenced = protocol.ModeReadOnly, fencing.UnfencedRefusal("app") }
		writeNothing(t, h, 6)
	})
}

// writeNothing tries one in every so many ways.
func writeNothing(t *testing.T, h *harness, every int) {
	h.exec(tables)
	h.exec(targets)
	h.readCatalog()
	listener := h.pg.Connect(t, pgtest.Superuser, h.db)
	if _, err := listener.Exec(t.Context(), "listen wp"); err != nil {
		t.Fatal(err)
	}
	before := pgtest.Ask[string](t, h.pg, h.db, state)
	for i, sql := range ways {
		if i%every != 0 {
			continue
		}
		t.Run(fmt.Sprintf("%.50s", sql), func(t *testing.T) {
			h.in(t)
			c := h.connect()
			for j, name := range slices.Sorted(maps.Keys(forms)) {
				if !*allForms && (i+j)%3 != 0 {
					continue
				}
				form := forms[name]
				var codes []string
				for _, step := range form(sql) {
					c.Send(step)
					for range owed(step) {
						codes = append(codes, wiretest.ErrorOf(c.Until('Z')))
					}
				}
				if h.status.Load() == superseded {
					if slices.Contains(codes, "ZF002") {
						t.Errorf("%s: answered by %q", name, codes)
					}
				} else if !refusedBy(codes, sql) && name != "not readable" && name != "reset parameter" {
					t.Errorf("%s: answered by %q", name, codes)
				}
				c.Send(Q("rollback"))
				c.Until('Z')
			}
			if now := pgtest.Ask[string](t, h.pg, h.db, state); now != before {
				t.Errorf("changed\n%s\nto\n%s", before, now)
				before = now
			}
			if all := c.Exec("select 1"); len(all) != 4 {
				t.Errorf("the session does not go on: %v", all)
			}
		})
	}
	if n, err := listener.WaitForNotification(short(t)); err == nil {
		t.Errorf("notified: %v", n)
	}
	if len(h.errs) > 0 {
		t.Errorf("%v", h.errs)
	}
}

// refusedBy reports whether a refusal of Fencepost's, or an error of Postgres's own, is among the codes.
func refusedBy(codes []string, sql string) bool {
	for _, code := range codes {
		if strings.HasPrefix(code, "ZF00") || code != "" && code != "25006" && (strings.Contains(sql, "lies()") || strings.Contains(sql, "frees()") || strings.Contains(sql, "dblink") || strings.Contains(sql, "lock table") || strings.Contains(sql, "+")) {
			return true
		}
	}
	return false
}
