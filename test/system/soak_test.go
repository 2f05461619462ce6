package system

import (
	"os"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// systemFaults are faults of proxies, of Postgres, and of the lease service.
var systemFaults = []fault{
	{"a proxy is frozen beyond the TTL", func(c *chaos) {
		p := c.proxies[c.rand.IntN(len(c.proxies))]
		p.Freeze(c.t)
		c.wait(time.Second, 5*time.Second)
		p.Thaw(c.t)
	}},
	{"a proxy is killed and started again", func(c *chaos) {
		i := c.rand.IntN(len(c.proxies))
		c.proxies[i].Kill(c.t)
		c.wait(10*time.Millisecond, time.Second)
		c.proxies[i] = c.replace(c.proxies[i])
	}},
	{"a proxy is ended in order and started again", func(c *chaos) {
		i := c.rand.IntN(len(c.proxies))
		c.proxies[i].End()
		c.proxies[i] = c.replace(c.proxies[i])
	}},
	{"Postgres is restarted", func(c *chaos) { c.pg.Restart(c.t) }},
	{"Postgres crashes", func(c *chaos) { c.pg.Crash(c.t); c.pg.Restart(c.t) }},
	{"the workers' backends are ended", func(c *chaos) {
		c.pg.Exec(c.t, pgtest.Superuser, c.db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+pgtest.App+"'")
	}},
	{"the control role's backends are ended", func(c *chaos) {
		c.pg.Exec(c.t, pgtest.Superuser, c.db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+pgtest.Control+"'")
	}},
	{"the lease service stands still", func(c *chaos) {
		c.consul.Pause(c.t)
		c.wait(time.Second, 5*time.Second)
		c.consul.Continue(c.t)
	}},
}

// TestSoak runs loads under all faults, for FENCEPOST_CHAOS_TIME.
func TestSoak(t *testing.T) {
	t.Parallel()
	length := 25 * time.Second
	if text := os.Getenv("FENCEPOST_CHAOS_TIME"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("FENCEPOST_CHAOS_TIME: %v", err)
		}
	}
	c := newChaos(t, "consul", withConsul(consultest.Start(t)))
	c.run(length, append(systemFaults, workerFaults...))
}

// replace starts a proxy in place of another.
func (c *chaos) replace(old *process.Server) *process.Server {
	return c.proxy("LISTEN="+old.Address, "ADMIN="+old.Admin, "PROXY_ID="+old.ID)
}
