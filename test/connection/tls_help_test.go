package connection

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

// sides is a proxy with TLS towards its clients and towards Postgres.
type sides struct {
	*fixture.Proxy
	db     string
	ca     *pgtest.Authority // of every certificate here
	server pgtest.Pair       // what Postgres shows
	own    pgtest.Pair       // what the proxy shows its clients
	log    *observer.ObservedLogs
	libpq  []string // environment under which programs use the server's libpq
}

// sidesConfig is what a test changes of a proxy with TLS.
type sidesConfig struct {
	major    int // of Postgres, 0 for the default one
	pg       *pgtest.Server
	address  string // where the proxy takes Postgres to be, "" where it is
	ca       *pgtest.Authority
	client   func(*pgtls.ClientsConfig)
	upstream func(*pgtls.UpstreamConfig)
	// plainUpstream means that there is no TLS with Postgres.
	plainUpstream bool
	proxy         func(*proxy.Config)
}

// newSides starts a proxy with TLS on both sides and verify-full upstream.
func newSides(t *testing.T, c sidesConfig) *sides {
	t.Helper()
	s := &sides{ca: c.ca}
	if c.major == 18 {
		s.libpq = []string{"LD_LIBRARY_PATH=" + filepath.Join(filepath.Dir(pgtest.Binaries(t, 18)), "lib")}
	}
	pg := c.pg
	if pg == nil {
		pg, s.ca, s.server = pgtest.SharedTLS(t, c.major)
	}
	s.own = s.ca.Issue(t, pgtest.Subject{Name: "fencepost", Hosts: []string{"localhost", "127.0.0.1"}})
	client := pgtls.ClientsConfig{CertFile: s.own.CertFile, KeyFile: s.own.KeyFile}
	if c.client != nil {
		c.client(&client)
	}
	upstream := pgtls.UpstreamConfig{Verify: pgtls.VerifyFull, CAFile: s.ca.File, ServerName: "localhost"}
	if c.upstream != nil {
		c.upstream(&upstream)
	}
	core, log := observer.New(zapcore.DebugLevel)
	s.log = log
	client.Logger, upstream.Logger = zap.New(core), zap.New(core)
	clientSide, err := pgtls.NewClients(client)
	if err != nil {
		t.Fatal(err)
	}
	upstreamSide, err := pgtls.NewUpstream(upstream)
	if err != nil {
		t.Fatal(err)
	}
	if c.plainUpstream {
		upstreamSide = nil
	}
	s.Proxy = fixture.NewProxy(t, pg, func(cfg *proxy.Config) {
		open(cfg)
		cfg.TLS, cfg.Upstream, cfg.Logger = clientSide, fixture.At(t, cmp.Or(c.address, pg.Addr()), upstreamSide), zap.New(core)
		if c.proxy != nil {
			c.proxy(cfg)
		}
	})
	s.db = pg.Database(t)
	return s
}

// clientConfig is how a careful client in Go speaks TLS with the proxy.
func (s *sides) clientConfig(certificates ...tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: s.ca.Pool(), ServerName: "localhost", NextProtos: []string{"postgresql"}, Certificates: certificates}
}

// secure connects up to the handshake.
func (s *sides) secure(t *testing.T, direct bool) *wiretest.Conn {
	t.Helper()
	c := wiretest.Dial(t, s.Addr)
	c.Secure(s.clientConfig(), direct)
	return c
}

// connect begins a session under TLS.
func (s *sides) connect(t *testing.T, params ...string) *wiretest.Conn {
	t.Helper()
	c := s.secure(t, false)
	c.Send(wiretest.Startup(append([]string{"database", s.db}, params...)...))
	c.Until('Z')
	return c
}

// worker begins a session of a worker of resource r.
func (s *sides) worker(t *testing.T, name string) *wiretest.Conn {
	t.Helper()
	return s.connect(t, "user", pgtest.App, "fencepost.resource", "r", "fencepost.worker", name)
}

// leads makes a worker lead, and returns a session that knows it.
func (s *sides) leads(t *testing.T, name string) *wiretest.Conn {
	t.Helper()
	_ = s.worker(t, name).Close()
	s.Candidacy(s.db, "r", name).Grant()
	return s.worker(t, name)
}

// psqlTLS runs one command by psql, with the settings added to its connection
// string. env is added to an environment without files of the user's.
func psqlTLS(t *testing.T, address, db, settings, sql string, env ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	host, port, _ := net.SplitHostPort(address)
	cmd := osexec.CommandContext(ctx, program(t, "psql"), "-XAtw", "-d",
		fmt.Sprintf("host=localhost hostaddr=%s port=%s dbname=%s %s", host, port, db, settings), "-c", sql)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PG") }), "HOME="+t.TempDir())
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// upstreamTLS asks whether the session's own connection with Postgres is under
// TLS.
const upstreamTLS = "select ssl from pg_stat_ssl where pid = pg_backend_pid()"
