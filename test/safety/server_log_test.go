package safety

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

// TestAFollowerDoesNotFloodPostgresLog: a follower that tries to write once a second makes Postgres's log grow by less than
// 1 MB an hour, with the default settings of that log. One that a guard refuses needs the settings that docs/audit-log.md names.
func TestAFollowerDoesNotFloodPostgresLog(t *testing.T) {
	t.Parallel()
	const (
		most = 1_000_000 / 3600 // bytes of the log for each refused write
		sql  = "INSERT INTO public.invoices (id, customer, amount) VALUES ($1, $2, $3)"
	)
	for version, o := range map[string][]pgtest.Option{"default": nil, "18": {pgtest.WithBinaries(pgtest.Binaries(t, 18))}} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			pg := pgtest.Start(t, append(o, pgtest.WithConfig(map[string]string{"log_line_prefix": "%m [%p] "}))...) // the default
			c := fixture.NewCluster(t, pg, func(cfg *proxy.Config) {
				cfg.Policy = func(r fencing.JoinRequest) proxy.SessionPolicy {
					return proxy.SessionPolicy{Fence: map[string]proxy.FenceMode{"tables": proxy.FenceTables}[r.Resource]}
				}
			})
			c.Exec("create table invoices (id int, customer text, amount numeric); grant all on invoices to app")
			c.Grant("leader")
			c.GrantOn("tables", "leader")
			c.Guard(guard.Options{Resource: "tables", Table: "public.invoices"})
			// grows checks by how many bytes the log grows with each refused write.
			grows := func(what, resource string, least, most int) {
				t.Helper()
				conn := c.Join("follower", "fencepost.resource", resource)
				for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheStatement} {
					const times = 5
					before := len(pg.Log(t))
					for n := range times {
						if _, err := conn.Exec(t.Context(), sql, mode, n, "customer 4711", "99.95"); pgtest.StateOf(err) != fencing.StateNotLeader {
							t.Fatalf("%s: %v, want ZF002", what, err)
						}
					}
					n := (len(pg.Log(t)) - before) / times
					if n < least || n > most {
						t.Errorf("%s, %s: %d bytes of the log for each refused write, want %d to %d:\n%s", what, mode, n, least, most, pg.Log(t)[before:])
					}
				}
			}
			grows("a follower", "r", 150, most)
			grows("a guard", "tables", 3*most/2, 3*most)
			c.Exec("ALTER ROLE app SET log_min_error_statement = fatal; ALTER ROLE app SET log_error_verbosity = terse")
			grows("a follower, in short", "r", 50, 150)
			grows("a guard, in short", "tables", 50, 150)
			c.Exec("ALTER ROLE app SET log_min_messages = fatal")
			grows("a follower, without errors", "r", 0, 0)
			grows("a guard, without errors", "tables", 0, 0)
		})
	}
}
