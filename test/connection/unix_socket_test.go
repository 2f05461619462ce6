package connection

import (
	"context"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/proxy/unixsocket"
)

// socketPath returns the path of a socket as libpq looks for it at port 6432. The directory
// of the test may be too deep for one.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, ".s.PGSQL.6432")
}

// alsoAt has a proxy listen on a Unix socket too, and returns its path.
func alsoAt(t *testing.T, p *fixture.Proxy) string {
	t.Helper()
	path := socketPath(t)
	ln, err := unixsocket.Listen(path, 0o777)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- p.Server.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return path
}

// TestUnixSocketsOnBothSides: what a session does over TCP, it does over Unix sockets too.
func TestUnixSocketsOnBothSides(t *testing.T) {
	t.Parallel()
	pg := pgtest.SharedMajor(t, 18)
	p := fixture.NewProxy(t, pg, func(cfg *proxy.Config) {
		cfg.Upstream = fixture.At(t, filepath.Join(pg.SocketDir(), fmt.Sprintf(".s.PGSQL.%d", pg.Port())), nil)
	})
	db, path := pg.Database(t), alsoAt(t, p)
	admin := pg.Connect(t, pgtest.Superuser, db)
	fixture.LeaderConn(t, p, db).Close()
	c, key := keyed(t, path, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "w")
	fixture.MustExec(t, c, "create table made (n int)")
	if got := fixture.FirstValue(t, c.Exec("select client_addr is null from pg_stat_activity where pid = pg_backend_pid()")); got != "t" {
		t.Errorf("the connection to Postgres is local: %s", got)
	}
	c.Send(Q("select pg_sleep(600)"))
	fixture.AwaitBackend(t, admin, "wait_event = 'PgSleep'")
	cancelWith(t, path, key)
	if all := c.Until('Z'); wiretest.ErrorOf(all) != "57014" {
		t.Errorf("a cancel request over the Unix socket: %v", all)
	}
	follower, _ := wiretest.Connect(t, path, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "other")
	p.Audit.Forget()
	fixture.MustFail(t, follower, fencing.StateNotLeader, wiretest.Query("create table refused ()"))
	fixture.Eventually(t, "the auditor was told", func() bool { return len(p.Audit.All()) == 1 })
	if got := p.Audit.All()[0].Client; !strings.HasPrefix(got, "local") || !strings.Contains(got, fmt.Sprintf("pid=%d uid=%d", os.Getpid(), os.Getuid())) {
		t.Errorf("the audit line is about the client %q, want the process of this test", got)
	}
}

// TestNoOneIsTheControlRole: it may change the fence, and Postgres at a Unix socket may take every client for
// Fencepost's own process.
func TestNoOneIsTheControlRole(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	db := pg.Database(t)
	for _, upstream := range []string{pg.Addr(), filepath.Join(pg.SocketDir(), fmt.Sprintf(".s.PGSQL.%d", pg.Port()))} {
		p := fixture.NewProxy(t, pg, func(cfg *proxy.Config) { cfg.Upstream, cfg.ControlUser = fixture.At(t, upstream, nil), pgtest.Control })
		if got := login(t, p.Addr, pgtest.Control, db); got != "28000" {
			t.Errorf("the control role, with Postgres at %s: %q", upstream, got)
		}
		if got := login(t, p.Addr, pgtest.App, db); got != "" {
			t.Errorf("another role, with Postgres at %s: %q", upstream, got)
		}
	}
}

// login begins and ends a session, and returns the SQLSTATE with which it was refused.
func login(t *testing.T, address, role, db string) string {
	t.Helper()
	c := wiretest.Dial(t, address)
	c.Send(wiretest.Startup("user", role, "database", db), wiretest.Terminate())
	return wiretest.ErrorOf(c.Rest())
}

// TestNoTLSOnAUnixSocket: it is neither offered nor required there, as with Postgres.
func TestNoTLSOnAUnixSocket(t *testing.T) {
	t.Parallel()
	s := newSides(t, sidesConfig{client: func(c *pgtls.ClientsConfig) { c.Require = true }})
	path := alsoAt(t, s.Proxy)
	c := wiretest.Dial(t, path)
	c.Send(wiretest.SSLRequest())
	if got := oneByte(t, c); got != 'N' {
		t.Fatalf("an SSLRequest is answered by %q, want N", got)
	}
	c.Send(wiretest.Startup("user", pgtest.App, "database", s.db))
	c.Until('Z')
	direct := wiretest.Dial(t, path)
	direct.Send([]byte("\x16\x03\x01\x00\x05"))
	if all := direct.Rest(); len(all) != 0 {
		t.Errorf("TLS without a request was answered by %v", all)
	}
	if out, err := psqlOver(t, path, s.db, "sslmode=require"); err != nil || out != "1" {
		t.Errorf("psql with sslmode=require over the Unix socket: %s, %v", out, err)
	}
	if all := connectPlain(t, s.Addr, s.db); wiretest.ErrorOf(all) != "28000" {
		t.Errorf("over TCP, a session without TLS got %v, want 28000", all)
	}
}

func connectPlain(t *testing.T, address, db string) []wiretest.Message {
	t.Helper()
	c := wiretest.Dial(t, address)
	c.Send(wiretest.Startup("user", pgtest.App, "database", db))
	return c.Rest()
}

// psqlOver runs psql, which finds the socket by its directory and port.
func psqlOver(t *testing.T, path, db, settings string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := osexec.CommandContext(ctx, program(t, "psql"), "-XAtw", "-d",
		fmt.Sprintf("host=%s port=6432 user=%s dbname=%s %s", filepath.Dir(path), pgtest.App, db, settings), "-c", "select 1")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// prependRule makes a line the first one of pg_hba.conf.
func prependRule(t *testing.T, pg *pgtest.Server, admin *pgx.Conn, line string) {
	t.Helper()
	hba := filepath.Join(pg.DataDir(), "pg_hba.conf")
	text, err := os.ReadFile(hba)
	if err == nil {
		err = os.WriteFile(hba, append([]byte(line+"\n"), text...), 0o600)
	}
	if err == nil {
		_, err = admin.Exec(t.Context(), "select pg_reload_conf()")
	}
	if err != nil {
		t.Fatal(err)
	}
}
