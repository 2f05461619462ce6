package protocol

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/cmd/fencepost/guard"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// guarded are scripts that write a guarded table.
func guarded() []script {
	const insert = "insert into t values (100, 'x')"
	add := func(id string) []byte { return Run("insert into t values ($1, 'x')", id) }
	return []script{
		newScript("guarded, simple", at("Z", Q(insert)), at("Z", Q("insert into t values (101, 'x'); update t set v = 'y' where id = 101")), at("Z", Q("select wr(102)")),
			at("Z", Q(insert)), at("Z", Q("delete from t where id = 100"))),
		newScript("guarded, extended", at("Z", add("100"), Sync()), at("Z", add("101"), add("102"), Sync()), at("Z", add("100"), Sync()),
			at("Z", Parse("s", "update t set v = 'y'"), Sync()), at("Z", Bind("", "s"), Exec("", 0), Sync())),
		newScript("guarded, in a block", at("Z", Q("begin")), at("Z", Q(insert)), at("Z", Q("savepoint a")), at("Z", add("101"), Sync()), at("Z", Q("rollback to a")),
			at("Z", Q("insert into t values (102, 'x')")), at("Z", Q("commit"))),
		newScript("guarded, transactions of a text", at("Z", Q("begin")), at("Z", Q("rollback; commit; begin; begin; select row(1, 'a'); insert into t values (100, 'x') returning *")), at("Z", Q("abort")),
			at("Z", Q("begin; insert into t values (101, 'x'); commit; insert into t values (102, 'x'); begin; select 1; insert into t values (103, 'x'); rollback"))),
		newScript("guarded, REPEATABLE READ", at("Z", Q("begin isolation level repeatable read")), at("Z", Q(insert)), at("Z", Q("commit"))),
		newScript("guarded, CALL", at("Z", Q("call twice(100)")), at("Z", Run("call twice(102)"), Sync()), at("Z", Parse("c", "call twice(104)"), Sync()), at("Z", Bind("", "c"), Exec("", 0), Sync())),
		newScript("guarded, CALL in a block", at("Z", Q("begin")), at("Z", Q("call twice(100)")), at("Z", Q("rollback"))),
		newScript("guarded, DO", at("Z", Q("do $$begin insert into t values (100, 'x'); end$$")), at("ZZ", Run("do $$begin insert into t values (101, 'x'); commit; insert into t values (102, 'x'); end$$"), Sync(),
			Run("do $$begin insert into t values (103, 'x'); end$$"), Sync())),
		newScript("guarded, an Execute without a Sync", at("Z", Run("set work_mem = '1MB'"), Q("set work_mem = '2MB'")), at("Z", Q("select name, statement from pg_cursors where name <> ''")),
			at("Z", Q(insert)), at("Z", Sync())),
		newScript("guarded, a block that fails unseen", at("ZZZ", Q("begin"), Q("declare c cursor with hold for select 1"), Q("declare c cursor for select 1")), at("Z", Q("rollback"))),
		newScript("guarded, a call in a block that fails unseen", at("ZZZ", Parse("", "show application_name"), Q("begin"), Q("e"), fnCall(1610)), at("Z", Q("rollback"))),
		newScript("guarded, prepared by SQL, bound by messages", at("ZZZ", Q("prepare s as insert into t values (100, 'x')"), Bind("", "s"), Exec("", 0), Sync(), Q("select count(*) from t"))),
		newScript("guarded, prepared by SQL, bound in an own block", at("Z", Q("prepare s as insert into t values (100, 'x')")), at("Z", Q("begin")), at("Z", Bind("", "s"), Exec("", 0), Sync()), at("Z", Q("commit")), at("Z", Q("select count(*) from t"))),
		newScript("guarded, prepared by SQL, bound in a block, at once", at("ZZZZZ", Q("prepare s as insert into t values (100, 'x')"), Q("begin"), Bind("", "s"), Exec("", 0), Sync(), Q("commit"), Q("select count(*) from t"))),
		newScript("guarded, prepared and begun by SQL in one text, bound", at("ZZZ", Q("begin; prepare s as insert into t values (100, 'x')"), Bind("", "s"), Exec("", 0), Sync(), Q("commit")), at("Z", Q("select count(*) from t"))),
		newScript("guarded, a DO first, at once", at("ZZ", Q("show work_mem"), Run("do $$begin insert into t values (101, 'x'); end$$"), Sync())),
		newScript("guarded, a DO first, behind a Parse, at once", at("ZZ", Q("show work_mem"), Parse("x", "select 1"), Run("do $$begin insert into t values (101, 'x'); end$$"), Sync())),
		newScript("guarded, a DO in a block, behind a Parse, at once", at("ZZZ", Q("begin"), Parse("x", "select 1"), Run("do $$begin insert into t values (101, 'x'); end$$"), Sync(), Q("commit"))),
		newScript("guarded, a DO behind a Close, at once", at("ZZ", Q("show work_mem"), wiretest.Close('S', "x"), Run("do $$begin insert into t values (101, 'x'); end$$"), Sync())),
		newScript("guarded, a DO behind a Sync and a Close", at("ZZ", Sync(), wiretest.Close('S', "x"), Run("do $$begin insert into t values (101, 'x'); end$$"), Sync())),
		newScript("guarded, a call of a function first, at once", at("ZZ", Q("show work_mem"), Parse("x", "select 1"), fnCall(1610), Sync())),
		newScript("guarded, a DO behind settings and a Close", at("ZZ", Q("reset all"), wiretest.Close('S', "x"), Run("do $$begin insert into t values (101, 'x'); end$$"), Sync())),
		newScript("guarded, a DO behind settings by messages and a Close", at("ZZ", Run("reset all"), Sync(), wiretest.Close('S', "x"), Run("do $$begin insert into t values (101, 'x'); end$$"), Sync())),
		newScript("guarded, a DO in a block behind settings and a Close", at("Z", Q("begin")), at("Z", Q("reset all")), at("Z", wiretest.Close('S', "x"), Run("do $$begin insert into t values (101, 'x'); end$$"), Sync()), at("Z", Q("commit"))),
		newScript("guarded, a DO in a block behind settings and a Close, at once", at("ZZZZ", Q("begin"), Q("reset all"), wiretest.Close('S', "x"), Run("do $$begin insert into t values (101, 'x'); end$$"), Sync(), Q("commit"))),
		newScript("guarded, a DO behind settings that are discarded and a Close", at("ZZ", Q("discard all"), wiretest.Close('S', "x"), Run("do $$begin insert into t values (101, 'x'); end$$"), Sync())),
		newScript("guarded, prepared by SQL behind settings, executed, and bound", at("Z", Q("show work_mem")), at("ZZZZ", Q("discard all"), Q("prepare s2 as insert into t values (100, 'x')"), Q("execute s2"), Bind("", "s2"), Exec("", 0), Sync())),
		newScript("guarded, a DO behind settings and a query", at("ZZZ", Q("reset all"), Q("prepare q as insert into t values (100, 'x')"), Run("do $$begin insert into t values (101, 'x'); end$$"), Sync())),
		newScript("guarded, a DO behind settings that are discarded by messages and a query", at("ZZZ", Run("discard all"), Sync(), Q("prepare q as insert into t values (100, 'x')"), Run("do $$begin insert into t values (101, 'x'); end$$"), Sync())),
		newScript("guarded, settings", at("Z", Q("begin; "+insert+"; reset all; insert into t values (101, 'x'); commit")), at("Z", Q("discard all")), at("Z", Q("call twice(102)"))),
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
