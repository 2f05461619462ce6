package drivers

import (
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture"
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

// cluster is a database, and a proxy in front of its server.
type cluster struct {
	pg    *pgtest.Server
	proxy *process.Server
	db    string
}

// onEachServer runs test on each server, behind one proxy for all of its cases.
func onEachServer(t *testing.T, test func(t *testing.T, pg *pgtest.Server, proxy *process.Server)) {
	t.Helper()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) { test(t, pg, serve(t, pg)) })
}

// serve runs fencepost serve in front of a server until the test ends. Connecting waits for the
// first attempt to lead, however long that takes.
func serve(t testing.TB, pg *pgtest.Server, settings ...string) *process.Server {
	t.Helper()
	return process.ServeOn(t, pg, append([]string{"FENCEPOST_LEASE_GRACE=" + leaseGrace.String(), "FENCEPOST_STARTUP_WAIT=30s"}, settings...)...)
}

func newCluster(t testing.TB, pg *pgtest.Server, proxy *process.Server) *cluster {
	t.Helper()
	h := &cluster{pg: pg, proxy: proxy, db: pg.Database(t)}
	pg.Exec(t, pgtest.App, h.db, schema)
	return h
}

// join connects a worker of the test itself through the proxy. params are more parameters of
// Fencepost's: name, value, ...
func (h *cluster) join(t testing.TB, worker string, params ...string) *pgx.Conn {
	t.Helper()
	return h.proxy.Connect(t, pgtest.App, h.db, append([]string{"resource", resource, "worker", worker, "worker_timeout", "0"}, params...)...)
}

// ask reads one text value directly from PostgreSQL.
func (h *cluster) ask(t testing.TB, sql string) string {
	t.Helper()
	return pgtest.Ask[string](t, h.pg, h.db, sql)
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
