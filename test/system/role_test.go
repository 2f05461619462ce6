package system

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/fixture/process"
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

// TestRoleOfALapsedWorker: a worker whose write was refused because its lease is not
// confirmed queries its role, as the refusal's hint suggests.
func TestRoleOfALapsedWorker(t *testing.T) {
	t.Parallel()
	consul := consultest.Start(t)
	h := newCluster(t, "consul", with("LEASE_TTL=2s", "STARTUP_WAIT=300ms"), withConsul(consul))
	c := h.join(h.proxy(), "a", "campaign", "wait")
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	write := func() error {
		var s string
		return c.QueryRow(ctx, "INSERT INTO work VALUES ($1) RETURNING what", "a").Scan(&s)
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	consul.Stop()
	process.Eventually(t, process.Patience, "the lease to lapse", func() bool { return stateOf(write()) == "ZF002" })
	var role string
	if err := c.QueryRow(ctx, "SHOW fencepost.role", pgx.QueryExecModeExec).Scan(&role); err != nil {
		t.Errorf("%v", err)
	}
}
