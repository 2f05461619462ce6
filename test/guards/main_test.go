package guards

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}

// add guards a table by the resource r, with a stamp.
func add(c *fixture.Cluster, table string) {
	c.T.Helper()
	c.Guard(guard.Options{Resource: "r", Table: table, Stamp: "fence_epoch"})
}

// mayClaim lets the role of the workers call fencepost.claim.
func mayClaim(c *fixture.Cluster) {
	c.T.Helper()
	c.PG.Exec(c.T, pgtest.Control, c.DB, "SELECT fencepost.admit('app')")
}

// leader makes worker w lead, after another, and connects as w through the proxy.
func leader(c *fixture.Cluster) *pgx.Conn {
	c.T.Helper()
	c.GrantOn("r", "first")
	c.GrantOn("r", "w")
	return c.Join("w") // it is told, unlike the connection before
}

// epoch returns the current epoch of the resource r.
func epoch(c *fixture.Cluster) int {
	c.T.Helper()
	return c.Number("select epoch from fencepost.fence where resource = 'r'")
}

// exec runs a statement, as a Query or as extended messages.
func exec(ctx context.Context, conn *pgx.Conn, sql string, simple bool) error {
	if simple {
		_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
		return err
	}
	return conn.PgConn().ExecParams(ctx, sql, nil, nil, nil, nil).Read().Err
}
