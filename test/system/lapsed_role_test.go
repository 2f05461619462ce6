package system

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

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
