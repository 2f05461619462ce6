package system

import (
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestATakeoverFromAWorkerThatDoesNotReadItsErrors: while Postgres sends an error, it looks for no request to end, so the
// proxy of the worker has to close the connection. If that proxy is frozen, the takeover says what is in the way.
func TestATakeoverFromAWorkerThatDoesNotReadItsErrors(t *testing.T) {
	t.Parallel()
	for _, frozen := range []bool{false, true} {
		name := "its proxy is there"
		if frozen {
			name = "its proxy is frozen"
		}
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, "postgres", with("LEASE_TTL=2s", "LEASE_GRACE="+stalledGrace.String()))
			one, two := h.proxy(), h.proxy()
			s := &stalledCase{cluster: h, one: one, two: two, resource: "billing", timeout: stalledTimeout}
			s.leader = s.again("fencepost.campaign", "wait")
			s.query(s.leader, "INSERT INTO work VALUES ('stalled')")
			for range 4 { // longer than all buffers on the way, and the proxy reads an error as a whole
				s.leader.Send(wiretest.Query("SELECT repeat('x', 15000000)::int"))
			}
			since := ""
			process.Eventually(t, process.Patience, "the backend to be stuck in its write", func() bool {
				const stuck = "SELECT coalesce(max(concat(pid, ' ', query_start)), '') FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND datname = current_database() AND query_start < now() - interval '1 second'"
				since = ask[string](h, stuck)
				return since != ""
			})
			if frozen {
				one.Freeze(t)
				defer one.Thaw(t)
				joined := make(chan error, 1)
				go func() {
					_, err := h.tryJoin(process.Patience, two, "successor", "resource", "billing", "campaign", "wait")
					joined <- err
				}()
				process.Eventually(t, process.Patience, "the takeover to say what is in the way", func() bool {
					return strings.Contains(two.Log(), "sends something that its client (127.0.0.1 port ")
				})
				one.Kill(t)
				if err := <-joined; err != nil {
					t.Errorf("after its proxy has ended: %v", err)
				}
				return
			}
			if _, err := h.tryJoin(30*time.Second, two, "successor", "resource", "billing", "campaign", "wait"); err != nil {
				t.Errorf("the successor: %v; the backend was stuck since %s", err, since)
			}
		})
	}
}
