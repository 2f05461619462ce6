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
	s := &servers{dir: t.TempDir(), version: "15.1"}
	if err := s.writeCertificate(); err != nil {
		t.Fatal(err)
	}
	for _, r := range []route{{name: "stub", stub: true}, {name: "stub-tls", stub: true, tls: true}} {
		one, err := s.startStub(r)
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

// TestFencepostTakesTheStubForPostgres: a worker leads through a proxy in front of it, and runs a statement.
func TestFencepostTakesTheStubForPostgres(t *testing.T) {
	one, err := (&servers{version: "15.1"}).startStub(route{name: "stub", stub: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(one.stop) // after the proxy has ended
	p := fixture.NewProxy(t, pgtest.Shared(t), func(cfg *proxy.Config) {
		cfg.Upstream = fixture.At(t, one.at.address(), nil)
	})
	host, port, err := net.SplitHostPort(p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	worker := &contender{at: place{host, port}, options: "-c fencepost.resource=r -c fencepost.worker=w"}
	cfg, err := pgconn.ParseConfig(worker.dsn())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Database = p.PG.Database(t)
	p.Elector.Enter(cfg.Database, "r", "w").Grant()
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := receive(t.Context(), conn, "SELECT 1", 1); err != nil {
		t.Error(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
