package connection

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	osexec "os/exec"
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
	p := fixture.NewProxy(t, pg, func(c *proxy.Config) { c.WaitNotice, c.StartupTimeout = time.Millisecond, 5*time.Second })
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

// TestPsqlShowsTheWait: libpq accepts a NOTICE in the startup.
func TestPsqlShowsTheWait(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p := fixture.NewProxy(t, pg, func(c *proxy.Config) { c.WaitNotice = 50 * time.Millisecond })
	db := pg.Database(t)
	cmd := osexec.CommandContext(t.Context(), program(t, "psql"), "-XAt", "-c", "SELECT 41 + 1",
		clientDSN(p.Addr, db)+"%20-c%20fencepost.campaign%3Dwait")
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	if !lines.Scan() || !strings.Contains(lines.Text(), `NOTICE:  waiting to lead resource "r": no epoch was granted yet`) {
		t.Errorf("psql shows %q", lines.Text())
	}
	if _, err := joined(t, p, db, "w").TryGrant(); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // until psql has ended
	}
	if err := cmd.Wait(); err != nil || strings.TrimSpace(stdout.String()) != "42" {
		t.Errorf("psql: %v: %s", err, stdout.String())
	}
}

// TestMessagesEndWithTheState: several drivers hide the SQLSTATE of a FATAL error.
func TestMessagesEndWithTheState(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p := fixture.NewProxy(t, pg, nil)
	db, empty := pg.Database(t), pg.EmptyDatabase(t)
	ends := func(what string, err error, severity, state string) {
		t.Helper()
		var e *pgconn.PgError
		if !errors.As(err, &e) || e.Severity != severity || e.Code != state || !strings.HasSuffix(e.Message, " ["+state+"]") {
			t.Errorf("%s: %v; want %s %s", what, err, severity, state)
		}
	}
	connect := func(db, params string) (*pgx.Conn, error) {
		conn, err := pgx.Connect(t.Context(), "postgres://"+pgtest.App+"@"+p.Addr+"/"+db+"?sslmode=disable&"+params)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
		}
		return conn, err
	}
	_, err := connect(empty, "fencepost.resource=r&fencepost.worker=w")
	ends("no schema", err, "FATAL", fencing.StateNoFence)
	_, err = connect(db, "replication=database")
	ends("replication", err, "FATAL", fencing.StateUnfenceable)
	unfenced, err := connect(db, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = unfenced.Exec(t.Context(), "CREATE TABLE t (n int)")
	ends("unfenced", err, "ERROR", fencing.StateNotLeader)

	follower, err := connect(db, "fencepost.resource=r&fencepost.worker=b")
	if err != nil {
		t.Fatal(err)
	}
	_, err = follower.Exec(t.Context(), "CREATE TABLE t (n int)")
	ends("a follower", err, "ERROR", fencing.StateNotLeader)
	p.Candidacy(db, "r", "b").Grant()
	_, err = follower.Exec(t.Context(), "CREATE TABLE t (n int)")
	ends("a new leader", err, "ERROR", fencing.StateStartOver)
	_, err = follower.Exec(t.Context(), "PREPARE TRANSACTION 'x'")
	ends("two phases", err, "ERROR", fencing.StateUnfenceable)
	if _, err := connect(db, "fencepost.resource=r&fencepost.worker=c"); err != nil {
		t.Fatal(err)
	}
	p.Candidacy(db, "r", "c").Grant()
	_, err = follower.Exec(t.Context(), "CREATE TABLE t (n int)")
	ends("a deposed leader", err, "FATAL", fencing.StateSuperseded)
}
