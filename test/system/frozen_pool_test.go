package system

import (
	"fmt"
	"slices"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

// TestSafetyFrozenPool freezes a leader that has a pool of idle connections, alone and together with its proxy. All of
// them are registered. The next leader does not wait for the grace: if their proxy is alive, it ends their backends,
// and if it is frozen, the grant does after 250 ms.
func TestSafetyFrozenPool(t *testing.T) {
	t.Parallel()
	const (
		conns = 50
		grace = 2 * process.Patience // the successor would not wait for as long
	)
	for _, c := range []struct {
		name     string
		both     bool
		settings []string
	}{
		{"alone", false, nil},
		{"with its proxy", true, []string{"LEASE_TTL=10s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, "postgres", with(append(c.settings, "LEASE_GRACE="+grace.String())...))
			one, two := h.proxy(), h.proxy()
			stale := h.worker("stale")
			dsn := h.dsn(one, "stale", "campaign", "wait", "worker_timeout", "1s")
			stale.must("connect", dsn)
			stale.must("simple", "INSERT INTO work VALUES ('before')")
			stale.tell(order{Do: "pool", Text: dsn, Count: conns})
			if r := stale.answer(); r.Failure != nil || len(r.Values) != conns {
				t.Fatalf("a pool of %d connections: %d connected, %v", conns, len(r.Values), r.Failure)
			}
			if n := ask[int](h, "SELECT count(*) FROM fencepost.running WHERE epoch = 1"); fencing.Checking && n != conns+1 {
				t.Fatalf("%d backends are registered, want %d", n, conns+1)
			}
			stale.Freeze(t)
			if c.both {
				one.Freeze(t)
			}
			successor := h.join(two, "successor", "campaign", "wait")
			successor.must("INSERT INTO work VALUES ('successor')")

			stale.tell(order{Do: "drain", Text: "INSERT INTO work VALUES ('stale')"})
			if c.both {
				one.Thaw(t)
			}
			stale.Thaw(t)
			for i, state := range stale.answer().Values {
				if state != fencing.StateSuperseded {
					t.Errorf("connection %d got %q, want ZF001", i, state)
					break
				}
			}
			if got := h.works(); !slices.Equal(got, []string{"before", "successor"}) {
				t.Errorf("the table contains %s, want no row of the frozen worker", fmt.Sprintf("%.200q", got))
			}
		})
	}
}
