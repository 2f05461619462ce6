package system

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// leaderlessTTL is far longer than a takeover may take after a failure of Postgres, so
// that a lease that has to expire is noticed.
const leaderlessTTL = 20 * time.Second

// TestPostgresRestartLeavesNobodyWithoutALeader: a restart of Postgres ends every
// connection of both proxies at once, the leader's and those of the waiting workers.
// One of them must lead within a second of Postgres accepting connections, although the
// leader's worker does not come back.
func TestPostgresRestartLeavesNobodyWithoutALeader(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		for name, stop := range map[string]pgtest.Mode{"fast": pgtest.Fast, "immediate": pgtest.Immediate} {
			t.Run(provider+", "+name, func(t *testing.T) {
				t.Parallel()
				h := newCluster(t, provider, onServer(pgtest.Start(t)), with("LEASE_TTL="+leaderlessTTL.String()))
				one, two := h.proxy(), h.proxy()
				for _, down := range []time.Duration{0, 2 * time.Second} {
					leader := h.join(one, fmt.Sprint("leader-", down), "campaign", "wait")
					leader.must("INSERT INTO work VALUES ('before')")
					q := h.queue(map[*process.Server]int{one: 2, two: 2})
					h.pg.Stop(t, stop)
					time.Sleep(down) // the downtime of Postgres
					h.pg.Restart(t)
					up, watch := time.Now(), startWatch(t)
					took := q.next(t, up)
					t.Logf("%s, %s, down for %v: a worker wrote %v after Postgres accepted connections", provider, name, down, took)
					if watch.late(t, took, time.Second-slack) {
						t.Errorf("down for %v: a worker wrote %v after Postgres accepted connections", down, took)
					}
					q.end()
				}
			})
		}
	}
}

// queue is workers that wait to lead. A worker that leads writes once, reports it, and
// stays.
type queue struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wrote  chan time.Time
}

// queue starts the given number of workers at each proxy, and returns when all of them
// have tried to connect.
func (h *cluster) queue(at map[*process.Server]int) *queue {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	q := &queue{cancel: cancel, wrote: make(chan time.Time, 100)}
	h.t.Cleanup(q.end)
	n := 0
	for p, count := range at {
		for range count {
			n++
			q.wg.Add(1)
			go q.wait(ctx, h.dsn(p, fmt.Sprintf("waiter-%d-%d", n, time.Now().UnixNano()), "campaign", "wait"))
		}
	}
	process.Eventually(h.t, process.Patience, "the workers wait", func() bool {
		return ask[int](h, "SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND datname = $2", pgtest.App, h.db) > n
	})
	return q
}

// wait connects repeatedly until the worker leads and has written.
func (q *queue) wait(ctx context.Context, dsn string) {
	defer q.wg.Done()
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if _, err := conn.Exec(ctx, "INSERT INTO work VALUES ('waiter')"); err == nil {
			q.wrote <- time.Now()
			<-ctx.Done()
		}
		closing, cancel := context.WithTimeout(context.Background(), process.Patience)
		_ = conn.Close(closing)
		cancel()
	}
}

// next returns how long after at the next worker wrote.
func (q *queue) next(t testing.TB, at time.Time) time.Duration {
	t.Helper()
	select {
	case wrote := <-q.wrote:
		return wrote.Sub(at)
	case <-time.After(process.Patience):
		t.Fatal("nobody leads")
		return 0
	}
}

func (q *queue) end() {
	q.cancel()
	q.wg.Wait()
}
