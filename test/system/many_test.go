package system

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestManyTakeoversAtOnce freezes a proxy that holds the leases of many resources, each
// of whose leaders has an open transaction. All takeovers begin when the leases expire,
// and each has to end such a transaction after the grace. The last one must not be
// delayed by their number.
func TestManyTakeoversAtOnce(t *testing.T) {
	t.Parallel()
	const resources = 40
	h := newCluster(t, "postgres", with("LEASE_TTL=10s", "LEASE_GRACE=1s")) // with such a long TTL, unaligned renewals would be noticed
	one, two := h.proxy(), h.proxy()
	at := make(chan time.Time, resources)
	for i := range resources {
		name := fmt.Sprint("many-", i)
		leader := h.join(one, "leader", "resource", name, "campaign", "wait")
		leader.must("BEGIN", "INSERT INTO work VALUES ('unfinished')")
		go func() {
			waiter, err := h.tryJoin(process.Patience, two, "waiter", "resource", name, "campaign", "wait")
			if err == nil {
				err = waiter.exec("INSERT INTO work VALUES ('taken')")
			}
			if err != nil {
				t.Errorf("resource %s: %v", name, err)
			}
			at <- time.Now()
		}()
	}
	process.Eventually(t, process.Patience, "all workers wait", func() bool {
		return ask[int](h, "SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND datname = $2", pgtest.App, h.db) == 2*resources
	})
	one.Freeze(t)
	frozen, watch := time.Now(), startWatch(t)
	first, last := <-at, time.Time{}
	for range resources - 1 {
		last = <-at
	}
	one.Thaw(t)
	t.Logf("the first takeover came %v after the proxy froze, the last %v after the first", first.Sub(frozen), last.Sub(first))
	if spread := last.Sub(first); watch.late(t, spread, 2*time.Second-slack) {
		t.Errorf("the last takeover came %v after the first", spread)
	}
	if n := ask[int](h, "SELECT count(*) FROM work WHERE what = 'taken'"); n != resources {
		t.Errorf("%d workers wrote", n)
	}
}
