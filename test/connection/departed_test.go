package connection

import (
	"bytes"
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

// TestADeadClientWaitsForNoAnswer: the client dies while the server works on a message of its own
// for long, and another one waits for the answer to that, or for the server to read. Its candidacy
// does not wait for it.
func TestADeadClientWaitsForNoAnswer(t *testing.T) {
	t.Parallel()
	const much = 20 << 20 // more than the buffers between the client and the server hold
	for name, c := range map[string]struct {
		then       []byte
		reset, tls bool
	}{
		"a message that waits":                    {Cat(wiretest.Execute("p", 0), wiretest.Sync()), false, false},
		"many that are not read, reset":           {bytes.Repeat(Q("select '"+strings.Repeat("x", 1<<20)+"'"), much>>20), true, false},
		"many that are not read under TLS, reset": {bytes.Repeat(Q("select '"+strings.Repeat("x", 1<<20)+"'"), much>>20), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			soon := func(cfg *proxy.Config) { cfg.DepartedWait = time.Second }
			var p *fixture.Proxy
			if c.tls { // with the server only: a client that dies cannot say so under TLS
				p = newSides(t, sidesConfig{proxy: soon}).Proxy
			} else {
				p = fixture.NewProxy(t, pgtest.Shared(t), soon)
			}
			pg := p.PG
			db := pg.Database(t)
			admin := pg.Connect(t, pgtest.Superuser, db)
			count := func(sql string, want int) func() bool {
				return func() bool {
					var n int
					err := admin.QueryRow(t.Context(), sql).Scan(&n)
					return err == nil && n == want
				}
			}
			if _, err := admin.Exec(t.Context(), "select pg_advisory_lock(1)"); err != nil {
				t.Fatal(err)
			}
			conn := fixture.LeaderConn(t, p, db)
			conn.Send(Q("select pg_advisory_lock(1)"))
			fixture.Eventually(t, "the server to work on the first message", count("select count(*) from pg_locks join pg_database d on d.oid = database where datname = current_database() and not granted", 1))
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				_ = conn.Conn.SetWriteDeadline(time.Now().Add(2 * time.Second)) // by then the buffers are full
				_, _ = conn.Conn.Write(c.then)
			}()
			<-sent
			if p.Elector.Members(db, "r", "w") == 0 {
				t.Fatal("the leader has no session")
			}
			if c.reset {
				_ = conn.Conn.(*net.TCPConn).SetLinger(0)
			}
			_ = conn.Close()
			fixture.Eventually(t, "the dead worker to leave its candidacy", func() bool { return p.Elector.Members(db, "r", "w") == 0 })
			if _, err := admin.Exec(t.Context(), "select pg_advisory_unlock(1)"); err != nil {
				t.Fatal(err)
			}
			fixture.Eventually(t, "the backend to end", count("select count(*) from pg_stat_activity where datname = current_database() and usename = 'app'", 0))
		})
	}
}

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
