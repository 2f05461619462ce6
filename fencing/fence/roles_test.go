package fence_test

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestARoleThatBecomesASuperuserIsRefused: that a role may be a worker's is remembered for a moment only.
func TestARoleThatBecomesASuperuserIsRefused(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	h := fencetest.New(t, server)
	pid := server.Connect(t, pgtest.App, h.DB).PgConn().PID()
	check := func() error { return h.Fence.CheckRole(h.Ctx(), pgtest.App, pid) }
	if err := check(); err != nil {
		t.Fatal(err)
	}
	server.Exec(t, pgtest.Superuser, "postgres", "ALTER ROLE "+pgtest.App+" SUPERUSER")
	fixture.Eventually(t, "the role is refused", func() bool { return fencetest.StateOf(check()) == fencing.StateNoFence })
}
