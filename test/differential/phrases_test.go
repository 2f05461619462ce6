package differential

import (
	"math/rand/v2"
	"strconv"
	"strings"
)

// family is a kind of statement with its weight.
type family struct {
	weight  int
	phrases []string
}

// In phrases, {i} is a number from 1 to 40, {k} the key of an existing row, {n} a small
// number, {s} the name of a statement, {c} of a cursor or portal, {v} of a savepoint,
// {x} of a table that may exist. $1, $2 stand for parameters. Rows are ordered, because
// their position on a page is not defined.
var families = []family{
	{16, []string{ // reads
		"select 1", "select 1, 'é', null", "select * from t order by id", "select v from t where id = {k}", "select count(*) from t",
		"select from t where id = 1", "values (1), ({n})", "table mv", "select * from v order by id", "with x as (select {n} as n) select * from x",
		"select generate_series(1, {n})", "select * from wide", "select current_user, session_user", "select current_schemas(false)",
		"select current_setting('transaction_isolation'), current_setting('transaction_read_only')", "select /* c ; */ 1 -- end", "select ';', $$;$$, e'\\';'",
		"select {i} as \"select\" from t where id = {k}", "select row(1, 'a')", "select '{i}'::int, '(1,2)'::pair", "select pg_current_xact_id_if_assigned() is null",
		"explain (costs off) select * from t where id = {k}", "select 1 where exists (select from t where id = {k})", "select repeat('x', 9000)", "select noise({n})",
		"(select 1) union (select {n}) order by 1", "select pg_sleep(0)", "select * from t where id = {k} limit 0", "copy (select * from t order by id) to stdout", "copy t to stdout",
		"copy (select 1, 'x') to stdout (format binary)", "copy (select {n}) to stdout (format csv, header)", "select lo_get({i} + 4000)", "select mood 'ok'",
	}},
	{18, []string{ // writes
		"insert into t values ({i}, 'x')", "insert into t values ({i}, 'x') on conflict do nothing", "insert into t values ({i}, 'é') returning *", "update t set v = 'u' where id = {k}",
		"update t set v = v || '!' where id = {k} returning v", "delete from t where id = {i}", "with x as (insert into t values ({i}, 'cte') returning id) select * from x",
		"merge into t using (select {k} as k) m on t.id = m.k when matched then update set v = 'm'", "insert into log (v) values ('l') returning id", "delete from log where id = {n}",
		"insert into trg values ({i})", "update trg set v = 'u'", "insert into trg values (13)", "insert into d values ({i}, {k})", "insert into d values ({i}, 99)", "select wr({i})", "select * from w",
		"select nextval('s')", "select setval('s', {i})", "select currval('s')", "select lastval()", "select '{i}'::wd", "select {n}::wd", "select ('(1,2)'::pair)::int", "select many({n})", "truncate d", "truncate t, d",
		"select * from t where id = {k} for update", "select * from t order by id for share", "explain (analyze, buffers off, costs off, timing off, summary off) insert into t values ({i}, 'e')",
		"insert into wide (a, c) values ({i}, {n}.5)", "insert into wide select * from wide", "select lo_create({i} + 4000)", "select lo_unlink({i} + 4000)", "select lo_put({i} + 4000, 0, 'abc')", "select lo_from_bytea({i} + 4000, 'x')",
	}},
	{9, []string{ // errors
		"select 1/0", "selec 1", "select nothing", "select * from missing", "insert into t values (1, 'dup')", "select 'x'::int", "select boom()", "select 1 from", "select 'open", "select \"open", "select $$open",
		"select 1 /* open", "insert into t values ('bad', 1)", "select é from t", "/* é */ select 'ü', nothing", "insert into nope values (1)", "select (1", "select 1)", "select * from t, (select nothing) x", "drop table nope", "select 1::nope", "select nope(1)",
		"update t set nope = 1", "select $1", "select $0", "insert into t (id) values (null)", "copy nope to stdout", "select boom() from t", "select 1 order by 2", "call nope()", "call boom()", "select twice(1)", "do $$begin perform boom(); end$$", "select E'\\xff'", "select '\xff'", "\xff", "select U&'\\zzzz'",
	}},
	{14, []string{ // transactions
		"begin", "begin", "begin isolation level repeatable read", "begin isolation level serializable, read only, deferrable", "start transaction", "start transaction read only", "begin read write", "commit", "commit", "commit", "end", "rollback", "rollback", "abort", "commit and chain", "rollback and chain",
		"commit and no chain", "savepoint {v}", "savepoint {v}", "release {v}", "release savepoint {v}", "rollback to {v}", "rollback to savepoint {v}", "set transaction isolation level repeatable read", "set transaction read only", "set transaction read write", "set constraints all immediate", "set constraints all deferred",
		"lock table t", "lock table t in share mode nowait", "set transaction snapshot '1-1-1'", "begin; begin", "select pg_export_snapshot() is null",
	}},
	{9, []string{ // the session
		"set work_mem = '5MB'", "reset work_mem", "show work_mem", "set local work_mem = '6MB'", "set application_name = 'a{n}'", "show application_name", "reset application_name", "reset all", "set search_path = public, pg_catalog", "set search_path = ''", "set search_path = nope, public", "set search_path = evil, public, pg_catalog", "reset search_path", "show search_path", "set role app",
		"reset role", "set role nope", "set session authorization default", "set datestyle = 'German'", "set timezone = 'Asia/Tokyo'", "set local timezone = 'UTC'", "show timezone", "set default_transaction_read_only = on", "reset default_transaction_read_only", "set default_transaction_isolation = 'serializable'", "reset default_transaction_isolation",
		"show transaction_isolation", "show transaction_read_only", "set transaction_read_only = on", "set transaction_read_only = off", "reset transaction_read_only", "set nothing = 1", "set a.b = 'c'", "show a.b", "set lock_timeout = '10s'", "set bytea_output = 'escape'", "set intervalstyle = 'iso_8601'", "set client_min_messages = 'error'", "set client_min_messages = 'debug1'", "reset client_min_messages",
		"select set_config('application_name', 'x{n}', false)", "select set_config('search_path', 'evil', true)", "set session characteristics as transaction isolation level repeatable read", "set session characteristics as transaction read write", "set plan_cache_mode = 'force_generic_plan'", "set names 'UTF8'", "set xmloption = document", "set row_security = off", "set extra_float_digits = 0",
	}},
	{3, []string{ // interpretation of texts
		"set standard_conforming_strings = off", "set standard_conforming_strings = on", "select 'a\\'", "select 'a\\'; select 2 --'", "set client_encoding = 'LATIN1'", "set client_encoding = 'SJIS'", "set client_encoding = 'UTF8'", "reset client_encoding", "set client_encoding = 'nope'", "select 'é\\'", "set backslash_quote = off", "set escape_string_warning = off", "select '\x83\\'", "insert into t values ({i}, '\x83\\'); --')",
	}},
	{6, []string{ // prepared statements
		"prepare {s} as select {n} as n", "prepare {s}(int) as insert into t values ($1, 'p')", "prepare {s} as update t set v = 'p' where id = {k}", "prepare {s} as select nothing", "execute {s}", "execute {s}({i})", "execute {s}", "execute {s}({i})", "explain (costs off) execute {s}", "create table {x} as execute {s}",
		"deallocate {s}", "deallocate {s}", "deallocate prepare all", "deallocate all", "discard all", "discard plans", "discard temp", "discard sequences", "do $$begin execute 'deallocate all'; end$$", "select name, statement from pg_prepared_statements where name in ('s1', 's2', 's3') order by 1", "select current_query()",
	}},
	{6, []string{ // cursors
		"declare {c} cursor for select generate_series(1, 9)", "declare {c} cursor for select * from t order by id", "declare {c} scroll cursor with hold for select generate_series(1, 5)", "declare {c} cursor with hold for select many(3)", "declare {c} binary cursor for select 1", "fetch {n} from {c}", "fetch all from {c}", "fetch backward 1 from {c}", "fetch {c}", "move {n} from {c}", "close {c}", "close all", "select name, statement from pg_cursors where name <> '' order by 1",
		"declare {c} cursor for select many(4)", "update t set v = 'cur' where current of {c}", "declare {c} cursor for select * from t where id = {k} for update",
	}},
	{5, []string{ // statements that must run alone, or that commit inside
		"vacuum t", "vacuum (analyze) t", "analyze t", "cluster t using t_pkey", "reindex table t", "reindex table concurrently t", "create index concurrently ti on t (v)", "drop index concurrently if exists ti", "create database nope", "alter system set work_mem = '1MB'", "drop database nope", "create unique index concurrently tj on log (v)",
		"call twice({i})", "call twice({i})", "call undone({i})", "call plain({i}, {n})", "do $$begin insert into t values ({i}, 'x'); commit; insert into t values ({i}, 'y'); end$$", "do $$begin raise notice 'hello'; raise warning 'you'; end$$", "do $$begin perform wr({i}); exception when others then raise notice 'caught'; end$$",
		"do $$begin commit; perform boom(); end$$", "do $$begin perform noise({n}); rollback; end$$", "call twice({i}); select 1", "vacuum t; select 1", "checkpoint",
	}},
	{5, []string{ // definitions
		"create table {x} (a int, b text)", "create table {x} as select * from t order by id", "drop table {x}", "drop table if exists {x}", "insert into {x} values (1, 'a')", "select * from {x} order by 1", "alter table {x} add column z int default {n}", "alter table t add column z{n} int", "alter table t drop column if exists z{n}", "create index on t (v)", "select * into {x} from t", "create temp table tt (a int)", "create temp table tt (a int) on commit drop", "insert into tt values ({n})",
		"select * from tt order by 1", "create view vv as select {n} as n", "drop view vv", "refresh materialized view mv", "refresh materialized view concurrently mv", "comment on table t is 'c{n}'", "create or replace function f() returns int language sql as 'select {n}'", "select f()", "create table {x} (a int); insert into {x} values ({n}); drop table {x}",
		"grant select on t to public", "create sequence if not exists s{n}", "alter table t rename to t{n}", "drop table t cascade", "create rule r as on insert to {x} do also notify ch", "create schema sc create table sct (a int)", "truncate {x}",
	}},
	{3, []string{ // notifications
		"listen ch", "listen ch", "unlisten ch", "unlisten *", "notify ch", "notify ch, 'p{i}'", "notify ch, 'p{i}'", "select pg_notify('ch', 'f{n}')", "select pg_notify('', 'x')", "select pg_listening_channels()",
	}},
	{2, []string{ // texts that a relayed session waits with, and looks at
		"select 'fencepost', {i}", "insert into t values ({i}, 'fencepost')", "select current_setting('fencepost.nothing', true)", "select 'prepare transaction'", "prepare {s} as select 'transaction'", "update t set v = 'Fencepost' where id = {k}",
		"select 1; insert into t values ({i}, 'fencepost')", "begin; insert into t values ({i}, 'fencepost'); commit", "select fencepost", "declare {c} cursor for select 'fencepost' from generate_series(1, 9)", "do $$begin perform 'fencepost'; commit; end$$", "copy (select 'fencepost') to stdout",
	}},
	{3, []string{ // nothing, or almost nothing
		"", ";", " ;; ", "-- nothing", "/* /* */ */", "\n\t", "/*", "--\n;", ";select 1", "select 1;", "\v", "begin;", ";commit;", "select 1;;", "\x00",
	}},
}

