package system

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
)

// TestServeEndsInOrder checks that on SIGTERM a transaction in progress commits, the
// lease is free at once for a worker of another proxy, and the exit code is 0.
func TestServeEndsInOrder(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider, with(long, "DRAIN_TIMEOUT=60s"))
			one, two := h.proxy(), h.proxy()
			a, idle := h.join(one, "a", "campaign", "wait"), h.join(one, "idle")
			b := h.join(two, "b")
			a.must("BEGIN", "INSERT INTO work VALUES ('a')")
			one.Signal(t, syscall.SIGTERM)
			one.Await(t, "draining")
			if _, err := h.tryJoin(process.Patience, one, "late"); err == nil {
				t.Error("a draining proxy accepted a connection")
			}
			if code, body := one.Get(t, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, `"draining": true`) {
				t.Errorf("/readyz of a draining proxy: %d %s", code, body)
			}
			process.Eventually(t, process.Patience, "the idle connection to be ended", func() bool { return idle.exec("SELECT 1") != nil })
			watch := startWatch(t)
			a.must("INSERT INTO work VALUES ('a, draining')", "COMMIT")
			select {
			case <-one.Done:
			case <-time.After(process.Patience):
				t.Fatal("the proxy does not end")
			}
			if one.Code != 0 {
				t.Errorf("exit code %d", one.Code)
			}
			released := one.Await(t, "released", "worker", "a", "reason", "left").At(t)
			took := two.Await(t, "takeover", "worker", "b").At(t).Sub(released)
			if t.Logf("takeover %s after the release", took); watch.late(t, took, 0) {
				t.Errorf("the takeover took %s", took)
			}
			if b.show("role") != "leader" {
				t.Error("the epoch was not announced to the successor")
			}
			b.must("INSERT INTO work VALUES ('b')")
			if got := strings.Join(h.works(), "; "); got != "a; a, draining; b" {
				t.Errorf("the table contains %q", got)
			}
		})
	}
}

