// Package servicetest runs a proxy in the process of a test, in front of a real PostgreSQL.
package servicetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/electors"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service"
)

// Patience bounds every wait of a test.
const Patience = 60 * time.Second

// Buffer collects a log.
type Buffer struct {
	mu struct {
		sync.Mutex
		text bytes.Buffer
	}
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.text.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.text.String()
}

// Lines returns the lines with this msg.
func (b *Buffer) Lines(t *testing.T, msg string) []map[string]any {
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

// Running is a proxy under test.
type Running struct {
	*service.Server
	Log  *Buffer
	Stop func() error // like SIGTERM; waits until the proxy has ended

	mu     sync.Mutex
	config config.Config // what a reload reads
}

// Options change how a proxy is started.
type Options struct {
	Change func(*config.Config) // changes the configuration; may be nil
	Kinds  electors.Kinds       // the lease services that there are; all if nil
	Open   service.Opener       // opens the lease service; as configured if nil
}

// Start runs a proxy in front of a server until the test ends. change, if not nil, changes its configuration.
func Start(t *testing.T, s *pgtest.Server, change func(*config.Config)) *Running {
	t.Helper()
	return StartWith(t, s, Options{Change: change})
}

// unused is created once: a database of the shared server that no test uses.
var unused sync.Once

// unusedDatabase returns the name of that database. A proxy that examines it does not examine those of all other tests.
func unusedDatabase(t *testing.T, shared *pgtest.Server) string {
	t.Helper()
	const name = "unused"
	unused.Do(func() {
		shared.Exec(t, pgtest.Superuser, "postgres", "CREATE DATABASE "+name+" IS_TEMPLATE true TEMPLATE "+pgtest.Template+" STRATEGY file_copy")
	})
	return name
}

// StartWith is Start with more options.
func StartWith(t *testing.T, s *pgtest.Server, o Options) *Running {
	t.Helper()
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Address = config.Addresses{"127.0.0.1:0"}, "127.0.0.1:0"
	cfg.Upstream.Address = config.Addresses{config.Address(s.Addr())}
	cfg.Control.User = pgtest.Control
	if s == pgtest.Shared(t) {
		cfg.Control.ProbeDatabase = unusedDatabase(t, s)
	}
	// The defaults may be too short for a machine on which many tests run.
	cfg.StartupWait, cfg.StartupTimeout = config.Duration(Patience/2), config.Duration(Patience)
	if o.Change != nil {
		o.Change(&cfg)
	}
	if o.Kinds == nil {
		o.Kinds = electors.All()
	}
	if o.Open == nil {
		o.Open = o.Kinds.Serve
	}
	if err := cfg.Validate(o.Kinds.Providers()); err != nil {
		t.Fatal(err)
	}
	r := &Running{Log: &Buffer{}, config: cfg}
	logs, err := service.NewLoggers(cfg.Log, r.Log, r.Log)
	if err != nil {
		t.Fatal(err)
	}
	r.Server, err = service.New(cfg, service.Options{Version: "test", Logs: logs, Open: o.Open, Load: r.load, ReleaseTimeout: Patience})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.Stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Errorf("end the proxy: %v", err)
		}
	})
	return r
}

func (r *Running) load() (config.Config, error) { return r.Config(), nil }

// Config returns the configuration, as if it were in a file.
func (r *Running) Config() config.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.config
}

// SetConfig changes what the next reload reads.
func (r *Running) SetConfig(cfg config.Config) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.config = cfg
}

// Address returns where workers connect.
func (r *Running) Address() string { return r.Addresses()[0].String() }

// DSN returns the DSN of a connection through the proxy.
func (r *Running) DSN(db, params string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable&%s", pgtest.App, r.Address(), db, params)
}

// Connect connects through the proxy until the test ends.
func (r *Running) Connect(t *testing.T, db, params string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.DSN(db, params))
	if err != nil {
		t.Fatalf("connect through Fencepost (%s): %v", params, err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Ask requests a path of the admin address.
func (r *Running) Ask(t *testing.T, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + r.AdminAddress().String() + path)
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

// View returns what the admin address says of a resource.
func (r *Running) View(t *testing.T, db, resource string) (v admin.ResourceView) {
	t.Helper()
	_, body := r.Ask(t, "/v1/resources/"+db+"/"+resource)
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return v
}

// Exec runs a statement.
func Exec(t *testing.T, conn *pgx.Conn, sql string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	_, err := conn.Exec(ctx, sql)
	return err
}

// WantState requires an error of Postgres with this SQLSTATE.
func WantState(t *testing.T, err error, state string) {
	t.Helper()
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != state {
		t.Errorf("got error %v, want SQLSTATE %s", err, state)
	}
}

// Eventually polls until a condition holds.
func Eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	process.Eventually(t, Patience, what, condition)
}
