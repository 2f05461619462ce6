package system

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/redistest"
)

// resource is the resource that the workers of a case compete for by default.
const resource = "billing"

// providers are the lease services that cases run with. What rests on kv, as etcd does, takes the
// same way through the proxy as Consul, so only the cases of allProviders run with it.
var (
	providers    = []string{"postgres", "consul"}
	allProviders = append(slices.Clone(providers), "etcd", "redis")
	// moreProviders are those that need a tag: what each adds to a cluster.
	moreProviders = map[string]func(h *cluster){}
)

// cluster is the environment of one case: a database with the table work, and a lease
// service.
type cluster struct {
	t        testing.TB
	pg       *pgtest.Server
	db       string
	consul   *consultest.Agent // nil with another elector
	prefix   string            // of the lease service's keys
	settings []string          // settings of every proxy
	patient  bool              // its takeovers leave idle backends alone for 30 s
	stamped  bool              // it has a table that audit can verify
}

// option changes a cluster before anything is created in it.
type option func(*cluster)

// onServer puts the database on a separate server.
func onServer(s *pgtest.Server) option { return func(h *cluster) { h.pg = s } }

// patient has takeovers wait for 30 s until the proxies have let go of their backends; see DrainsPatiently.
func patient(h *cluster) {
	h.patient = true
	with("LEASE_GRACE=30s")(h)
}

// withConsul uses a separate agent.
func withConsul(a *consultest.Agent) option { return func(h *cluster) { h.consul = a } }

// with adds settings for all proxies, as FENCEPOST_ variables without that prefix.
func with(settings ...string) option {
	return func(h *cluster) { h.settings = append(h.settings, prefixed(settings)...) }
}

func prefixed(settings []string) []string {
	full := make([]string, 0, len(settings))
	for _, s := range settings {
		full = append(full, "FENCEPOST_"+s)
	}
	return full
}

// newCluster creates a cluster. The times are short except for the TTL: a case in which a
// lease must expire sets a short one.
func newCluster(t testing.TB, provider string, opts ...option) *cluster {
	t.Helper()
	h := &cluster{t: t, prefix: "fencepost-" + strings.ToLower(rand.Text()[:8])}
	for _, opt := range opts {
		opt(h)
	}
	shared := h.pg == nil
	if shared {
		h.pg = pgtest.Shared(t)
	}
	own := h.settings
	h.settings = prefixed([]string{
		"LISTEN=127.0.0.1:0", "ADMIN=127.0.0.1:0", "UPSTREAM_ADDRESS=" + h.pg.Addr(), "CONTROL_USER=" + pgtest.Control,
		"LEASE_TTL=10s", "LEASE_WORKER_TIMEOUT=500ms", "LEASE_GRACE=200ms", "DRAIN_TIMEOUT=2s", "LOG_LEVEL=debug",
		"STARTUP_WAIT=8s", // most cases connect a worker that leads at once, also where a connection takes seconds
	})
	switch provider {
	case "consul":
		if h.consul == nil {
			h.consul = consultest.Shared(t)
		}
		h.settings = append(h.settings, h.consul.Settings(h.prefix)...)
	case "etcd":
		h.settings = append(h.settings, etcdtest.Shared(t).Settings(h.prefix)...)
	case "redis":
		h.settings = append(h.settings, redistest.Shared(t).Settings(h.prefix)...)
	default:
		if more := moreProviders[provider]; more != nil {
			more(h)
		}
	}
	h.db = h.pg.Database(t)
	if h.patient {
		h.pg.DrainsPatiently(t, h.db)
	}
	if shared { // or each proxy looks at the databases of all other cases first
		h.settings = append(h.settings, "FENCEPOST_CONTROL_PROBE_DATABASE="+h.db)
	}
	h.settings = append(h.settings, own...)
	h.pg.Exec(t, pgtest.App, h.db, "CREATE TABLE work (what text NOT NULL)")
	return h
}

// proxy starts a proxy of this cluster.
func (h *cluster) proxy(settings ...string) *process.Server {
	h.t.Helper()
	return process.Serve(h.t, append(h.settings, prefixed(settings)...)...)
}

