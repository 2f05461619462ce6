package system

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestNothingIsLedWhilePostgresIsFrozen uses Consul, which goes on confirming the lease.
func TestNothingIsLedWhilePostgresIsFrozen(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "consul", onServer(pgtest.Start(t)))
	p := h.proxy()
	h.join(p, "leader", "campaign", "wait")
	h.awaitState("led", "leader", p)
	h.pg.Freeze(t)
	h.awaitState("unknown", "", p)
	h.pg.Thaw(t)
	h.awaitState("led", "leader", p)
}

// TestServeEndsSoonWhilePostgresIsFrozen ends a proxy with a worker in a transaction and one
// whose backend is registered, while nothing answers.
func TestServeEndsSoonWhilePostgresIsFrozen(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", onServer(pgtest.Start(t)), with("DRAIN_TIMEOUT=1s"))
	p := h.proxy()
	h.join(p, "leader", "campaign", "wait").must("BEGIN", "INSERT INTO work VALUES ('leader')")
	other := h.join(p, "other", "resource", "another", "campaign", "wait")
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = other.exec("DO $$BEGIN PERFORM pg_sleep(600); END$$")
	}()
	process.Eventually(t, process.Patience, "both leaders' backends to be registered", func() bool {
		return ask[int](h, "SELECT count(*) FROM fencepost.running") == 2
	})
	h.pg.Freeze(t)
	process.Eventually(t, process.Patience, "the proxy to notice", func() bool {
		code, _ := p.Get(t, "/readyz")
		return code == http.StatusServiceUnavailable
	})
	p.Signal(t, syscall.SIGTERM)
	p.Wait(t)
	<-over
}

// TestSafetyAProxyThatIsCutOffFromPostgres: Consul would confirm the lease of its leader for as long as the proxy asks for
// that, so the proxy gives the lease back, and a worker of another proxy leads. What arrives late does not commit.
func TestSafetyAProxyThatIsCutOffFromPostgres(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "consul", with("LEASE_TTL=6s"))
	var cut atomic.Bool
	mended := make(chan struct{})
	mend := sync.OnceFunc(func() { close(mended) })
	held := func(b []byte) []byte {
		if cut.Load() {
			<-mended
		}
		return b
	}
	relay := fixture.NewRelay(t, "tcp", h.pg.Addr(), func() fixture.Passing { return fixture.Passing{ToServer: held, ToClient: held} })
	t.Cleanup(mend) // before the relay waits for its connections
	p, q := h.proxy("UPSTREAM_ADDRESS="+relay.Addr), h.proxy()
	former := h.join(p, "former", "campaign", "wait")
	former.must("INSERT INTO work VALUES ('former')")
	next := h.join(q, "next")
	cut.Store(true)
	late := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*process.Patience)
		defer cancel()
		_, err := former.Exec(ctx, "INSERT INTO work VALUES ('late')")
		late <- err
	}()
	process.Eventually(t, process.Patience, "a worker of the other proxy to lead", func() bool { return next.exec("INSERT INTO work VALUES ('next')") == nil })
	mend()
	if err := <-late; stateOf(err) != fencing.StateSuperseded {
		t.Errorf("the late write of the former leader: %v, want %s", err, fencing.StateSuperseded)
	}
	if got := h.works(); !slices.Equal(got, []string{"former", "next"}) {
		t.Errorf("written: %v", got)
	}
}