// withParameters are statements for the extended protocol, each with matching values
// for its parameters.
var withParameters = []struct {
	sql    string
	values []string
}{
	{"insert into t values ($1, $2)", []string{"{i}", "par"}},
	{"select * from t where id = $1", []string{"{k}"}},
	{"update t set v = $2 where id = $1 returning *", []string{"{k}", "é"}},
	{"select $1::int, $2::text", []string{"{i}", "x"}},
	{"select $1::int + 1", []string{"nan"}},
	{"delete from t where id = $1", []string{"{i}"}},
	{"select wr($1)", []string{"{i}"}},
	{"call twice($1)", []string{"{i}"}},
	{"call plain($1, $2)", []string{"{i}", "{n}"}},
	{"insert into d values ($1, $2)", []string{"{i}", "77"}},
	{"select $1::wd", []string{"{n}"}},
	{"select generate_series(1, $1::int)", []string{"{n}"}},
	{"insert into wide values ($1, $2, $3, $4, to_timestamp(1e9), '{t}') returning a, b, c, d", []string{"{i}", "w", "1.25", "\\x00"}},
	{"select $1 || $2", []string{"a", "b"}},
	{"declare {c} cursor for select $1::int", []string{"{i}"}},
	{"select set_config('application_name', $1, false)", []string{"p{n}"}},
	{"select 1/$1::int", []string{"0"}},
	{"select many($1)", []string{"{n}"}},
	{"insert into t select x, 'g' from generate_series($1::int, $2::int) x", []string{"30", "36"}},
}

