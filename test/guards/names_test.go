package guards

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestSafetyAGuardedTableHasOneResource: who leads under another spelling of the resource's name is no leader to the guard,
// and nothing but the guard stops him.
func TestSafetyAGuardedTableHasOneResource(t *testing.T) {
	t.Parallel()
	c := fixture.NewCluster(t, pgtest.Shared(t))
	one := leader(c)
	add(c, "public.t")
	c.GrantOn("R", "w")
	other := c.Join("w", "fencepost.resource", "R")
	if !fencing.Checking {
		c.Exec(toothless)
	}
	for _, simple := range []bool{true, false} {
		if err := exec(t.Context(), other, insert, simple); pgtest.StateOf(err) != fencing.StateNotLeader || !strings.Contains(err.Error(), `is guarded by resource "r"`) {
			t.Errorf("the leader of R: %v, want ZF002", err)
		}
		if err := exec(t.Context(), other, "insert into c (id) values (2) on conflict do nothing", simple); err != nil {
			t.Errorf("the leader of R, in a table without a guard: %v", err)
		}
		if err := exec(t.Context(), one, insert, simple); err != nil {
			t.Errorf("the leader of r: %v", err)
		}
	}
	if n := len(c.Audited(t, c.DB)); n != 0 {
		t.Errorf("%d refusals are in the audit log", n)
	}
}
