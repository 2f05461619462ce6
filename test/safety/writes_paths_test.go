package safety

import (
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// writePath is one way to change something: statements of which Postgres, asked
// by one who may, executes all. {db}, {port} and {dir} are filled in.
type writePath struct {
	name string
	sql  []string
	how
}

// how says what is special about a path.
type how struct {
	before []string // what the session does before
	data   string   // of the COPY that is the last statement
	call   []byte   // a fast path call in place of statements
	super  bool     // needs a superuser
	block  bool     // only in a transaction block
	alone  bool     // Postgres refuses it in a block
	since  int      // the first version that knows it
	temp   bool     // what comes before makes a temporary table, which goes with its session
	// reads: those who do not lead may do it too, since it changes nothing; on 15
	// it is refused where it is not proven.
	reads bool
}

func path(name string, sql ...string) writePath { return writePath{name: name, sql: sql} }

func (p writePath) but(h how) writePath { p.how = h; return p }

func (p writePath) user() string {
	if p.super {
		return pgtest.Superuser
	}
	return pgtest.App
}

// writePaths are all of them.
func writePaths() []writePath {
	var all []writePath
	for _, part := range [][]writePath{rowPaths(), codePaths(), sessionPaths(), objectPaths(), upkeepPaths(), outsidePaths()} {
		all = append(all, part...)
	}
	return all
}

// rowPaths write rows by statements that say so.
func rowPaths() []writePath {
	return []writePath{
		path("insert", "insert into t values (10, 'w')"),
		path("insert returning", "insert into t values (10, 'w') returning *"),
		path("insert or update", "insert into t values (1, 'w') on conflict (id) do update set v = excluded.v"),
		path("insert of a default", "insert into identified (v) values ('w')"),
		path("update", "update t set v = 'w' where id = 1"),
		path("update from", "update t set v = c.v || 'w' from c where c.id = t.id returning t.id"),
		path("delete", "delete from t where id = 1"),
		path("truncate", "truncate t"),
		path("truncate and restart", "truncate identified restart identity"),
		path("merge", "merge into t using (values (1), (10)) x(i) on t.id = x.i when matched then update set v = 'w' when not matched then insert values (x.i, 'w')"),
		path("merge returning", "merge into t using (values (1)) x(i) on t.id = x.i when matched then delete returning t.id").but(how{since: 17}),
		path("returning old and new", "update t set v = 'w' where id = 1 returning old.v, new.v").but(how{since: 18}),
		path("insert in a WITH", "with x as (insert into t values (10, 'w') returning id) select id from x"),
		path("update in a WITH", "with x as (update t set v = 'w' returning id) select 1"),
		path("delete in a WITH of a write", "with x as (delete from t where id = 1 returning id) insert into c select id + 10, 'w' from x"),
		path("select into", "select * into made from t"),
		path("create table as", "create table made as select * from t"),
		path("create table as execute", "create table made as execute p").but(how{before: []string{"prepare p as select id from t"}}),
		path("for update", "select * from t for update"),
		path("for no key update", "select * from t for no key update"),
		path("for share", "select * from t where id = 1 for share"),
		path("for key share", "select * from (select * from t for key share) x"),
		path("an updatable view", "insert into upd values (10, 'w')"),
		path("a rule", "insert into ruled values (10)"),
		path("a trigger", "insert into triggered values (10)"),
		path("an instead trigger", "insert into insteaded values (10)"),
		path("a deferred trigger", "insert into late values (10)"),
		path("a deferred trigger made immediate", "insert into late values (10)", "set constraints all immediate").but(how{block: true}),
		path("copy from stdin", "copy t from stdin").but(how{data: "80\tx\n81\ty\n"}),
		path("copy from a file", "copy t from '{dir}/in'"),
		path("copy from a program", "copy t from program 'echo 80,x' (format csv)"),
		path("copy to a file", "copy t to '{dir}/out'"),
		path("copy to a program", "copy t to program 'cat > {dir}/out'"),
		path("copy of what an insert returns", "copy (insert into t values (10, 'w') returning id) to stdout"),
		path("lock table", "lock table t in share mode").but(how{block: true}),
		path("lock table nowait", "lock t nowait").but(how{block: true}),
	}
}

// codePaths write by a user's code, or by functions of the server.
func codePaths() []writePath {
	return []writePath{
		path("a function", "select wr('w')"),
		path("a function of a table", "select * from t where wrb('w')"),
		path("a function in values", "values (wr('w'))"),
		path("a function in FROM", "select * from wr('w')"),
		path("a function in LIMIT", "select 1 limit length(wr('w'))"),
		path("a function in copy to stdout", "copy (select wr('w')) to stdout"),
		path("a view", "select * from vw"),
		path("a view by TABLE", "table vw"),
		path("a domain", "select 'w'::wd"),
		path("a domain in an array", "select '{w}'::wd[]"),
		path("a domain in a row", "select json_populate_record(null::dt, '{\"w\": \"w\"}')"),
		path("a cast", "select row(1, 2)::pair::int"),
		path("an operator", "select 1 operator(public.+) 2"),
		path("an operator by search_path", "select 1 + 2").but(how{before: []string{"set search_path = public, pg_catalog"}}),
		path("a policy", "select * from secured"),
		path("attribute notation", "select (row(1, 2)::pair).wrp"),
		path("call", "call once(10)"),
		path("call with commit", "call twice(20)").but(how{alone: true}),
		path("call with output", "call outs(10)"),
		path("do", "do $$begin insert into t values (30, 'x'); end$$"),
		path("do with commit", "do $$begin insert into t values (30, 'x'); commit; insert into t values (31, 'x'); end$$").but(how{alone: true}),
		path("nextval", "select nextval('s')"),
		path("setval", "select setval('s', 9)"),
		path("large object made", "select lo_create(4711)"),
		path("large object with bytes", "select lo_from_bytea(4711, '\\x0203')"),
		path("large object put", "select lo_put(4700, 0, '\\x09')"),
		path("large object written", "select lowrite(lo_open(4700, 131072), '\\x0a')").but(how{block: true}),
		path("large object cut", "select lo_truncate(lo_open(4700, 131072), 0)").but(how{block: true}),
		path("large object dropped", "select lo_unlink(4701)"),
		path("large object imported", "select lo_import('{dir}/in', 4711)").but(how{super: true}),
		path("large object exported", "select lo_export(4700, '{dir}/out')").but(how{super: true}),
		path("alter large object", "alter large object 4701 owner to other"),
		path("grant on large object", "grant select on large object 4701 to public"),
		path("fast path call of lo_create", "").but(how{call: wiretest.Msg('F', oidBytes(715), []byte("\x00\x00\x00\x01\x00\x00\x00\x044711\x00\x00"))}),
		path("fast path call of lo_unlink", "").but(how{call: wiretest.Msg('F', oidBytes(964), []byte("\x00\x00\x00\x01\x00\x00\x00\x044701\x00\x00"))}),
		path("notify", "notify wp, 'x'"),
		path("pg_notify", "select pg_notify('wp', 'x')"),
		path("SQL text in a function", "select query_to_xml('select wr(''w'')', true, true, '')"),
		path("advisory lock", "select pg_advisory_lock(7)").but(how{reads: true}),
		path("advisory lock of a transaction", "select pg_advisory_xact_lock(7)").but(how{reads: true}),
		path("logical message", "select pg_logical_emit_message(false, 'wp', 'x') is null"),
		path("logical message of a transaction", "select pg_logical_emit_message(true, 'wp', 'x') is null"),
		path("restore point", "select pg_create_restore_point('wp') is null").but(how{super: true}),
		path("switch of the WAL", "select pg_switch_wal() is null").but(how{super: true}),
		path("import of collations", "select pg_import_system_collations('public') >= 0").but(how{super: true}),
		path("reload of the configuration", "select pg_reload_conf()").but(how{super: true}),
		path("replication slot", "select slot_name from pg_create_physical_replication_slot('wp')"),
	}
}

// preparesInsert comes before paths that execute a prepared statement that writes.
var preparesInsert = []string{"prepare p(int) as insert into t values ($1, 'p')"}

// sessionPaths write by what the session was told to do, or in another role.
func sessionPaths() []writePath {
	prepared := how{before: preparesInsert}
	return []writePath{
		path("prepare and execute", "prepare q as insert into t values (10, 'w')", "execute q"),
		path("execute", "execute p(10)").but(prepared),
		path("execute of a function", "execute f").but(how{before: []string{"prepare f as select wr('w')"}}),
		path("execute by a function's name", "execute p(length(wr('wwwwwwwwww')))").but(prepared),
		path("explain analyze", "explain (analyze, costs off, timing off, summary off, buffers off) insert into t values (10, 'w')"),
		path("explain analyze of a read", "explain (analyze, costs off, timing off, summary off, buffers off) select wr('w')"),
		path("explain analyze execute", "explain (analyze, costs off, timing off, summary off, buffers off) execute p(10)").but(prepared),
		path("explain analyze create table as", "explain (analyze, costs off, timing off, summary off, buffers off) create table made as select 1"),
		path("cursor", "declare k cursor for select wr('w')", "fetch all from k").but(how{block: true}),
		path("cursor with hold", "declare k cursor with hold for select wr('w')"),
		path("cursor for update", "declare k cursor for select * from t for update", "fetch 1 from k", "update t set v = 'w' where current of k").but(how{block: true}),
		path("cursor moved", "declare k cursor for select wr('w')", "move all from k").but(how{block: true}),
		path("set role", "set role other", "create temp table made (a int)", "reset role", "insert into t values (10, 'w')"),
		path("set local role", "set local role other", "reset role", "insert into t values (10, 'w')").but(how{block: true}),
		path("set session authorization", "set session authorization app", "insert into t values (10, 'w')", "reset session authorization").but(how{super: true}),
		path("temporary table", "create temp table made (a int)", "insert into made values (1)"),
		path("temporary table as", "create temp table made on commit drop as select * from t"),
		path("write to a temporary table", "insert into tt values (1)", "select * from tt").but(how{temp: true, before: []string{"create temp table tt (a int)"}}),
		path("temporary view of a write", "create temp view tv as select wr('w')", "select * from tv"),
		path("savepoints", "savepoint a", "insert into t values (10, 'w')", "rollback to a", "insert into t values (11, 'w')", "release a").but(how{block: true}),
		path("write behind a failed one", "savepoint a", "insert into t values (1, 'w')", "rollback to a", "insert into t values (11, 'w')").but(how{block: true}),
		path("read write", "set transaction read write", "insert into t values (10, 'w')").but(how{block: true}),
		path("write with a default of read only", "insert into t values (10, 'w')").but(how{before: []string{"set default_transaction_read_only = on"}}),
		path("write with settings of old", "insert into t values (10, 'it\\'s')").but(how{before: []string{"set standard_conforming_strings = off", "set escape_string_warning = off", "set backslash_quote = on"}}),
	}
}
