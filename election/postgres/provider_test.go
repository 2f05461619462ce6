package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/postgres"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

func TestMain(m *testing.M) {
	process.RaiseParallel()
	pgtest.Main(m)
}

// ttl is the TTL of the leases in these tests.
var ttl = stopwatch.TTL(3 * time.Second)

func TestConformance(t *testing.T) {
	t.Parallel()
	electiontest.Run(t, open)
	electiontest.RunElections(t, open)
}

func TestRestores(t *testing.T) {
	t.Parallel()
	electiontest.RunRestores(t, open)
}

func open(t *testing.T, server *pgtest.Server, db string) *electiontest.Service {
	return &electiontest.Service{
		TTL: ttl, Death: ttl, Addr: server.Addr(), Adopts: true,
		Provider: func(t *testing.T, _ string, link *electiontest.Link) elector.Provider {
			return provider(t, server, db, link, nil)
		},
		// The worker's name as a statement parameter, followed by the length of the
		// next one. No other statement contains the worker's name.
		Request: func(worker string) string {
			return "\x00\x00\x00" + string(rune(len(worker))) + worker + "\x00\x00\x00"
		},
		Bump: func(t *testing.T) { server.Exec(t, pgtest.Control, db, "SELECT fencepost.lease_bump()") },
		Wipe: func(t *testing.T) {
			server.Exec(t, pgtest.Superuser, db, "DELETE FROM fencepost.lease", "ALTER SEQUENCE fencepost.lease_award RESTART", "SELECT fencepost.lease_bump()")
		},
		Backup: func(t *testing.T) func(t *testing.T) {
			server.Exec(t, pgtest.Superuser, db, "CREATE TABLE leases AS TABLE fencepost.lease", "CREATE TABLE awards AS SELECT last_value FROM fencepost.lease_award")
			return func(t *testing.T) {
				// No one may acquire a lease in between.
				server.Exec(t, pgtest.Superuser, db, "BEGIN", "LOCK TABLE fencepost.lease IN ACCESS EXCLUSIVE MODE",
					"DELETE FROM fencepost.lease", "INSERT INTO fencepost.lease TABLE leases",
					"SELECT setval('fencepost.lease_award', last_value) FROM awards", "COMMIT")
			}
		},
		Faults: []electiontest.Fault{
			{Name: "the lease row is deleted", Do: func(t *testing.T, resource string) {
				server.Exec(t, pgtest.Control, db, "DELETE FROM fencepost.lease")
			}},
			{Name: "the lease is freed by hand", Do: func(t *testing.T, resource string) {
				server.Exec(t, pgtest.Control, db, "UPDATE fencepost.lease SET vacancy = 'left'")
			}},
			{Name: "the lease is given to nobody by hand", Do: func(t *testing.T, resource string) {
				server.Exec(t, pgtest.Control, db, "UPDATE fencepost.lease SET incarnation = 'nobody', expires_at = now()")
			}},
		},
	}
}

func pool(t *testing.T, server *pgtest.Server, db string, link *electiontest.Link) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(server.DSN(pgtest.Control, db))
	if err != nil {
		t.Fatal(err)
	}
	if link != nil {
		cfg, err = pgxpool.ParseConfig("postgres://" + pgtest.Control + "@" + link.Addr() + "/" + db + "?sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func provider(t *testing.T, server *pgtest.Server, db string, link *electiontest.Link, now func() time.Duration) *postgres.Provider {
	t.Helper()
	p, err := postgres.New(postgres.Config{Pool: pool(t, server, db, link), Logger: zaptest.NewLogger(t), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}
