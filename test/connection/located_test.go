package connection

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestABackendThatDoesNotSayWhereItIs: what needs the registry is refused, because the backend may
// be at another server than the control connection. Everything else is checked in its own transaction.
func TestABackendThatDoesNotSayWhereItIs(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	s.Exec("revoke execute on function pg_postmaster_start_time() from public; grant execute on function pg_postmaster_start_time() to fencepost; create table written (n int); grant all on written to app")
	leader := s.Leader("w")
	fixture.MustFail(t, leader, "ZF004", wiretest.Query("do $$begin insert into written values (1); end$$"))
	fixture.MustFail(t, leader, "ZF004", wiretest.Query("insert into written values (2)"))
	fixture.MustPass(t, leader, wiretest.Query("select * from written"))
	if n := s.Number("select count(*) from written"); n != 0 {
		t.Errorf("%d rows were written", n)
	}
	s.Exec("grant execute on function pg_postmaster_start_time() to public")
	fixture.MustPass(t, s.Leader("another"), wiretest.Query("do $$begin insert into written values (3); end$$"))
}
