package protocol

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/cmd/fencepost/guard"
	"github.com/fencepost/fencepost/internal/fixture"
)

// guarded are scripts that write a guarded table.
func guarded() []script {
	const insert = "insert into t values (100, 'x')"
	add := func(id string) []byte { return run("insert into t values ($1, 'x')", id) }
	return []script{
		newScript("guarded, simple", at("Z", q(insert)), at("Z", q("insert into t values (101, 'x'); update t set v = 'y' where id = 101")), at("Z", q("select wr(102)")),
			at("Z", q(insert)), at("Z", q("delete from t where id = 100"))),
		newScript("guarded, extended", at("Z", add("100"), sync_()), at("Z", add("101"), add("102"), sync_()), at("Z", add("100"), sync_()),
			at("Z", parse("s", "update t set v = 'y'"), sync_()), at("Z", bind("", "s"), exec("", 0), sync_())),
		newScript("guarded, in a block", at("Z", q("begin")), at("Z", q(insert)), at("Z", q("savepoint a")), at("Z", add("101"), sync_()), at("Z", q("rollback to a")),
			at("Z", q("insert into t values (102, 'x')")), at("Z", q("commit"))),
		newScript("guarded, transactions of a text", at("Z", q("begin")), at("Z", q("rollback; commit; begin; begin; select row(1, 'a'); insert into t values (100, 'x') returning *")), at("Z", q("abort")),
			at("Z", q("begin; insert into t values (101, 'x'); commit; insert into t values (102, 'x'); begin; select 1; insert into t values (103, 'x'); rollback"))),
		newScript("guarded, REPEATABLE READ", at("Z", q("begin isolation level repeatable read")), at("Z", q(insert)), at("Z", q("commit"))),
		newScript("guarded, CALL", at("Z", q("call twice(100)")), at("Z", run("call twice(102)"), sync_()), at("Z", parse("c", "call twice(104)"), sync_()), at("Z", bind("", "c"), exec("", 0), sync_())),
		newScript("guarded, CALL in a block", at("Z", q("begin")), at("Z", q("call twice(100)")), at("Z", q("rollback"))),
		newScript("guarded, DO", at("Z", q("do $$begin insert into t values (100, 'x'); end$$")), at("ZZ", run("do $$begin insert into t values (101, 'x'); commit; insert into t values (102, 'x'); end$$"), sync_(),
			run("do $$begin insert into t values (103, 'x'); end$$"), sync_())),
		newScript("guarded, an Execute without a Sync", at("Z", run("set work_mem = '1MB'"), q("set work_mem = '2MB'")), at("Z", q("select name, statement from pg_cursors where name <> ''")),
			at("Z", q(insert)), at("Z", sync_())),
		newScript("guarded, a block that fails unseen", at("ZZZ", q("begin"), q("declare c cursor with hold for select 1"), q("declare c cursor for select 1")), at("Z", q("rollback"))),
		newScript("guarded, a call in a block that fails unseen", at("ZZZ", parse("", "show application_name"), q("begin"), q("e"), fnCall(1610)), at("Z", q("rollback"))),
		newScript("guarded, settings", at("Z", q("begin; "+insert+"; reset all; insert into t values (101, 'x'); commit")), at("Z", q("discard all")), at("Z", q("call twice(102)"))),
	}
}

// TestProtocolGuardedTables: the leader of a resource with a guard writes the guarded table as
// on Postgres.
func TestProtocolGuardedTables(t *testing.T) {
	t.Parallel()
	scripts := guarded()
	for i := range scripts {
		scripts[i].before = guardT
	}
	compareScripts(t, scripts...)
}

// guardT guards table t by the resource r, and lets the leader know.
func guardT(t *testing.T, p *fixture.Proxy, admin *pgx.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := guard.Add(ctx, admin, guard.Options{Resource: "r", Table: "public.t"}); err != nil {
		t.Fatal(err)
	}
	if c := p.Candidacy(admin.Config().Database, "r", "w"); c.Status().Holder.Guards == 0 {
		c.Grant()
	}
}
