package guards

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/cmd/fencepost/guard"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// add guards a table by the resource r, with a stamp.
func add(c *fixture.Cluster, table string) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	o := guard.Options{Resource: "r", Table: table, Stamp: "fence_epoch"}
	if _, _, err := guard.Add(ctx, c.PG.Connect(c.T, pgtest.Superuser, c.DB), o); err != nil {
		c.T.Fatalf("guard %s: %v", table, err)
	}
}

// unguard removes the guard of a table.
func unguard(c *fixture.Cluster, table string) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, err := guard.Remove(ctx, c.PG.Connect(c.T, pgtest.Superuser, c.DB), table); err != nil {
		c.T.Fatalf("remove the guard of %s: %v", table, err)
	}
}

// leader makes worker w lead, after another, and connects as w through the proxy.
func leader(c *fixture.Cluster) *pgx.Conn {
	c.T.Helper()
	c.Connect("first")
	c.Grant("first")
	_ = through(c)
	c.Candidacy(c.DB, "r", "w").Grant()
	return through(c) // it is told, unlike the one before
}

// through opens a connection of worker w through the proxy.
func through(c *fixture.Cluster) *pgx.Conn {
	c.T.Helper()
	return as(c, "w")
}

// as connects a worker through the proxy.
func as(c *fixture.Cluster, worker string) *pgx.Conn {
	c.T.Helper()
	conn, err := connectAs(c, worker)
	if err != nil {
		c.T.Fatalf("connect as %s: %v", worker, err)
	}
	return conn
}

func connectAs(c *fixture.Cluster, worker string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig("postgres://app@" + c.Addr + "/" + c.DB + "?sslmode=disable")
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["fencepost.resource"], cfg.RuntimeParams["fencepost.worker"] = "r", worker
	conn, err := pgx.ConnectConfig(context.Background(), cfg)
	if err == nil {
		c.T.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	return conn, err
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

func stateOf(err error) string {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &pg):
		return pg.Code
	default:
		return err.Error()
	}
}
