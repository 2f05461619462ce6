package proxy_test

import (
	"context"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/oracle"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// bench is a proxy in front of a real Postgres.
type bench struct {
	desk  *fixture.FakeElector
	pg    *pgtest.Server
	addr  string
	proxy *proxy.Server
	audit *recorder
	rec   *transcriber // of the sessions of scripts; nil without -record
}

// newBench starts a proxy; change, if not nil, changes its configuration.
func newBench(t testing.TB, pg *pgtest.Server, change func(*proxy.Config)) *bench {
	t.Helper()
	return newBenchWith(t, pg, change, func(*proxy.Server) {})
}

// newBenchWith is newBench; before is called with the proxy before it serves.
func newBenchWith(t testing.TB, pg *pgtest.Server, change func(*proxy.Config), before func(*proxy.Server)) *bench {
	t.Helper()
	b := &bench{desk: fixture.NewFakeElector(t, pg), pg: pg, audit: &recorder{}, rec: newTranscriber()}
	cfg := proxy.Config{
		Upstream: pg.Addr(), Candidates: b.desk, Auditors: []fencing.Auditor{b.audit}, ProxyID: "test",
		Policy: func(r fencing.JoinRequest) proxy.SessionPolicy {
			switch r.User {
			case pgtest.Superuser:
				return proxy.SessionPolicy{Unfenced: proxy.UnfencedAllow}
			case "scram_user":
				return proxy.SessionPolicy{Unfenced: proxy.UnfencedRefuse}
			default:
				return proxy.SessionPolicy{}
			}
		},
	}
	cfg.Observe = func(o proxy.Observed) proxy.Observer {
		return b.rec.beside(b, o, oracle.New(oracle.Facts(o), func(complaint string) { t.Error(complaint) }).AskLedger(func(epoch int64) (string, error) {
			return grantedTo(pg, o.Database, o.Fence, epoch)
		}))
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if b.proxy, err = proxy.NewServer(cfg); err != nil {
		t.Fatal(err)
	}
	before(b.proxy)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.addr = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.proxy.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		b.proxy.Close()
	})
	return b
}

// seat returns a worker's candidacy.
func (b *bench) seat(database, resource, worker string) *fixture.FakeCandidacy {
	return b.desk.Candidacy(database, resource, worker)
}

// grantedTo asks the ledger of grants, over a connection of its own, to which
// candidacy an epoch was granted.
func grantedTo(pg *pgtest.Server, database string, fence int32, epoch int64) (incarnation string, err error) {
	ctx := context.Background()
	admin, err := pgx.Connect(ctx, pg.DSN(pgtest.Superuser, database))
	if err != nil {
		return "", err
	}
	defer admin.Close(ctx)
	err = admin.QueryRow(ctx, "select incarnation from fencepost.grants where id = $1 and epoch = $2", fence, epoch).Scan(&incarnation)
	return incarnation, err
}
