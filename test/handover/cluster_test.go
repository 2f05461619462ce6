package handover

import (
	"context"
	"crypto/rand"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

const resource = "billing"

// providers are the lease services of the cases that depend on one: that of the database, and one that is
// reached through election/kv, as all others are.
var providers = []string{"postgres", "etcd"}

func TestMain(m *testing.M) {
	process.LimitParallel()
	process.RaiseParallel()
	pgtest.Main(m, etcdtest.StopShared)
}

// cluster is a database and a lease service, for the proxies of one case.
type cluster struct {
	*testing.T
	pg       *pgtest.Server
	db       string
	settings []string
}

// newCluster creates a cluster. settings are those of every proxy, as FENCEPOST_ variables without
// that prefix; they come after the defaults here.
func newCluster(t *testing.T, provider string, settings ...string) *cluster {
	t.Helper()
	return newClusterOn(t, pgtest.Shared(t), provider, settings...)
}

// newClusterOn is newCluster on a server of the test's own.
func newClusterOn(t *testing.T, pg *pgtest.Server, provider string, settings ...string) *cluster {
	t.Helper()
	h := &cluster{T: t, pg: pg}
	h.db = h.pg.Database(t)
	all := []string{ // The grace is for what a slow test commits; no case waits for it.
		"LISTEN=127.0.0.1:0", "ADMIN=127.0.0.1:0", "UPSTREAM_ADDRESS=" + h.pg.Addr(), "CONTROL_USER=" + pgtest.Control,
		"LEASE_TTL=60s", "LEASE_GRACE=60s", "DRAIN_TIMEOUT=2s",
		"CONTROL_PROBE_DATABASE=" + h.db, // or each proxy looks at the databases of all other cases first
	}
	prefix := "fencepost-" + strings.ToLower(rand.Text()[:8])
	if provider == "etcd" {
		h.settings = etcdtest.Shared(t).Settings(prefix)
	}
	for _, s := range append(all, settings...) {
		h.settings = append(h.settings, "FENCEPOST_"+s)
	}
	h.pg.Exec(t, pgtest.App, h.db, "CREATE TABLE entries (id bigserial, worker text NOT NULL, seq bigint NOT NULL, epoch bigint NOT NULL)")
	return h
}

// onPostgres runs a case with two proxies and leases of Postgres.
func onPostgres(t *testing.T, test func(h *cluster, one, two *process.Server)) {
	h := newCluster(t, "postgres")
	test(h, h.proxy(), h.proxy())
}

// forProviders runs a case over each of the lease services, with two proxies.
func forProviders(t *testing.T, test func(h *cluster, one, two *process.Server)) {
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider)
			test(h, h.proxy(), h.proxy())
		})
	}
}

func (h *cluster) proxy() *process.Server {
	h.Helper()
	return process.Serve(h, h.settings...)
}

// command runs the program as an operator does, and returns its exit code and its output.
func (h *cluster) command(args ...string) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*process.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, process.Program(h), append(args, "--database", h.db, "--by", "ops", "--reason", "drill")...)
	cmd.Env = process.Environment(h.settings...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.Errorf("run fencepost %v: %v", args, err)
		return -1, ""
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// order runs a command whose exit code and output are known.
func (h *cluster) order(code int, says string, args ...string) {
	h.Helper()
	if got, out := h.command(args...); got != code || !strings.Contains(out, says) {
		h.Fatalf("fencepost %v: code %d, %q; want code %d and %q", args, got, out, code, says)
	}
}

// ask reads one value from Postgres, past the proxy.
func ask[T any](h *cluster, sql string, args ...any) T {
	h.Helper()
	return pgtest.Ask[T](h, h.pg, h.db, sql, args...)
}

// granted lists the workers of all grants in order.
func (h *cluster) granted() string {
	h.Helper()
	return ask[string](h, "SELECT coalesce(string_agg(coalesce(worker, '-'), ' ' ORDER BY epoch), '') FROM fencepost.grants WHERE resource = $1", resource)
}

// dsn returns the DSN of a worker's connection. params override the defaults.
func (h *cluster) dsn(p *process.Server, worker string, params ...string) string {
	return p.DSN(pgtest.App, h.db, append([]string{"resource", resource, "worker", worker, "worker_timeout", "0"}, params...)...)
}

// join connects a worker.
func (h *cluster) join(p *process.Server, worker string, params ...string) *pgx.Conn {
	h.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, h.dsn(p, worker, params...))
	if err != nil {
		h.Fatalf("connect %s: %v", worker, err)
	}
	h.Cleanup(func() { leave(conn) })
	return conn
}

func leave(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	_ = conn.Close(ctx) // it may be broken, as the case intends
}

// known waits until workers that wait are recorded, so that they can be chosen. For up to a second after
// a takeover, the incarnation that led is recorded as well, which never leads again.
func (h *cluster) known(workers ...string) {
	h.Helper()
	for _, w := range workers {
		process.Eventually(h, process.Patience, w+" to be recorded", func() bool {
			return ask[bool](h, `SELECT $1 = ANY (s.waiting) AND EXISTS (SELECT FROM fencepost.campaigning(s.resource) c WHERE c.worker = $1
				AND NOT EXISTS (SELECT FROM fencepost.grants g WHERE g.resource = c.resource AND g.incarnation = c.incarnation))
				FROM fencepost.status s WHERE s.resource = $2`, w, resource)
		})
	}
}

// insert writes a row as a worker, which says under which epoch it does.
func insert(ctx context.Context, conn *pgx.Conn, worker string, seq, epoch int64) error {
	_, err := conn.Exec(ctx, "INSERT INTO entries (worker, seq, epoch) VALUES ($1, $2, $3)", worker, seq, epoch)
	return err
}

// stateOf returns the SQLSTATE of an error, "" for none.
func stateOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
