package connection

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestADeferrableSessionConnects: the queries of a session whose transactions are read-only,
// SERIALIZABLE and deferrable wait until no other SERIALIZABLE transaction is open. To connect
// waits for none, with a fence and without, as on Postgres.
func TestADeferrableSessionConnects(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.SharedMajor(t, 18), nil)
	db := p.PG.Database(t)
	fixture.LeaderConn(t, p, db).Close()
	admin := p.PG.Connect(t, pgtest.Superuser, db)
	for _, sql := range []string{"create table t (id int)", "grant all on t to public", "begin isolation level serializable", "insert into t select count(*) from t"} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	const waiting = "-c default_transaction_isolation=serializable -c default_transaction_read_only=on -c default_transaction_deferrable=on"
	unfenced := []string{"user", pgtest.App, "database", db, "options", waiting}
	fenced := append(unfenced[:len(unfenced):len(unfenced)], "fencepost.resource", "r", "fencepost.worker", "w")
	for name, params := range map[string][]string{"fenced": fenced, "unfenced": unfenced} {
		c, _ := wiretest.Connect(t, p.Addr, params...)
		if got := fixture.FirstValue(t, c.Exec("show transaction_deferrable")); got != "on" {
			t.Fatalf("%s: the session is not deferrable: %s", name, got)
		}
		if name == "fenced" {
			fixture.MustExec(t, c, "begin read write")
			fixture.MustExec(t, c, "insert into t values (7)")
			fixture.MustExec(t, c, "rollback")
		}
		c.Send(Q("select count(*) from t"))
		watch := p.PG.Connect(t, pgtest.Superuser, db)
		fixture.AwaitBackend(t, watch, "wait_event = 'SafeSnapshot'")
		c.Close()
	}
	if _, err := admin.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
}
