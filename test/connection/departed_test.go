package connection

import (
	"fmt"
	"net"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestADeadClientWaitsForNoAnswer: the client dies while a message of its own waits for the answer
// to an earlier one, on which the server works for long. Its candidacy does not wait for that.
func TestADeadClientWaitsForNoAnswer(t *testing.T) {
	t.Parallel()
	for _, reset := range []bool{false, true} {
		t.Run(fmt.Sprintf("reset=%v", reset), func(t *testing.T) {
			t.Parallel()
			pg := pgtest.Shared(t)
			p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
			admin := pg.Connect(t, pgtest.Superuser, db)
			exec := func(sql string) {
				t.Helper()
				if _, err := admin.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			exec("select pg_advisory_lock(1)")
			conn := fixture.LeaderConn(t, p, db)
			conn.Send(Q("select pg_advisory_lock(1)"), wiretest.Execute("p", 0), wiretest.Sync())
			fixture.Eventually(t, "the server to work on the first message", func() bool {
				var n int
				err := admin.QueryRow(t.Context(), "select count(*) from pg_locks where locktype = 'advisory' and not granted").Scan(&n)
				return err == nil && n == 1
			})
			if p.Elector.Members(db, "r", "w") == 0 {
				t.Fatal("the leader has no session")
			}
			if reset {
				_ = conn.Conn.(*net.TCPConn).SetLinger(0)
			}
			_ = conn.Close()
			fixture.Eventually(t, "the dead worker to leave its candidacy", func() bool { return p.Elector.Members(db, "r", "w") == 0 })
			exec("select pg_advisory_unlock(1)")
			fixture.Eventually(t, "the backend to end", func() bool {
				var n int
				err := admin.QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = current_database() and usename = 'app'").Scan(&n)
				return err == nil && n == 0
			})
		})
	}
}
