package system

import (
	"net/http"
	"strings"
	"syscall"
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

// TestServeEndsSoonWhilePostgresIsFrozen ends a proxy with a worker in a transaction and one
// whose backend is registered, while nothing answers.
func TestServeEndsSoonWhilePostgresIsFrozen(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			const drain, more = time.Second, 8 * time.Second
			h := newCluster(t, provider, onServer(pgtest.Start(t)), with("DRAIN_TIMEOUT="+drain.String()))
			p := h.proxy()
			h.join(p, "leader", "campaign", "wait").must("BEGIN", "INSERT INTO work VALUES ('leader')")
			other := h.join(p, "other", "resource", "another", "campaign", "wait")
			go func() { _ = other.exec("DO $$BEGIN PERFORM pg_sleep(600); END$$") }()
			process.Eventually(t, process.Patience, "a backend to be registered", func() bool {
				return ask[int](h, "SELECT count(*) FROM fencepost.running") == 1
			})
			h.pg.Freeze(t)
			process.Eventually(t, process.Patience, "the proxy to notice", func() bool {
				code, _ := p.Get(t, "/readyz")
				return code == http.StatusServiceUnavailable
			})
			began := time.Now()
			p.Signal(t, syscall.SIGTERM)
			<-p.Done
			took := time.Since(began)
			t.Logf("the proxy ended after %v", took)
			if took > drain+more {
				t.Errorf("the proxy ended after %v, with a drain_timeout of %v", took, drain)
			}
		})
	}
}
