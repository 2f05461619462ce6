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