// command runs the program with the cluster's settings, and returns its exit code and its
// output.
func (h *cluster) command(args ...string) (int, string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*process.Patience) // some wait for a lease to end
	defer cancel()
	cmd := exec.CommandContext(ctx, process.Program(h.t), args...)
	cmd.Env = process.Environment(h.settings...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("run fencepost %v: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// works returns the contents of the table work, in order of writing.
func (h *cluster) works() []string {
	h.t.Helper()
	return ask[[]string](h, "SELECT coalesce(array_agg(what ORDER BY ctid), '{}') FROM work")
}

// ask reads one value directly from Postgres as superuser.
func ask[T any](h *cluster, sql string, args ...any) T {
	h.t.Helper()
	return pgtest.Ask[T](h.t, h.pg, h.db, sql, args...)
}

// epoch returns the highest recorded epoch of the resource.
func (h *cluster) epoch() int64 {
	h.t.Helper()
	return ask[int64](h, "SELECT coalesce(max(epoch), 0) FROM fencepost.grants WHERE resource = $1", resource)
}

// granted lists the workers of all grants in order.
func (h *cluster) granted() string {
	h.t.Helper()
	return ask[string](h, "SELECT coalesce(string_agg(worker, ' ' ORDER BY epoch), '') FROM fencepost.grants WHERE resource = $1", resource)
}

// client is a worker inside this process, for workers that are never frozen.
type client struct {
	*pgx.Conn
	t testing.TB
}

// join connects a worker for the resource. Further params are name, value, ...
func (h *cluster) join(p *process.Server, worker string, params ...string) *client {
	h.t.Helper()
	c, err := h.tryJoin(process.Patience, p, worker, params...)
	if err != nil {
		h.t.Fatalf("connect %s (%v): %v", worker, params, err)
	}
	return c
}

func (h *cluster) tryJoin(within time.Duration, p *process.Server, worker string, params ...string) (*client, error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	conn, err := pgx.Connect(ctx, h.dsn(p, worker, params...))
	if err != nil {
		return nil, err
	}
	c := &client{Conn: conn, t: h.t}
	h.t.Cleanup(c.leave)
	return c, nil
}

// dsn returns the DSN of a worker's connection for the resource. params override the
// defaults.
func (h *cluster) dsn(p *process.Server, worker string, params ...string) string {
	return p.DSN(pgtest.App, h.db, append([]string{"resource", resource, "worker", worker, "worker_timeout", "0"}, params...)...)
}

// leave ends the connection in an orderly way. Leaving twice is harmless.
func (c *client) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	_ = c.Close(ctx) // it may be broken, as the case intends
}

// exec runs one statement.
func (c *client) exec(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	_, err := c.Exec(ctx, sql)
	return err
}

// refusal tries to write until the error says this, and returns the last error: its proxy learns of an order when its
// own candidacy does.
func (c *client) refusal(says string) (err error) {
	c.t.Helper()
	process.Holds(process.Patience, func() bool {
		err = c.exec("INSERT INTO work VALUES ('refused')")
		return err == nil || strings.Contains(err.Error(), says)
	})
	return err
}

// must runs statements that have to succeed.
func (c *client) must(statements ...string) {
	c.t.Helper()
	for _, sql := range statements {
		if err := c.exec(sql); err != nil {
			c.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// show reads a fencepost.* value.
func (c *client) show(name string) (value string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	if err := c.QueryRow(ctx, "SHOW fencepost."+name).Scan(&value); err != nil {
		c.t.Fatalf("show %s: %v", name, err)
	}
	return value
}

// stateOf returns the SQLSTATE of an error, "" for none.
func stateOf(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// stopServers ends the servers that all tests share, and which do not end by themselves.
var stopServers = []func(){etcdtest.StopShared, redistest.StopShared}

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		os.Exit(workerMain(os.Stdin, os.Stdout))
	}
	process.LimitParallel()
	pgtest.Main(m, stopServers...)
}
