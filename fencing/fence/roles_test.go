package fence_test

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestASuperuserIsNoWorker(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	for role, want := range map[string]string{pgtest.Superuser: fencing.StateNoFence, pgtest.App: ""} {
		if err := h.Fence.CheckRole(h.Ctx(), role, h.Server.Connect(t, role, h.DB).PgConn().PID()); fencetest.StateOf(err) != want {
			t.Errorf("a backend of role %s: %v; want %q", role, err, want)
		}
	}
}
