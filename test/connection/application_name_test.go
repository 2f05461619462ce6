package connection

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
)

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
