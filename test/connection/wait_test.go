package connection

import (
	"context"
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

// TestAWaitingClientIsToldWhy: a client that connects with fencepost.campaign=wait gets a
// NOTICE now and then, and drivers show it before they are connected.
func TestAWaitingClientIsToldWhy(t *testing.T) {
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
