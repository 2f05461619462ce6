package connection

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// TestAClientThatReadsLateIsNotGone: a client that has ended its output, and takes its time to read
// the replies, gets all of them, also those to what had to wait.
func TestAClientThatReadsLateIsNotGone(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), func(cfg *proxy.Config) { cfg.DepartedWait = 4 * time.Second })
	conn := fixture.LeaderConn(t, p, p.PG.Database(t))
	conn.Send(Q("select repeat('x', 10000) from generate_series(1, 10000)"), wiretest.Execute("p", 0), wiretest.Sync())
	if err := conn.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second) // the first DepartedWait begins anew, because something was written since
	var said strings.Builder
	for _, m := range conn.Rest() {
		if m.Type != 'D' {
			said.WriteByte(m.Type)
		}
	}
	if said.String() != "TCZEZ" {
		t.Errorf("the client is told %s, want the replies to both messages, TCZEZ", said.String())
	}
}

// TestAWorkerThatTerminatesLeavesAtOnce: a worker that ends its session while a statement of its is under way, as a
// program that is interrupted does, leaves its candidacy without waiting for the reply, whether it leads or not.
func TestAWorkerThatTerminatesLeavesAtOnce(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), func(cfg *proxy.Config) { cfg.DepartedWait = time.Hour })
	db := p.PG.Database(t)
	admin := p.PG.Connect(t, pgtest.Superuser, db)
	leader := fixture.LeaderConn(t, p, db)
	follower, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db, "options", "-c fencepost.resource=r -c fencepost.worker=v")
	for worker, conn := range map[string]*wiretest.Conn{"w": leader, "v": follower} {
		conn.Send(Q("select pg_sleep(3600)"))
		fixture.AwaitBackend(t, admin, "wait_event = 'PgSleep'")
		conn.Send(wiretest.Terminate())
		_ = conn.Close()
		fixture.Eventually(t, "the worker to leave its candidacy", func() bool { return p.Elector.Members(db, "r", worker) == 0 })
		if _, err := admin.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"); err != nil {
			t.Fatal(err)
		}
	}
}
