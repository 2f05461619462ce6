package drivers

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestSafetyDriversSeeThatNothingWasChanged: where stale writes are discarded, psycopg sees counts
// of 0, and SQLAlchemy's optimistic locking fails. (Before PostgreSQL 16, nothing is discarded.)
func TestSafetyDriversSeeThatNothingWasChanged(t *testing.T) {
	t.Parallel()
	config := process.Config(t, "resources:\n  "+resource+":\n    on_stale: discard\n")
	pg := pgtest.SharedMajor(t, 18)
	h := newCluster(t, pg, serve(t, pg, config, "FENCEPOST_LEASE_GRACE=30s"))
	pg.DrainsPatiently(t, h.db)
	d := driver{"psycopg and SQLAlchemy", func(testing.TB) (args, env []string) {
		return python("discard.py")
	}}
	stale, _ := h.overtake(t, d, "discard")
	d.only(t, stale.goOn(t), "discard", map[string]any{
		"update": 0, "role": "superseded", "insert": 0, "returned": []any{}, "read": 100, "many": 0,
		"pipeline": []int{0, 0, 0}, "truncate": "ZF001", "open": true, "optimistic": "StaleDataError",
	})
	if sum := h.ask(t, "SELECT sum(balance) || ' ' || (SELECT count(*) FROM event) FROM account"); sum != "10002 0" {
		t.Errorf("the accounts and events are %s, want 10002 0: a stale write was executed", sum)
	}
}
