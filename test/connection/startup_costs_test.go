package connection

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestASuperuserInAnotherRoleIsRefused: the control role could not end its backend, whatever role the session has
// taken on, so that a grant could not end its transactions.
func TestASuperuserInAnotherRoleIsRefused(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	for _, options := range []string{"", "-c role=" + pgtest.App, "-c session_authorization=" + pgtest.App} {
		params := []string{"user", pgtest.Superuser, "database", s.DB, "fencepost.resource", "r", "fencepost.worker", "super"}
		if options != "" {
			params = append(params, "options", options)
		}
		conn := wiretest.Dial(t, s.Addr)
		conn.Send(wiretest.Startup(params...))
		var refused string
		for _, m := range conn.Rest() {
			if m.Type == 'E' {
				refused = m.Fields()['C'] + " " + m.Fields()['M']
			}
		}
		if !strings.HasPrefix(refused, "ZF004") || !strings.Contains(refused, "is a superuser") {
			t.Errorf("with options %q: refused by %q", options, refused)
		}
	}
}
