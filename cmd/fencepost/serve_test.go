package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/cmd/fencepost/admin"
	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/cmd/fencepost/electors"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/upstream"
)

// patience bounds every wait of a test.
const patience = 60 * time.Second

// logBuffer collects a log.
type logBuffer struct {
	mu struct {
		sync.Mutex
		text bytes.Buffer
	}
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.text.Write(p)
}

// lines returns the lines with this msg.
func (b *logBuffer) lines(t *testing.T, msg string) []map[string]any {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []map[string]any
	for line := range strings.Lines(b.mu.text.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("the log has a line that is not JSON: %s", line)
		}
		if fields["msg"] == msg {
			found = append(found, fields)
		}
	}
	return found
}

// running is a proxy under test.
type running struct {
	*serving
	log  *logBuffer
	stop func() error // like SIGTERM; waits until the proxy has ended
}

// startServing runs a proxy in front of the shared server. change, if not nil, changes
// its configuration.
func startServing(t *testing.T, s *pgtest.Server, change func(*config.Config)) *running {
	t.Helper()
	return startServingWith(t, s, change, serveElector)
}

// startServingWith is startServing with a lease service that is not the configured one.
func startServingWith(t *testing.T, s *pgtest.Server, change func(*config.Config), open opener) *running {
	t.Helper()
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Address = config.Addresses{"127.0.0.1:0"}, "127.0.0.1:0"
	cfg.Upstream.Address = config.Addresses{config.Address(s.Addr())}
	cfg.Control.User = pgtest.Control
	// The defaults may be too short for a machine on which many tests run.
	cfg.StartupWait, cfg.StartupTimeout = config.Duration(patience/2), config.Duration(patience)
	if change != nil {
		change(&cfg)
	}
	if err := cfg.Validate(providers()); err != nil {
		t.Fatal(err)
	}
	r := &running{log: &logBuffer{}}
	logs, err := newLogger(cfg.Log, r.log, r.log)
	if err != nil {
		t.Fatal(err)
	}
	if r.serving, err = newServing(cfg, logs, open); err != nil {
		t.Fatal(err)
	}
	r.settings.Load = func() (config.Config, error) { return cfg, nil }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("end the proxy: %v", err)
		}
	})
	return r
}

// dsn returns the DSN of a connection through the proxy.
func (r *running) dsn(db, params string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable&%s", pgtest.App, r.listeners[0].Addr(), db, params)
}

func (r *running) connect(t *testing.T, db, params string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.dsn(db, params))
	if err != nil {
		t.Fatalf("connect through Fencepost (%s): %v", params, err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// ask requests a path of the admin address.
func (r *running) ask(t *testing.T, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + r.admin.Addr().String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func execSQL(t *testing.T, conn *pgx.Conn, sql string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := conn.Exec(ctx, sql)
	return err
}

func wantState(t *testing.T, err error, state string) {
	t.Helper()
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != state {
		t.Errorf("got error %v, want SQLSTATE %s", err, state)
	}
}

// eventually polls until condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for: %s", patience, what)
		}
		<-tick.C
	}
}

