package observability

import (
	"context"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestQueriesReturnSeries plays what the board and the alerts are about with a proxy, which a
// Prometheus server scrapes. Prometheus must accept each query of the board and each
// expression of an alert, and each must return series at some time.
func TestQueriesReturnSeries(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithConfig(map[string]string{"max_prepared_transactions": "1"}))
	p := &played{t: t, pg: s, db: s.Database(t)}
	hosts := strings.Join([]string{s.Addr(), pgtest.Start(t).Addr(), nobody(t)}, ",") // the second is another database system
	ca := pgtest.NewAuthority(t)
	own := ca.Issue(t, pgtest.Subject{Name: "fencepost"}) // for a day
	p.proxy = process.Serve(t, "FENCEPOST_TLS_MODE=allow", "FENCEPOST_TLS_CERT_FILE="+own.CertFile, "FENCEPOST_TLS_KEY_FILE="+own.KeyFile, "FENCEPOST_LISTEN=127.0.0.1:0", "FENCEPOST_ADMIN=127.0.0.1:0", "FENCEPOST_UPSTREAM_ADDRESS="+hosts,
		"FENCEPOST_CONTROL_USER="+pgtest.Control, "FENCEPOST_LEASE_TTL=2s", "FENCEPOST_LEASE_GRACE=200ms",
		"FENCEPOST_STARTUP_WAIT=500ms", "FENCEPOST_DRAIN_TIMEOUT=1s", "FENCEPOST_LIMITS_RESOURCE_IDLE=1s")
	p.prometheus = startPrometheus(t, rulesFile, p.proxy.Admin, nobody(t))
	p.missing = map[string]string{}
	for _, q := range queries(t) {
		p.missing[q.expr] = q.name
	}
	for _, r := range rules(t) {
		p.missing[r.Expr] = r.Alert
		if r.Alert == "FencepostNobodyLeads" { // it takes a minute
			delete(p.missing, r.Expr)
			p.missing[strings.Replace(r.Expr, "> 60", "> 1", 1)] = r.Alert
		}
	}
	if err := os.Remove(own.KeyFile); err != nil {
		t.Fatal(err)
	}
	p.proxy.Signal(t, syscall.SIGHUP)
	p.await("FencepostCertificateExpires", "FencepostReloadFailed")
	p.play()
	for name, health := range p.prometheus.evaluated() {
		if health != "ok" {
			t.Errorf("the rule %s: %s", name, health)
		}
	}
}

// nobody returns an address at which nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// played is a database whose workers do what the queries are about.
type played struct {
	t          *testing.T
	pg         *pgtest.Server
	db         string
	proxy      *process.Server
	prometheus *prometheus
	missing    map[string]string // the names of the queries that have not returned series yet
}

