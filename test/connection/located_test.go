package connection

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestABackendThatDoesNotSayWhereItIs is refused: it may be at another server than the control connection, or that of
// a pooler.
func TestABackendThatDoesNotSayWhereItIs(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	s.Exec("revoke execute on function pg_postmaster_start_time() from public; grant execute on function pg_postmaster_start_time() to fencepost; create table written (n int); grant all on written to app")
	reader := []string{"user", pgtest.App, "database", s.DB}
	for _, params := range [][]string{reader, append(reader, "fencepost.resource", "r", "fencepost.worker", "w")} {
		fixture.MustEnd(t, wiretest.Dial(t, s.Addr), "ZF004", wiretest.Startup(params...))
	}
	s.Exec("grant execute on function pg_postmaster_start_time() to public")
	fixture.MustPass(t, s.Leader("another"), wiretest.Query("do $$begin insert into written values (3); end$$"))
}
