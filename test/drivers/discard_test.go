package drivers

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestSafetyDriversSeeThatNothingWasChanged: where stale writes are discarded, psycopg sees counts
// of 0, and SQLAlchemy's optimistic locking fails.
func TestSafetyDriversSeeThatNothingWasChanged(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "fencepost.yml")
	if err := os.WriteFile(config, []byte("resources:\n  "+resource+":\n    on_stale: discard\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	onEachServer(t, func(t *testing.T, pg *pgtest.Server, _ string) {
		proxy := process.Serve(t, "FENCEPOST_CONFIG="+config, "FENCEPOST_LISTEN=127.0.0.1:0", "FENCEPOST_ADMIN=127.0.0.1:0",
			"FENCEPOST_UPSTREAM_ADDRESS="+pg.Addr(), "FENCEPOST_CONTROL_USER="+pgtest.Control, "FENCEPOST_LEASE_GRACE=200ms").Address
		h := newCluster(t, pg, proxy)
		d := driver{"psycopg and SQLAlchemy", func(testing.TB) (args, env []string) {
			return python("discard.py")
		}}
		stale := d.start(t, "discard", h.at(t, proxy, "stale-1", "fencepost.worker_timeout=300ms"))
		stale.awaitReady(t)
		next := h.join(t, "next-1", map[string]string{"fencepost.campaign": "wait"})
		if _, err := next.Exec(context.Background(), "UPDATE account SET balance = 102 WHERE id = 1"); err != nil {
			t.Fatalf("the next leader's write: %v", err)
		}
		if err := stale.answer("go on"); err != nil {
			t.Fatalf("let it go on: %v\n%s", err, stale.Log())
		}
		d.only(t, stale.lines(t), "discard", map[string]any{
			"update": 0, "role": "superseded", "warnings": []string{"ZF001"},
			"insert": 0, "returned": []any{}, "read": 100, "many": 0, "transaction": []string{"ZF001"},
			"pipeline": []int{0, 0, 0}, "truncate": "ZF001", "open": true, "optimistic": "StaleDataError",
		})
		if sum := h.ask(t, "SELECT sum(balance) || ' ' || (SELECT count(*) FROM event) FROM account"); sum != "10002 0" {
			t.Errorf("the accounts and events are %s, want 10002 0: a stale write was executed", sum)
		}
	})
}
