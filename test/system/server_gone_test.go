package system

import (
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAWaitingWorkerWhoseServerIsGoneDoesNotWaitOn: it would be given the lease when
// its turn comes, but could not use it.
func TestAWaitingWorkerWhoseServerIsGoneDoesNotWaitOn(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p := h.proxy()
	leader := h.join(p, "leader", "campaign", "wait")
	leader.must("INSERT INTO work VALUES ('before')")
	ended := make(chan error, 1)
	go func() {
		_, err := h.tryJoin(process.Patience, p, "waiter", "campaign", "wait")
		ended <- err
	}()
	const waiter = "usename = $1 AND datname = $2 AND pid <> $3"
	args := []any{pgtest.App, h.db, int32(leader.PgConn().PID())}
	process.Eventually(t, process.Patience, "the waiting worker's backend", func() bool {
		return ask[int](h, "SELECT count(*) FROM pg_stat_activity WHERE "+waiter, args...) == 1
	})
	process.Eventually(t, process.Patience, "the worker to wait", func() bool {
		_, resources := p.Get(t, "/v1/resources")
		return strings.Contains(resources, `"waiter"`)
	})
	ask[bool](h, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "+waiter, args...)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a worker was given a connection without a server")
		}
	case <-time.After(5 * time.Second):
		t.Error("it is still waiting")
		leader.leave()
		<-ended
	}
}

// TestNothingIsLedWhilePostgresIsFrozen uses Consul, which goes on confirming the lease.
func TestNothingIsLedWhilePostgresIsFrozen(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "consul", onServer(pgtest.Start(t)))
	p := h.proxy()
	h.join(p, "leader", "campaign", "wait")
	h.awaitState("led", "leader", p)
	thaw := h.pg.Freeze(t)
	h.awaitState("unknown", "", p)
	thaw()
	h.awaitState("led", "leader", p)
}
