package system

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// restartTTL is the TTL in cases in which a lease must expire.
const restartTTL = 2 * time.Second

// killedBounds is the longest time, by provider, from the death of a proxy to a grant at another one.
var killedBounds = map[string]time.Duration{
	"postgres": restartTTL + time.Second,
	"redis":    restartTTL + time.Second + time.Second,   // what has expired is looked for once a second
	"consul":   2*restartTTL + time.Second + time.Second, // Consul doubles a TTL, and blocks a lost lock for the lock delay
}

// TestPostgresRestartsUnderLoad checks that nothing is done in part, nothing that was
// acknowledged is lost, and the work resumes by itself.
func TestPostgresRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]pgtest.Mode{"fast": pgtest.Fast, "immediate": pgtest.Immediate} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChaos(t, "postgres", "LEASE_TTL="+restartTTL.String())
			for range 2 {
				c.works(10)
				c.r.note("stop Postgres: %s", name)
				c.pg.Stop(t, stop)
				c.pg.Restart(t)
				up, watch := time.Now(), startWatch(t)
				c.r.note("Postgres is up")
				if took := c.awaitWork(up); watch.late(t, took, restartTTL+slack) {
					t.Errorf("the first increment came %s after Postgres was up; the TTL is %s", took, restartTTL)
				} else {
					t.Logf("the first increment came %s after Postgres was up", took)
				}
			}
			c.finish()
		})
	}
}

// TestAProxyIsKilledUnderLoad checks that nothing is done in part, and that the workers
// of the other proxy have a leader as soon as the lease is over.
func TestAProxyIsKilledUnderLoad(t *testing.T) {
	t.Parallel()
	for provider, bound := range killedBounds {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			c := newPinnedChaos(t, provider, "LEASE_TTL="+restartTTL.String())
			c.works(10)
			place := c.leadersPlace()
			other := c.proxies[1-place]
			c.r.note("kill the leader's proxy")
			killed, watch := time.Now(), startWatch(t)
			c.proxies[place].Kill(t)
			var granted time.Time
			process.Eventually(t, process.Patience, "a grant at the other proxy", func() bool {
				for _, line := range other.Lines("takeover") {
					if at := line.At(t); granted.IsZero() && at.After(killed) {
						granted = at
					}
				}
				return !granted.IsZero()
			})
			took := granted.Sub(killed)
			t.Logf("a new leader %s after the proxy was killed; the bound is %s", took, bound)
			if watch.late(t, took, bound) {
				t.Errorf("a new leader %s after the proxy was killed; the bound is %s", took, bound)
			}
			c.awaitWork(killed)
			c.finish()
		})
	}
}

// works waits for some more increments.
func (c *chaos) works(more int) {
	c.t.Helper()
	want := c.r.successes() + more
	process.Eventually(c.t, process.Patience, fmt.Sprintf("%d increments", want), func() bool { return c.r.successes() >= want })
}

// awaitWork returns how long after at the first increment was acknowledged.
func (c *chaos) awaitWork(at time.Time) (took time.Duration) {
	c.t.Helper()
	process.Eventually(c.t, process.Patience, "an increment", func() (ok bool) {
		took, ok = c.r.after(at)
		return ok
	})
	return took
}

// leadersPlace returns the place of the proxy that the leader is connected to.
func (c *chaos) leadersPlace() int {
	c.t.Helper()
	place := -1
	process.Eventually(c.t, process.Patience, "a leader", func() bool {
		leader := c.leader()
		for i, w := range c.workers {
			if w == leader {
				place = i % len(c.proxies)
			}
		}
		return place >= 0
	})
	return place
}