func TestServeFencesAndShowsIt(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE work (n int)")
	r := startServing(t, s, nil)

	leader := r.connect(t, db, "fencepost.resource=billing&fencepost.worker=a")
	if err := execSQL(t, leader, "INSERT INTO work VALUES (1)"); err != nil {
		t.Fatalf("a lone worker's write: %v", err)
	}
	follower := r.connect(t, db, "fencepost.resource=billing&fencepost.worker=b")
	wantState(t, execSQL(t, follower, "INSERT INTO work VALUES (2)"), fencing.StateNotLeader)
	if err := execSQL(t, follower, "SELECT n FROM work"); err != nil {
		t.Errorf("a follower's read: %v", err)
	}

	const refused = "write refused: not the leader"
	eventually(t, "the audit line", func() bool { return len(r.log.lines(t, refused)) > 0 })
	line := r.log.lines(t, refused)[0]
	for key, want := range map[string]any{
		"logger": "audit", "resource": "billing", "worker": "b", "epoch": 0.0, "current_epoch": 1.0, "current_worker": "a",
		"sqlstate": "ZF002", "statement": "INSERT INTO work VALUES ($1)", "database": db, "user": pgtest.App, "proxy": r.id,
	} {
		if line[key] != want {
			t.Errorf("audit line: %s is %v, want %v", key, line[key], want)
		}
	}
	for _, key := range []string{"incarnation", "fingerprint", "tables", "client", "session"} {
		if line[key] == nil || line[key] == "" {
			t.Errorf("audit line: %s is missing", key)
		}
	}
	eventually(t, "/readyz to say that it is ready", func() bool { // a busy server may not answer in time
		code, _ := r.ask(t, "/readyz")
		return code == http.StatusOK
	})
	_, body := r.ask(t, "/v1/resources/"+db+"/billing")
	var view admin.ResourceView
	if err := json.Unmarshal([]byte(body), &view); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	if view.Leader != "a" || !view.Here || view.Epoch != 1 || view.LeaseLeft == nil || view.Refused != 1 || len(view.Workers) != 2 {
		t.Errorf("resource view: %s", body)
	}
	_, metrics := r.ask(t, "/metrics")
	for _, want := range []string{
		fmt.Sprintf(`fencepost_writes_refused_total{database=%q,kind="not_leader",reason="ZF002",resource="billing"} 1`, db),
		fmt.Sprintf(`fencepost_epoch{database=%q,resource="billing"} 1`, db),
		fmt.Sprintf(`fencepost_grants_total{database=%q,resource="billing"} 1`, db),
		"fencepost_sessions 2",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics does not contain %s", want)
		}
	}
	if strings.Contains(metrics, "fencepost_stale_writes_rejected_total{") {
		t.Error("/metrics counts a follower's write as a stale one")
	}
	out := runCommand(t, nil, "status", "--dsn", s.DSN(pgtest.Control, db))
	if out.code != exitOK || !strings.Contains(out.stdout, "billing") || !strings.Contains(out.stdout, " a ") {
		t.Errorf("status --dsn: %s%s", out.stdout, out.stderr)
	}
}

func TestEndingReleasesTheLease(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE work (n int)")
	long := func(c *config.Config) { c.Lease.TTL = config.Duration(time.Hour) }
	first := startServing(t, s, long)
	second := startServing(t, s, long)
	conn := first.connect(t, db, "fencepost.resource=billing&fencepost.worker=a&fencepost.campaign=wait")
	if err := execSQL(t, conn, "INSERT INTO work VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	if err := first.stop(); err != nil {
		t.Fatalf("end the first proxy: %v", err)
	}
	// With a TTL of an hour this connects only if the lease was released.
	conn = second.connect(t, db, "fencepost.resource=billing&fencepost.worker=b&fencepost.campaign=wait")
	if err := execSQL(t, conn, "INSERT INTO work VALUES (2)"); err != nil {
		t.Errorf("the successor's write: %v", err)
	}
}

// busyLeases is a lease service that answers Check when the caller gives up.
type busyLeases struct {
	electors.Service
	checked func()
	checks  atomic.Int32 // under way
	closed  atomic.Int32 // how many were, when the service was closed
}

func (b *busyLeases) Check(ctx context.Context, _ []time.Duration) error {
	b.checks.Add(1)
	defer b.checks.Add(-1)
	b.checked()
	<-ctx.Done()
	return ctx.Err()
}

func (b *busyLeases) Close() error {
	b.closed.Store(b.checks.Load())
	return b.Service.Close()
}

// TestTheLeaseServiceIsClosedLast lets the proxy end while it tries its lease service. A client of
// Redis that is used while it is closed panics.
func TestTheLeaseServiceIsClosedLast(t *testing.T) {
	t.Parallel()
	checked := make(chan struct{})
	leases := &busyLeases{checked: sync.OnceFunc(func() { close(checked) })}
	leases.closed.Store(-1)
	r := startServingWith(t, pgtest.Shared(t), nil, func(cfg config.Config, proxy string, log *zap.Logger) (_ electors.Service, err error) {
		leases.Service, err = serveElector(cfg, proxy, log)
		return leases, err
	})
	<-checked
	if err := r.stop(); err != nil {
		t.Errorf("end the proxy: %v", err)
	}
	if n := leases.closed.Load(); n != 0 {
		t.Errorf("the lease service was closed while %d tries of it were under way, want 0 (-1: it was not closed)", n)
	}
}

func TestDrainWaitsForATransaction(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE work (n int)")
	r := startServing(t, s, nil)
	conn := r.connect(t, db, "fencepost.resource=billing&fencepost.worker=a&fencepost.campaign=wait")
	for _, sql := range []string{"BEGIN", "INSERT INTO work VALUES (1)"} {
		if err := execSQL(t, conn, sql); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- r.stop() }()
	eventually(t, "the drain to begin", func() bool { return len(r.log.lines(t, "draining")) == 1 })
	if code, body := r.ask(t, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, `"draining": true`) {
		t.Errorf("/readyz of a draining proxy: %d %s", code, body)
	}
	if err := execSQL(t, conn, "COMMIT"); err != nil {
		t.Errorf("commit while draining: %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("end the proxy: %v", err)
	}
	var n int
	if err := s.Connect(t, pgtest.App, db).QueryRow(context.Background(), "SELECT count(*) FROM work").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d rows (%v), want 1", n, err)
	}
}

