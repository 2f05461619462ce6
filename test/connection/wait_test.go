package connection

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
)

// TestAWaitingClientGetsTheReason: a client that connects with fencepost.campaign=wait gets a
// NOTICE now and then, and drivers show it before they are connected.
func TestAWaitingClientGetsTheReason(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p := fixture.NewProxy(t, pg, func(c *proxy.Config) { c.WaitNotice = 20 * time.Millisecond })
	db := pg.Database(t)
	dsn := "postgres://" + pgtest.App + "@" + p.Addr + "/" + db + "?sslmode=disable&fencepost.resource=r&fencepost.worker=second&fencepost.campaign=wait"
	notices := make(chan *pgconn.Notice, 1)
	connect := func(ctx context.Context) (*pgx.Conn, error) {
		cfg, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			select {
			case notices <- n:
			default: // one after the other is enough
			}
		}
		return pgx.ConnectConfig(ctx, cfg)
	}
	connected := make(chan error, 1)
	go func() {
		conn, err := connect(t.Context())
		if err == nil {
			err = conn.Close(context.Background())
		}
		connected <- err
	}()
	second := joined(t, p, db, "second")
	second.SetStatus(&fencing.Status{Holder: fencing.Record{Epoch: 1, Worker: "first", GrantedAt: time.Unix(0, 0)}})
	// await waits for a notice with the text, after those with earlier ones.
	await := func(text, hint string) {
		t.Helper()
		deadline := time.After(fixture.Patience)
		var n *pgconn.Notice
		for {
			select {
			case n = <-notices:
			case err := <-connected:
				t.Fatalf("connected: %v", err)
			case <-deadline:
				t.Fatalf("the last notice is %+v, want %q", n, text)
			}
			if n.Message == text && n.Hint == hint && n.Severity == "NOTICE" {
				return
			}
		}
	}
	await(`waiting to lead resource "r": worker "first" has epoch 1, granted at 1970-01-01 00:00:00 UTC`, "")
	second.SetTrouble(&fencing.Trouble{Problem: "the lease service refuses Fencepost (403)", Remedy: "Set a token."})
	await(`waiting to lead resource "r": the lease service refuses Fencepost (403)`, "Waiting does not help. Set a token.")
	second.SetTrouble(nil)
	if _, err := second.TryGrant(); err != nil {
		t.Fatal(err)
	}
	if err := <-connected; err != nil {
		t.Errorf("connect in the end: %v", err)
	}
}

// TestAWaitingClientThatDoesNotReadDoesNotStayACandidate: its process may be frozen while its kernel lives. It would be
// given the lead, and be taken for one that the proxy works for.
func TestAWaitingClientThatDoesNotReadDoesNotStayACandidate(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p := fixture.NewProxy(t, pg, func(c *proxy.Config) { c.WaitNotice, c.StartupTimeout = time.Millisecond, 15*time.Second })
	db := pg.Database(t)
	wiretest.Dial(t, p.Addr).Send(wiretest.Startup("user", pgtest.App, "database", db,
		"fencepost.resource", "r", "fencepost.worker", "w", "fencepost.campaign", "wait"))
	w := joined(t, p, db, "w")
	w.SetTrouble(&fencing.Trouble{Problem: strings.Repeat("x", 100<<10)}) // fills what the kernels keep sooner
	fixture.Eventually(t, "the frozen client's session to end", func() bool { return p.Elector.Members(db, "r", "w") == 0 })
}

// joined waits until a worker has joined its candidacy, and returns that.
func joined(t *testing.T, p *fixture.Proxy, db, worker string) *fixture.FakeCandidacy {
	t.Helper()
	fixture.Eventually(t, worker+" to join", func() bool { return p.Elector.Members(db, "r", worker) == 1 })
	return p.Candidacy(db, "r", worker)
}

// TestTheNewestConnectionsWait: a worker whose driver leaves connections behind that it has given up is refused the
// oldest of them. A client that goes, in whatever way, waits no longer.
func TestTheNewestConnectionsWait(t *testing.T) {
	t.Parallel()
	const most = 64
	pg := pgtest.Shared(t)
	p := fixture.NewProxy(t, pg, nil)
	db := pg.Database(t)
	admin := pg.Connect(t, pgtest.Superuser, db)
	awaitBackends := func(what string, want int) {
		t.Helper()
		fixture.Eventually(t, what, func() bool {
			var n int
			err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'SET idle_session_timeout = 0'").Scan(&n)
			return err == nil && n == want
		})
	}
	var all []*wiretest.Conn
	wait := func() {
		c := wiretest.Dial(t, p.Addr)
		c.Send(wiretest.Startup("user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.campaign", "wait", "fencepost.worker", "w"))
		all = append(all, c)
	}
	wait()
	awaitBackends("the oldest connection waits", 1)
	for range most - 1 {
		wait()
	}
	awaitBackends("the connections wait", most)
	wait()
	if f := fixture.FatalError(t, all[0].Rest()); f['C'] != "57P03" || !strings.Contains(f['M'], "newer connections of this worker wait") || !strings.Contains(f['H'], "fencepost.worker") {
		t.Errorf("the oldest connection is refused with %v", f)
	}
	awaitBackends("as many wait as may", most)
	_ = all[1].Conn.(*net.TCPConn).SetLinger(0) // a reset
	_ = all[1].Close()
	_ = all[2].Close()
	awaitBackends("those that have gone do not wait", most-2)
	wait()
	awaitBackends("there is room again", most-1)
}