// TestServeRefusesAWrongConfiguration checks the exit code 78 and the name of the
// setting.
func TestServeRefusesAWrongConfiguration(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	for name, c := range map[string]struct{ yaml, want string }{
		"an unknown key":     {"lease:\n  tttl: 10s\n", "tttl"},
		"a number, no unit":  {"lease:\n  ttl: 10\n", "10"},
		"an unknown service": {"election:\n  provider: chubby\n", "election.provider"},
		"no port":            {"upstream:\n  address: localhost\n", "upstream.address"},
		"no YAML":            {"listen: [", "not valid YAML"},
	} {
		path := filepath.Join(t.TempDir(), "fencepost.yml")
		if err := os.WriteFile(path, []byte(c.yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		bare := &cluster{t: t} // no variables, which would override the file
		code, out := bare.command("serve", "--config", path)
		if code != 78 || !strings.Contains(out, c.want) || strings.Contains(out, "goroutine") {
			t.Errorf("%s: code %d, %q does not name %q", name, code, out, c.want)
		}
	}
	taken := h.proxy()
	h.settings = append(h.settings, "FENCEPOST_LISTEN="+taken.Address)
	if code, out := h.command("serve"); code != 1 || !strings.Contains(out, "setting listen") {
		t.Errorf("an address in use: code %d: %s", code, out)
	}
}

// TestAMissingSchemaIsSaid also checks that a migration resolves it without a restart.
func TestAMissingSchemaIsSaid(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	h.db = h.pg.EmptyDatabase(t)
	h.pg.Exec(t, pgtest.App, h.db, "CREATE TABLE work (what text NOT NULL)")
	p := h.proxy()
	_, err := h.tryJoin(process.Patience, p, "a")
	if f := failureOf(err); f == nil || f.Severity != "FATAL" || f.Code != fencing.StateNoFence || !strings.Contains(f.Message+f.Hint, "fencepost migrate") {
		t.Errorf("connecting without a schema: %+v; want FATAL ZF004 that names migrate", f)
	}
	if code, out := h.command("migrate", "--dsn", h.pg.DSN(pgtest.Superuser, h.db), "--control-role", pgtest.Control); code != 0 {
		t.Fatalf("migrate: code %d: %s", code, out)
	}
	var a *client
	process.Eventually(t, process.Patience, "a to connect", func() bool {
		a, err = h.tryJoin(process.Patience, p, "a", "campaign", "wait")
		return err == nil
	})
	a.must("INSERT INTO work VALUES ('a')")
}

// TestPostgresIsAway checks that the proxy starts, reports it, and works when Postgres
// comes up.
func TestPostgresIsAway(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	h := newCluster(t, "postgres", onServer(s))
	s.Stop(t, pgtest.Fast)
	p := h.proxy()
	if code, body := p.Get(t, "/readyz"); code != http.StatusServiceUnavailable || strings.Contains(body, `"upstream": "ok"`) {
		t.Errorf("/readyz without Postgres: %d %s", code, body)
	}
	if code, _ := p.Get(t, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	_, err := h.tryJoin(process.Patience, p, "a")
	if f := failureOf(err); f == nil || f.Severity != "FATAL" || f.Code != "57P03" || !strings.Contains(f.Message, "cannot reach Postgres") {
		t.Errorf("connecting without Postgres: %+v; want FATAL 57P03", f)
	}
	s.Restart(t)
	h.join(p, "a", "campaign", "wait").must("INSERT INTO work VALUES ('a')")
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	if _, err := pgx.Connect(ctx, p.DSN(pgtest.App, "no_such_database", "resource", resource)); stateOf(err) != "3D000" {
		t.Errorf("connecting to no database: %v; want Postgres' own 3D000", err)
	}
}

// TestLibpqGetsPastAProxyWithoutPostgres names two proxies in a DSN, of which the first cannot reach
// Postgres, or waits for it until startup_timeout.
func TestLibpqGetsPastAProxyWithoutPostgres(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	closed := ports.For(t)
	healthy := h.proxy()
	for name, upstream := range map[string]string{"closed": closed.Address(), "silent": silent.Addr().String()} {
		first := h.proxy("UPSTREAM_ADDRESS="+upstream, "STARTUP_TIMEOUT=1s")
		var hosts, numbers []string
		for _, p := range []*process.Server{first, healthy} {
			host, port, err := net.SplitHostPort(p.Address)
			if err != nil {
				t.Fatal(err)
			}
			hosts, numbers = append(hosts, host), append(numbers, port)
		}
		dsn := fmt.Sprintf("host=%s port=%s dbname=%s user=%s sslmode=disable options='-c fencepost.resource=%s -c fencepost.worker=w'",
			strings.Join(hosts, ","), strings.Join(numbers, ","), h.db, pgtest.App, resource)
		ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, h.pg.Program(t, "psql"), "-XAtc", "SELECT 42", dsn).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != "42" {
			t.Errorf("%s: psql says %v: %s", name, err, out)
		}
	}
}

// TestAClientForWhomNoFileDescriptorIsLeft is told so, whether it is its own connection or the one to Postgres that
// needs one, and is counted. The log stays short.
func TestAClientForWhomNoFileDescriptorIsLeft(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p := h.proxy()
	limit := func(n int) {
		t.Helper()
		if out, err := exec.Command("prlimit", "--pid", strconv.Itoa(p.PID()), fmt.Sprintf("--nofile=%d:", n)).CombinedOutput(); err != nil {
			t.Fatalf("prlimit: %v: %s", err, out)
		}
	}
	refused := 0
	const below = "no file descriptor left for a connection to postgres"
	for line, left := range map[string]int{"accept failed": 1, below: 2} { // a connection needs one more while it is taken over
		process.Eventually(t, process.Patience, line, func() bool {
			used, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
			if err != nil {
				t.Fatal(err)
			}
			limit(len(used) + left)
			defer limit(4096)
			for range 10 {
				c, err := h.plain(p)
				switch f := failureOf(err); {
				case err == nil:
					c.leave()
				case f == nil || f.Code != "53000" || !strings.Contains(f.Hint, "ulimit -n"):
					t.Errorf("refused with %v, %+v", err, f)
				default:
					refused++
				}
			}
			return len(p.Lines(line)) > 0
		})
	}
	if _, body := p.Get(t, "/metrics"); refused == 0 || !strings.Contains(body, fmt.Sprintf("fencepost_connections_refused_total{reason=\"limit\"} %d\n", refused)) {
		t.Errorf("%d clients were refused, and the metrics have another number: %s", refused, body)
	}
	for _, line := range []string{"accept failed", below} {
		if n := len(p.Lines(line)); n > 5 {
			t.Errorf("the log has %d lines %q", n, line)
		}
	}
}

// TestAnIdleWorkerCostsTwoConnections: the control role has one connection that asks and one that listens in a database
// whose workers are idle. What a takeover has needed is closed.
func TestAnIdleWorkerCostsTwoConnections(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider)
			w := h.join(h.proxy(), "a", "campaign", "wait")
			w.must("INSERT INTO work VALUES ('a')")
			process.Eventually(t, time.Minute, "the connections of the control role to be two", func() bool {
				return pgtest.Ask[int](t, h.pg, h.db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1", pgtest.Control) == 2
			})
			w.must("INSERT INTO work VALUES ('a')")
		})
	}
}
