package main

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestStub: the stub lets clients in, with TLS if its route has it, answers both protocols, and ends with its
// connections. A bulk load takes no short answer for a whole one.
func TestStub(t *testing.T) {
	s, pg := &servers{dir: t.TempDir(), version: "15.1"}, pgtest.Shared(t)
	dsn := pg.DSN(pgtest.App, pg.Database(t))
	if err := s.writeCertificate(); err != nil {
		t.Fatal(err)
	}
	for _, r := range []route{{name: "stub", stub: true}, {name: "stub-tls", stub: true, tls: true}} {
		one, err := s.startStub(r, dsn)
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		conn, err := pgconn.Connect(ctx, (&contender{over: r, at: one.at}).dsn())
		if err != nil {
			t.Fatal(err)
		}
		if _, is := conn.Conn().(*tls.Conn); is != r.tls {
			t.Errorf("%s: with TLS is %v", r.name, is)
		}
		if err := conn.ExecParams(ctx, "SELECT 1", nil, nil, nil, nil).Read().Err; err != nil {
			t.Errorf("%s: a statement: %v", r.name, err)
		}
		if err := receive(ctx, conn, "SELECT 1", 1); err != nil {
			t.Errorf("%s: a query: %v", r.name, err)
		}
		if err := receive(ctx, conn, "SELECT 1", 1000); err == nil || !strings.Contains(err.Error(), "instead of 1000") {
			t.Errorf("%s: a short answer: %v", r.name, err)
		}
		if err := conn.Close(ctx); err != nil {
			t.Error(err)
		}
		one.stop()
	}
}

// TestFencepostTakesTheStubForPostgres: workers lead through a proxy in front of it, one after the other, which are
// registered, and run a statement.
func TestFencepostTakesTheStubForPostgres(t *testing.T) {
	pg := pgtest.Shared(t)
	db := pg.Database(t)
	one, err := (&servers{version: "15.1"}).startStub(route{name: "stub", stub: true}, pg.DSN(pgtest.App, db))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(one.stop) // after the proxy has ended
	p := fixture.NewProxy(t, pg, func(cfg *proxy.Config) {
		cfg.Upstream = fixture.At(t, one.at.address(), nil)
	})
	host, port, err := net.SplitHostPort(p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	admin := pg.Connect(t, pgtest.Superuser, db)
	for _, name := range []string{"one", "two"} {
		worker := &contender{at: place{host, port}, options: "-c fencepost.resource=r -c fencepost.worker=" + name}
		cfg, err := pgconn.ParseConfig(worker.dsn())
		if err != nil {
			t.Fatal(err)
		}
		cfg.Database = db
		p.Elector.Enter(db, "r", name).Grant() // which ends the backend that was registered
		conn, err := pgconn.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := receive(t.Context(), conn, "SELECT 1", 1); err != nil {
			t.Error(err)
		}
		var registered int
		if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM fencepost.running r JOIN pg_stat_activity a USING (pid, backend_start)").Scan(&registered); err != nil || registered != 1 {
			t.Errorf("%s: %d backends are registered, %v", name, registered, err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
