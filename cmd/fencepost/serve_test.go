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

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/electors"
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

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.text.String()
}

// lines returns the lines with this msg.
func (b *logBuffer) lines(t *testing.T, msg string) []map[string]any {
	t.Helper()
	var found []map[string]any
	for line := range strings.Lines(b.String()) {
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
	r.releaseTimeout = patience
	r.settings.Load = func() (config.Config, error) { return cfg, nil }
	ctx, cancel := context.WithCancel(context.Background())
	r.quit = cancel
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
		out := runCommand(t, nil, "status", "--ready", "--admin="+r.admin.Addr().String())
		if out.code != exitFailure || !strings.Contains(out.stdout, "upstream: ") || !strings.Contains(out.stderr, "not ready") {
			t.Errorf("status --ready where %s: code %d: %s%s", name, out.code, out.stdout, out.stderr)
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
