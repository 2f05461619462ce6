package guards

import (
	"testing"

	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAGuardOfAnotherResource: a leader's session claims an epoch of a second resource, as a
// job does, which is over. Only that claim is refused, and what it writes to the table of that resource.
func TestAGuardOfAnotherResource(t *testing.T) {
	t.Parallel()
	c, conn := newGuarded(t, pgtest.Shared(t))
	mayClaim(c)
	c.Exec("create table beside (v text); grant all on beside to app")
	for _, worker := range []string{"x", "y"} {
		c.GrantOn("beside", worker)
	}
	c.Guard(guard.Options{Resource: "beside", Table: "public.beside"})
	audited := len(c.Audit.All())
	for sql, want := range map[string]string{"select fencepost.claim('beside', 1)": "ZF001", "insert into beside values ('x')": "ZF002"} {
		if _, err := conn.Exec(t.Context(), sql); pgtest.StateOf(err) != want {
			t.Errorf("%s: %v, want %s", sql, err, want)
		}
		if _, err := conn.Exec(t.Context(), insert); err != nil {
			t.Fatalf("the next write: %v", err)
		}
	}
	if lines := c.Audit.All()[audited:]; len(lines) > 0 {
		t.Errorf("audited as refused: %+v", lines)
	}
}
