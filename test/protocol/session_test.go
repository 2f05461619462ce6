package protocol

import (
	"strconv"
	"testing"

	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

func itoa(n int) string { return strconv.Itoa(n) }

// TestProtocolStatements: what Fencepost has set and prepared before its session leads does not show, and what resets the
// session resets it to what it would be without Fencepost.
func TestProtocolStatements(t *testing.T) {
	t.Parallel()
	ins := func(id int) []byte { return Q("insert into t values (" + itoa(id) + ", 'x')") }
	both2 := func(id int) []step {
		return []step{at("Z", ins(id)), at("Z", Run("insert into t values ($1, 'x')", itoa(id+1)), Sync()), at("Z", Q("begin; select 1; commit; insert into t values ("+itoa(id+2)+", 'x')"))}
	}
	after := func(name string, steps ...step) script { return newScript(name, append(steps, both2(100)...)...) }
	compareScripts(t,
		after("discard all", at("Z", Q("discard all"))),
		after("discard plans, temp and sequences", at("Z", Q("discard plans")), at("Z", Q("discard temp")), at("Z", Q("discard sequences"))),
		after("deallocate all", at("Z", Q("deallocate all"))),
		after("reset all", at("Z", Q("reset all"))),
		newScript("default read only", at("Z", Q("show default_transaction_read_only")), at("Z", Q("set default_transaction_read_only = on")), at("Z", ins(10)), at("Z", Q("reset default_transaction_read_only")), at("Z", ins(11))),
		after("set role", at("Z", Q("set role none")), at("Z", Q("set role app"))),
		after("session authorization", at("Z", Q("set session authorization app")), at("Z", Q("reset session authorization"))),
		newScript("statements seen", at("Z", Q("prepare mine as select 1")), at("Z", Parse("wire", "select 2"), Sync()), at("Z", Q("select name, statement, from_sql from pg_prepared_statements where name in ('mine', 'wire') order by 1"))),
		newScript("cursors seen", at("Z", Q("begin")), at("Z", Q("declare c cursor for select 1")), at("Z", Parse("", "select 1 union select 2"), Bind("wire", ""), Sync()), at("Z", Q("select name, statement, is_holdable, is_binary from pg_cursors order by 1")), at("Z", Run("select count(*) from pg_cursors"), Sync()), at("Z", Q("commit"))),
		newScript("cursors seen outside a block", at("Z", Q("declare c cursor with hold for select 1")), at("Z", Q("select name, statement from pg_cursors order by 1")), at("Z", Q("close all")), at("Z", Q("select name from pg_cursors; select 1")), at("Z", Q("begin; declare d cursor for select 2; select name, statement from pg_cursors where name = 'e'; commit"))),
		newScript("query texts seen", at("Z", Q("select current_query()")), at("Z", Run("select current_query()"), Sync()), at("Z", Q("select query from pg_stat_activity where pid = pg_backend_pid()")), at("Z", Q("select 1; select current_query()")), at("Z", Q("do $$begin raise notice '%', current_query(); end$$"))),
		newScript("application name", at("Z", Q("set application_name = 'mine'")), at("Z", Q("select application_name from pg_stat_activity where pid = pg_backend_pid()"))),
	)
}
