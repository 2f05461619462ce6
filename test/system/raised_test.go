package system

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

// TestAnIdleLeaderLearnsThatTheEpochsWereRaised: after a restore or a failover, while another
// worker waits at another proxy. The leader is never silent, so only its proxy can end its lease.
func TestAnIdleLeaderLearnsThatTheEpochsWereRaised(t *testing.T) {
	t.Parallel()
	forProviders(t, func(t *testing.T, h *cluster, one, two *process.Server) {
		a := h.join(one, "a", "campaign", "wait", "worker_timeout", "0")
		b := h.join(two, "b")
		if code, out := h.command("generation", "bump", "--restored", "--yes", "--database", h.db); code != 0 || !strings.Contains(out, "which nobody holds") {
			t.Fatalf("generation bump: code %d: %s", code, out)
		}
		one.Await(t, "superseded", "worker", "a") // although it is idle
		mustLead(t, b, "b")
		b.must("INSERT INTO work VALUES ('b')")
		h.awaitState("led", "b", one, two)
		wantFailure(t, "the former leader's write", a.exec("INSERT INTO work VALUES ('a')"), fencing.StateSuperseded)
		for _, p := range []*process.Server{one, two} {
			p.Await(t, "an operator gave an order", "kind", fencing.OrderRaise, "resource", resource, "worker", "a")
		}
	})
}