func TestUnfencedConnectionsAreAsConfigured(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE work (n int)")
	for _, c := range []struct {
		mode    string
		users   map[string]string
		connect bool
		write   bool
	}{
		{"read-only", nil, true, false},
		{"allow", nil, true, true},
		{"refuse", nil, false, false},
		{"refuse", map[string]string{pgtest.App: "allow"}, true, true},
		{"allow", map[string]string{pgtest.App: "read-only"}, true, false},
	} {
		t.Run(c.mode+fmt.Sprint(c.users), func(t *testing.T) {
			t.Parallel()
			r := startServing(t, s, func(cfg *config.Config) { cfg.Unfenced = config.Unfenced{Default: c.mode, Users: c.users} })
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			conn, err := pgx.Connect(ctx, r.dsn(db, ""))
			if (err == nil) != c.connect {
				t.Fatalf("connect: %v, want success %v", err, c.connect)
			}
			if err != nil {
				return
			}
			defer conn.Close(ctx)
			if err := execSQL(t, conn, "SELECT n FROM work"); err != nil {
				t.Errorf("read: %v", err)
			}
			if err := execSQL(t, conn, "INSERT INTO work VALUES (1)"); (err == nil) != c.write {
				t.Errorf("write: %v, want success %v", err, c.write)
			}
		})
	}
}

func TestReadinessTellsThatPostgresIsAway(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, as for a server that hangs
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, address := range map[string]string{"nobody listens": "127.0.0.1:1", "nobody answers": silent.Addr().String()} {
		r := startServing(t, s, func(c *config.Config) { c.Upstream.Address = config.Addresses{config.Address(address)} })
		code, body := r.ask(t, "/readyz")
		if code != http.StatusServiceUnavailable || strings.Contains(body, `"upstream": "ok"`) {
			t.Errorf("/readyz where %s: %d %s", name, code, body)
		}
		if code, _ := r.ask(t, "/healthz"); code != http.StatusOK {
			t.Errorf("/healthz: %d", code)
		}
	}
}

func TestListenErrorsNameTheSetting(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	taken := startServing(t, s, nil).listeners[0].Addr().String()
	env := map[string]string{"FENCEPOST_LISTEN": taken, "FENCEPOST_ADMIN": "127.0.0.1:0"}
	out := runCommand(t, env, "serve")
	if out.code != exitFailure || !strings.Contains(out.stderr, "setting listen") {
		t.Errorf("code %d: %s", out.code, out.stderr)
	}
	env = map[string]string{"FENCEPOST_LISTEN": "127.0.0.1:0", "FENCEPOST_ADMIN": taken}
	out = runCommand(t, env, "serve")
	if out.code != exitFailure || !strings.Contains(out.stderr, "listen on the admin address") {
		t.Errorf("code %d: %s", out.code, out.stderr)
	}
}

// TestAFaultOfTheUpstreamEndsWhenItIsReached: /readyz must not say at once that Postgres is
// reached, and from an earlier look that it is not.
func TestAFaultOfTheUpstreamEndsWhenItIsReached(t *testing.T) {
	t.Parallel()
	one, err := upstream.One(upstream.Host{Address: pgtest.Shared(t).Addr()})
	if err != nil {
		t.Fatal(err)
	}
	s := &serving{upstream: one, faults: faults.NewRegister(zap.NewNop(), 0)}
	s.faults.Report(faults.InServer, &faults.Fault{Kind: faults.Upstream, Problem: "nobody answers"})
	if err := s.reachUpstream(t.Context()); err != nil {
		t.Fatal(err)
	}
	if lasting := s.faults.Lasting(); len(lasting) > 0 {
		t.Errorf("it was reached, and these faults last: %+v", lasting)
	}
}

// A lease service that takes long to open, because a disk hangs, keeps no proxy from ending.
func TestAProxyEndsWhileItsLeaseServiceIsOpened(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	hang := make(chan struct{})
	defer close(hang)
	open := unless(ctx, func(config.Config, string, *zap.Logger) (electors.Service, error) {
		cancel()
		<-hang
		return nil, nil
	})
	if s, err := open(config.Config{}, "p", zap.NewNop()); !errors.Is(err, context.Canceled) || s != nil {
		t.Errorf("it ends with %v, %v", s, err)
	}
}
