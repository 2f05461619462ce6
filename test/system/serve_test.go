package system

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
)

// TestServeEndsInOrder checks that on SIGTERM a transaction in progress commits, the
// lease is free at once for a worker of another proxy, and the exit code is 0.
func TestServeEndsInOrder(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long, "DRAIN_TIMEOUT=60s"))
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
	a.must("INSERT INTO work VALUES ('a, draining')", "COMMIT")
	if code := one.Wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	one.Await(t, "released", "worker", "a", "reason", "left")
	mustLead(t, b, "the successor")
	b.must("INSERT INTO work VALUES ('b')")
	if got := strings.Join(h.works(), "; "); got != "a; a, draining; b" {
		t.Errorf("the table contains %q", got)
	}
}

// TestServeWaitsForItsClients: with a shutdown_delay, sessions and new connections go on after SIGTERM until the last one
// has left, and no longer.
func TestServeWaitsForItsClients(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long, "SHUTDOWN_DELAY=10m"))
	one := h.proxy()
	a := h.join(one, "a", "campaign", "wait")
	one.Signal(t, syscall.SIGTERM)
	one.Await(t, "waiting for clients to leave before draining")
	if code, body := one.Get(t, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, `"draining": true`) {
		t.Errorf("/readyz of a proxy that waits: %d %s", code, body)
	}
	late := h.join(one, "late")
	a.must("INSERT INTO work VALUES ('a')")
	a.leave()
	late.must("SELECT 1")
	late.leave()
	if code := one.Wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestServeEndsWhenItIsAskedTo: a worker that has done its work ends its sidecar at the admin address. A SIGTERM that comes
// meanwhile cuts nothing.
func TestServeEndsWhenItIsAskedTo(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long, "DRAIN_TIMEOUT=60s", "ADMIN_TOKEN=secret"))
	one := h.proxy()
	a := h.join(one, "a", "campaign", "wait")
	a.must("BEGIN", "INSERT INTO work VALUES ('a')")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+one.Admin+"/v1/quit", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer secret")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		t.Fatalf("the request to quit: %s", resp.Status)
	}
	one.Await(t, "draining")
	one.Signal(t, syscall.SIGTERM)
	a.must("INSERT INTO work VALUES ('a, draining')", "COMMIT")
	if code := one.Wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	one.Await(t, "released", "worker", "a", "reason", "left")
	if got := strings.Join(h.works(), "; "); got != "a; a, draining" {
		t.Errorf("the table contains %q", got)
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
	h := newCluster(t, "postgres")
	w := h.join(h.proxy(), "a", "campaign", "wait")
	w.must("INSERT INTO work VALUES ('a')")
	process.Eventually(t, time.Minute, "the connections of the control role to be two", func() bool {
		return pgtest.Ask[int](t, h.pg, h.db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1", pgtest.Control) == 2
	})
	w.must("INSERT INTO work VALUES ('a')")
}
