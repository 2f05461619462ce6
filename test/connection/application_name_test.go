package connection

import (
	"slices"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
)

// TestApplicationNameOfAWorker compares what Postgres and the client are told with and without
// the policy that names workers.
func TestApplicationNameOfAWorker(t *testing.T) {
	t.Parallel()
	for _, named := range []bool{false, true} {
		fixture.EachProxy(t, func(t *testing.T, shared *fixture.Proxy, db string) {
			p := fixture.NewProxy(t, shared.PG, func(c *proxy.Config) {
				c.Policy = func(fencing.JoinRequest) proxy.SessionPolicy {
					return proxy.SessionPolicy{Identity: proxy.IdentityProxy, NameWorker: named}
				}
			})
			admin := p.PG.Connect(t, pgtest.Superuser, db)
			worker := []string{"fencepost.resource", "billing", "fencepost.worker", "host-7:4242"}
			for name, c := range map[string]struct {
				own, params   []string
				plain, labels string
			}{
				"no name":               {worker, nil, "", "billing/host-7:4242"},
				"a name":                {worker, []string{"application_name", "psql"}, "psql", "psql [billing/host-7:4242]"},
				"in other letters":      {worker, []string{"Application_Name", "psql"}, "psql", "psql [billing/host-7:4242]"},
				"an empty name":         {worker, []string{"application_name", ""}, "", "billing/host-7:4242"},
				"two names":             {worker, []string{"application_name", "one", "application_name", "two"}, "two", "two [billing/host-7:4242]"},
				"in options":            {worker, []string{"options", "-c application_name=psql -c work_mem=5MB"}, "psql", "psql [billing/host-7:4242]"},
				"in options and beside": {worker, []string{"application_name", "beside", "options", "-c application_name=in"}, "beside", "beside [billing/host-7:4242]"},
				"no worker":             {worker[:2], nil, "", "billing/proxy:test"},
				"no resource":           {nil, []string{"application_name", "psql"}, "psql", "psql"},
			} {
				want := c.plain
				if named {
					want = c.labels
				}
				conn, greeting := wiretest.Connect(t, p.Addr, append(append([]string{"user", pgtest.App, "database", db}, c.own...), c.params...)...)
				if !slices.ContainsFunc(greeting, func(m wiretest.Message) bool {
					return m.Type == 'S' && string(m.Body) == "application_name\x00"+want+"\x00"
				}) {
					t.Errorf("named %v, %s: the client is not told %q: %v", named, name, want, greeting)
				}
				if got := fixture.FirstValue(t, conn.Exec("show application_name")); got != want {
					t.Errorf("named %v, %s: SHOW returns %q, want %q", named, name, got, want)
				}
				fixture.AwaitBackend(t, admin, "application_name = '"+want+"' and usename = '"+pgtest.App+"'")
				conn.Exec("set application_name = 'later'")
				if got := fixture.FirstValue(t, conn.Exec("show application_name")); got != "later" {
					t.Errorf("named %v, %s: after a SET it is %q", named, name, got)
				}
				conn.Exec("reset all")
				if got := fixture.FirstValue(t, conn.Exec("show application_name")); got != want {
					t.Errorf("named %v, %s: after RESET ALL it is %q, want %q", named, name, got, want)
				}
				_ = conn.Close()
			}
		})
	}
}
