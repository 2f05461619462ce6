package system

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestAWorkerAsksForItsRole covers the ways in which a driver may query it.
func TestAWorkerAsksForItsRole(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p := h.proxy()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			name := "role " + mode.String()
			leader := h.join(p, "leader", "resource", name)
			follower := h.join(p, "follower", "resource", name)
			for worker, want := range map[*client][]string{
				leader:   {"leader", "1", "leader", name},
				follower: {"follower", "0", "follower", name},
			} {
				for range 2 { // the first time, and again
					var got [4]string
					for i, what := range []string{"role", "epoch", "worker", "resource"} {
						if err := worker.QueryRow(context.Background(), "SHOW fencepost."+what, mode).Scan(&got[i]); err != nil {
							t.Fatalf("SHOW fencepost.%s: %v", what, err)
						}
						if got[i] != want[i] {
							t.Errorf("SHOW fencepost.%s of %s: %q, want %q", what, want[2], got[i], want[i])
						}
					}
					worker.must("RESET ALL")
				}
			}
		})
	}
}
