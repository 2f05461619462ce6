package connection

import (
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// TestANameThatComesTooLateForItsRoute: where the writes of a connection would pass unfenced, it ends before any does.
func TestANameThatComesTooLateForItsRoute(t *testing.T) {
	t.Parallel()
	const late = "a connection has set an application_name that a route matches, too late for that route"
	core, log := observer.New(zap.WarnLevel)
	p := fixture.NewProxy(t, pgtest.Shared(t), func(c *proxy.Config) {
		c.Logger = zap.New(core)
		c.Policy = func(r fencing.JoinRequest) (s proxy.SessionPolicy) {
			if r.User == pgtest.Superuser {
				s.Unfenced = proxy.UnfencedAllow
			}
			if r.Resource == "" && r.ApplicationName == "invoicer-1" {
				s.Route = proxy.Route{Name: "routes.1", Resource: "billing"}
			}
			return s
		}
	})
	db := p.PG.Database(t)
	admin := p.PG.Connect(t, pgtest.Superuser, db)
	for name, send := range map[string][]byte{
		"a Query": Q("SET application_name = 'invoicer-1'"),
		"a batch": Cat(wiretest.Run("SET application_name = 'invoicer-1'"), wiretest.Sync()),
	} {
		conn, _ := wiretest.Connect(t, p.Addr, "user", pgtest.Superuser, "database", db)
		conn.Exec("SET application_name = 'another'")
		conn.Send(send)
		if f := fixture.FatalError(t, conn.Rest()); f['C'] != "22023" || !strings.Contains(f['M'], "routes.1") || !strings.Contains(f['H'], "assumeMinServerVersion=9.0") {
			t.Errorf("%s: the session ends with %v", name, f)
		}
	}
	fixture.Eventually(t, "their backends to end", func() bool {
		var n int
		err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'invoicer-1'").Scan(&n)
		return err == nil && n == 0
	})
	reader, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db)
	reader.Exec("SET application_name = 'invoicer-1'")
	fixture.MustFail(t, reader, fencing.StateNotLeader, wiretest.Query("create table refused ()"))
	worker, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db, "fencepost.resource", "r")
	worker.Exec("SET application_name = 'invoicer-1'")
	worker.Exec("SELECT")
	if lines := log.FilterMessage(late).All(); len(lines) != 1 || lines[0].ContextMap()["route"] != "routes.1" {
		t.Errorf("the log says %v, want one line", lines)
	}
}

// TestApplicationNameOfAWorker: with the policy that names workers, Postgres and the client are told
// that name, and it is the default of the session.
func TestApplicationNameOfAWorker(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), func(c *proxy.Config) {
		c.Policy = func(fencing.JoinRequest) proxy.SessionPolicy {
			return proxy.SessionPolicy{Identity: proxy.IdentityProxy, NameWorker: true}
		}
	})
	db := p.PG.Database(t)
	admin := p.PG.Connect(t, pgtest.Superuser, db)
	worker := []string{"fencepost.resource", "billing", "fencepost.worker", "host-7:4242"}
	for name, c := range map[string]struct {
		own, params []string
		want        string
	}{
		"no name":               {worker, nil, "billing/host-7:4242"},
		"in other letters":      {worker, []string{"Application_Name", "psql"}, "psql [billing/host-7:4242]"},
		"two names":             {worker, []string{"application_name", "one", "application_name", "two"}, "two [billing/host-7:4242]"},
		"in options":            {worker, []string{"options", "-c application_name=psql -c work_mem=5MB"}, "psql [billing/host-7:4242]"},
		"in options and beside": {worker, []string{"application_name", "beside", "options", "-c application_name=in"}, "beside [billing/host-7:4242]"},
		"no worker":             {worker[:2], nil, "billing/proxy:test"},
		"no resource":           {nil, []string{"application_name", "psql"}, "psql"},
	} {
		conn, greeting := wiretest.Connect(t, p.Addr, append(append([]string{"user", pgtest.App, "database", db}, c.own...), c.params...)...)
		if got := reported(greeting, "application_name"); got != c.want {
			t.Errorf("%s: the client is told %q, want %q", name, got, c.want)
		}
		fixture.AwaitBackend(t, admin, "application_name = '"+c.want+"' and usename = '"+pgtest.App+"'")
		conn.Exec("set application_name = 'later'")
		if got := fixture.FirstValue(t, conn.Exec("show application_name")); got != "later" {
			t.Errorf("%s: after a SET it is %q", name, got)
		}
		conn.Exec("reset all")
		if got := fixture.FirstValue(t, conn.Exec("show application_name")); got != c.want {
			t.Errorf("%s: after RESET ALL it is %q, want %q", name, got, c.want)
		}
		_ = conn.Close()
	}
}