var weights = func() (sum int) {
	for _, f := range families {
		sum += f.weight
	}
	return sum
}()

// phrase picks a random statement.
func phrase(r *rand.Rand) string {
	n := r.IntN(weights)
	for _, f := range families {
		if n -= f.weight; n < 0 {
			return placed(r, f.phrases[r.IntN(len(f.phrases))])
		}
	}
	panic("unreachable")
}

// placed substitutes numbers and names in a phrase.
func placed(r *rand.Rand, s string) string {
	var b strings.Builder
	for {
		at := strings.IndexByte(s, '{')
		if at < 0 {
			break
		}
		b.WriteString(s[:at])
		if at+2 < len(s) && s[at+2] == '}' {
			b.WriteString(name(r, s[at+1]))
			s = s[at+3:]
		} else {
			b.WriteByte('{')
			s = s[at+1:]
		}
	}
	b.WriteString(s)
	return b.String()
}

func name(r *rand.Rand, kind byte) string {
	switch kind {
	case 'i':
		return strconv.Itoa(1 + r.IntN(40))
	case 'k':
		return strconv.Itoa(1 + r.IntN(4))
	case 'n':
		return strconv.Itoa(1 + r.IntN(5))
	case 's':
		return "s" + strconv.Itoa(1+r.IntN(3))
	case 'c':
		return "c" + strconv.Itoa(1+r.IntN(2))
	case 'v':
		return string(rune('a' + r.IntN(2)))
	case 'x':
		return "x" + strconv.Itoa(1+r.IntN(2))
	default:
		return "{" + string(kind) + "}"
	}
}

// text returns the random text of a Query: one statement or several.
func text(r *rand.Rand) string {
	if r.IntN(3) > 0 {
		return dress(r, phrase(r))
	}
	var b strings.Builder
	for i := range 2 + r.IntN(4) {
		if i > 0 {
			b.WriteString([]string{";", "; ", ";\n", "; -- x;\n", ";;"}[r.IntN(5)])
		}
		b.WriteString(phrase(r))
	}
	return dress(r, b.String())
}

// dress changes a text in ways that mostly do not matter.
func dress(r *rand.Rand, s string) string {
	switch r.IntN(30) {
	case 0:
		return strings.ToUpper(s)
	case 1:
		return "/* c */ " + s
	case 2:
		return s + ";"
	case 3:
		return "\n  " + s + " -- end"
	case 4:
		return s[:r.IntN(len(s)+1)]
	case 5:
		return "/* é */" + s
	case 6:
		return s + strings.Repeat(" ", 1+r.IntN(20000))
	case 7:
		return s + "; /* " + strings.Repeat("x", r.IntN(70000)) + " */ select 2"
	default:
		return s
	}
}
