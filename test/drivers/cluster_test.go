package drivers

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// resource is the resource that every worker here competes for, each in its own
// database.
const resource = "billing"

// schema is the schema that the programs use.
const schema = `
CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL);
CREATE TABLE event (id serial PRIMARY KEY, what text NOT NULL);
CREATE TABLE typed (id serial PRIMARY KEY, i4 int, i8 bigint, num numeric(10,2), txt text, yes boolean, raw bytea,
	at timestamptz, doc jsonb, list int[], uid uuid, nothing text);
CREATE PROCEDURE chunks(n int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..n LOOP INSERT INTO event (what) VALUES ('chunk'); COMMIT; END LOOP;
END $$;
CREATE FUNCTION reset_all() RETURNS void LANGUAGE sql AS $$
	DELETE FROM event; DELETE FROM typed; DELETE FROM account;
	INSERT INTO account SELECT g, 100 FROM generate_series(1, 100) g;
$$;
SELECT reset_all();
`

// servers are the PostgreSQL servers of this test process: the default one, and 18.
var servers = map[string]func(testing.TB) *pgtest.Server{
	"default": pgtest.Shared,
	"18":      func(t testing.TB) *pgtest.Server { return pgtest.SharedMajor(t, 18) },
}

// cluster is a database on a server, and a proxy in front of that server.
type cluster struct {
	pg    *pgtest.Server
	proxy string // host:port
	db    string
}

// onEachServer runs test on every server, behind one proxy for all of its cases.
func onEachServer(t *testing.T, test func(t *testing.T, pg *pgtest.Server, proxy string)) {
	t.Helper()
	for name, server := range servers {
		if !fencing.Checking && name != "default" {
			continue // one server is enough to show that a test fails without the check
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := server(t)
			test(t, pg, startProxy(t, pg))
		})
	}
}

func newCluster(t testing.TB, pg *pgtest.Server, proxy string) *cluster {
	t.Helper()
	h := &cluster{pg: pg, proxy: proxy, db: pg.Database(t)}
	pg.Exec(t, pgtest.App, h.db, schema)
	return h
}

// connect opens a connection to the address as the application's role, with these
// startup parameters.
func (h *cluster) connect(t testing.TB, address string, params map[string]string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", pgtest.App, address, h.db))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range params {
		config.RuntimeParams[name] = value
	}
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatalf("connect to %s with %v: %v", address, params, err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// ask reads one text value directly from PostgreSQL.
func (h *cluster) ask(t testing.TB, sql string) string {
	t.Helper()
	return pgtest.Ask[string](t, h.pg, h.db, sql)
}

// startProxy runs fencepost serve in front of a server until the test ends, with these
// settings more, and returns the address at which it serves.
func startProxy(t testing.TB, pg *pgtest.Server, more ...string) string {
	t.Helper()
	return process.Serve(t, append(more, "FENCEPOST_LISTEN=127.0.0.1:0", "FENCEPOST_ADMIN=127.0.0.1:0",
		"FENCEPOST_UPSTREAM_ADDRESS="+pg.Addr(), "FENCEPOST_CONTROL_USER="+pgtest.Control, "FENCEPOST_LEASE_GRACE=200ms")...).Address
}

// at returns the variables that make a program connect to the address. If worker is
// empty, no worker is named; more are settings name=value.
func (h *cluster) at(t testing.TB, address, worker string, more ...string) []string {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"PGHOST=" + host, "PGPORT=" + port, "PGDATABASE=" + h.db, "PGUSER=" + pgtest.App, "PGSSLMODE=disable"}
	if worker != "" {
		settings := append([]string{"fencepost.resource=" + resource, "fencepost.worker=" + worker}, more...)
		env = append(env, "PGOPTIONS=-c "+strings.Join(settings, " -c "))
	}
	return env
}