func (p *played) play() {
	p.t.Helper()
	p.pg.Exec(p.t, pgtest.App, p.db, "CREATE TABLE work (n int)")
	p.await("Ready") // a counter that was never seen at 0 has not increased
	for range 10 {
		if _, err := p.connect("cleartext_user", "billing", "w"); err == nil {
			p.t.Fatal("a client without a password was let in")
		}
	}
	p.await("FencepostConnectionsRefused")

	// A worker is silent for too long, and comes back before and after another one leads.
	silent := p.join("billing", "silent", "worker_timeout", "1s", "campaign", "wait")
	p.exec(silent, "INSERT INTO work VALUES (1)")
	process.Eventually(p.t, process.Patience, "the lease to be released for silence", func() bool { return p.leader("billing") == "" })
	process.Eventually(p.t, process.Patience, "the silent worker to lead again", func() bool { // its proxy waits for 500 ms only
		_, err := silent.Exec(p.t.Context(), "INSERT INTO work VALUES (2)")
		return err == nil
	})
	p.await("False alarms")
	next := p.join("billing", "next", "worker_timeout", "0", "heartbeat", "100ms", "campaign", "wait")
	if _, err := silent.Exec(p.t.Context(), "INSERT INTO work VALUES (3)"); err == nil || !strings.Contains(err.Error(), "ZF001") {
		p.t.Fatalf("the silent worker wrote after it was superseded: %v", err)
	}
	stop := p.beats(next)
	p.await("FencepostStaleWriteRefused", "Margin of the lease", "Worker timeout")
	stop()
	p.leave(next) // the histogram of takeovers begins with the first one, which rate() does not see
	p.join("billing", "last", "worker_timeout", "0", "campaign", "wait")
	p.await("Takeovers: 95th percentile")

	// The leases cannot be renewed.
	locking := p.pg.Connect(p.t, pgtest.Superuser, p.db)
	p.exec(locking, "BEGIN; LOCK TABLE fencepost.lease")
	p.await("FencepostLeaseMarginSmall", "FencepostNobodyLeads")
	p.exec(locking, "ROLLBACK")
	process.Eventually(p.t, process.Patience, "the worker to lead again", func() bool { return p.leader("billing") == "last" })
	p.exec(locking, "UPDATE fencepost.lease SET vacancy = 'left', expires_at = now() WHERE vacancy = 'held'; SELECT fencepost.lease_tell('billing')")
	p.await("Election")

	// Something that Fencepost cannot end holds the fence. Then nobody uses that resource.
	first := p.join("mail", "first", "campaign", "wait")
	p.pg.Exec(p.t, pgtest.Superuser, p.db, "BEGIN", "SELECT FROM fencepost.fence WHERE resource = 'mail' FOR KEY SHARE",
		"PREPARE TRANSACTION '"+p.db+"'")
	p.leave(first)
	second := p.join("mail", "second")
	p.await("FencepostTakeoverBlocked")
	p.pg.Exec(p.t, pgtest.Superuser, p.db, "ROLLBACK PREPARED '"+p.db+"'")
	p.leave(second)
	p.await("FencepostNoWorkers")

	p.pg.Stop(p.t, pgtest.Fast)
	p.await(slices.Collect(maps.Values(p.missing))...)
}

// beats has a worker send heartbeats until stop is called.
func (p *played) beats(c *pgx.Conn) (stop func()) {
	ctx, cancel := context.WithCancel(p.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.Tick(50 * time.Millisecond); ctx.Err() == nil; <-tick {
			if _, err := c.Exec(context.WithoutCancel(ctx), "SELECT 1"); err != nil {
				p.t.Errorf("a heartbeat: %v", err)
				return
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// await asks all queries that have not returned series yet, until those with these names have.
func (p *played) await(names ...string) {
	p.t.Helper()
	done := process.Holds(process.Patience, func() bool {
		waiting := false
		for expr, name := range p.missing {
			n, err := p.prometheus.query(expr)
			if err != nil {
				p.t.Fatalf("%s: %v", name, err)
			}
			if n > 0 {
				delete(p.missing, expr)
			} else if slices.Contains(names, name) {
				waiting = true
			}
		}
		return !waiting
	})
	if !done {
		p.t.Fatalf("waited %s for series for %q; still without: %q", process.Patience, names, p.missing)
	}
}

func (p *played) connect(user, resource, worker string, params ...string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), process.Patience)
	defer cancel()
	return pgx.Connect(ctx, p.proxy.DSN(user, p.db, append([]string{"resource", resource, "worker", worker}, params...)...))
}

func (p *played) join(resource, worker string, params ...string) *pgx.Conn {
	p.t.Helper()
	conn, err := p.connect(pgtest.App, resource, worker, params...)
	if err != nil {
		p.t.Fatalf("connect %s: %v", worker, err)
	}
	p.t.Cleanup(func() { p.leave(conn) })
	return conn
}

func (p *played) leave(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = conn.Close(ctx) // it may be broken, as the case intends
}

func (p *played) exec(conn *pgx.Conn, sql string) {
	p.t.Helper()
	if _, err := conn.Exec(p.t.Context(), sql); err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
}

// leader returns who leads, as the proxy says.
func (p *played) leader(resource string) string {
	p.t.Helper()
	_, body := p.proxy.Get(p.t, "/v1/resources/"+p.db+"/"+resource)
	_, leader, _ := strings.Cut(body, `"leader": "`)
	leader, _, _ = strings.Cut(leader, `"`)
	return leader
}
