package system

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// TestSafetyZombieInsideAWriteTransaction checks that a worker that froze inside a
// transaction that has written delays its successor by no more than the grace, loses
// its backend, and is told why.
func TestSafetyZombieInsideAWriteTransaction(t *testing.T) {
	t.Parallel()
	const grace = 700 * time.Millisecond
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider, with("LEASE_GRACE="+grace.String()))
			if provider == "postgres" { // with the other, the table has no guard, as most have
				h.stamp("work")
			}
			one, two := h.proxy(), h.proxy()
			zombie := h.worker("zombie")
			zombie.must("connect", h.dsn(one, "zombie", "campaign", "wait", "worker_timeout", "300ms"))
			backend := zombie.must("simple", "BEGIN", "INSERT INTO work VALUES ('zombie')", "SELECT pg_backend_pid()").Values[0]
			zombie.Freeze(t)
			watch := startWatch(t)
			successor := h.join(two, "successor", "campaign", "wait")
			successor.must("INSERT INTO work VALUES ('successor')")

			freed := one.Await(t, "released", "worker", "zombie", "reason", "silence").At(t)
			delay := two.Await(t, "takeover", "worker", "successor").At(t).Sub(freed)
			t.Logf("takeover %s after the lease was free; the grace is %s", delay, grace)
			if watch.late(t, delay, grace) {
				t.Errorf("the zombie delayed the takeover by %s, the grace is %s", delay, grace)
			}
			if fencing.Checking && delay < grace {
				t.Errorf("the takeover came after %s: a transaction of the old epoch has the grace %s to end", delay, grace)
			}
			if n := ask[int](h, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1::int", backend); n != 0 {
				t.Error("the zombie's backend still exists")
			}
			zombie.tell(order{Do: "simple", Text: "COMMIT"})
			zombie.Thaw(t)
			f := zombie.answer().Failure
			if f == nil || f.Severity != "FATAL" || f.Code != fencing.StateSuperseded || !strings.Contains(f.Message, "superseded") ||
				!strings.Contains(f.Message, "successor") || !strings.Contains(f.Detail, `"current_epoch":2,`) {
				t.Errorf("the zombie got %v, detail %+v", f, f)
			}
			if got := h.works(); !slices.Equal(got, []string{"successor"}) {
				t.Errorf("the table contains %q, want only the successor's row", got)
			}
			h.audit()
		})
	}
}
