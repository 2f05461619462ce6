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

// TestPostgresRestartLeavesNoOneWithoutALeader: a restart of Postgres ends every
// connection of both proxies at once, the leader's and those of the waiting workers.
// One of them must lead although the leader's worker does not come back, long before the
// lease would expire.
func TestPostgresRestartLeavesNoOneWithoutALeader(t *testing.T) {
	t.Parallel()
	for provider, stop := range map[string]pgtest.Mode{"postgres": pgtest.Immediate, "consul": pgtest.Fast} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider, onServer(pgtest.Start(t)), with(long))
			one, two := h.proxy(), h.proxy()
			leader := h.join(one, "leader", "campaign", "wait")
			leader.must("INSERT INTO work VALUES ('before')")
			q := h.queue(map[*process.Server]int{one: 2, two: 2})
			h.pg.Stop(t, stop)
			h.pg.Restart(t)
			q.next(t)
			q.end()
		})
	}
}

// queue is workers that wait to lead. A worker that leads writes once, reports it, and
// stays.
type queue struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wrote  chan struct{}
}

// queue starts the given number of workers at each proxy, and returns when all of them
// have tried to connect.
func (h *cluster) queue(at map[*process.Server]int) *queue {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	q := &queue{cancel: cancel, wrote: make(chan struct{}, 100)}
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
			q.wrote <- struct{}{}
			<-ctx.Done()
		}
		closing, cancel := context.WithTimeout(context.Background(), process.Patience)
		_ = conn.Close(closing)
		cancel()
	}
}

// next waits until another worker has written.
func (q *queue) next(t testing.TB) {
	t.Helper()
	select {
	case <-q.wrote:
	case <-time.After(process.Patience):
		t.Fatal("nobody leads")
	}
}

func (q *queue) end() {
	q.cancel()
	q.wg.Wait()
}
