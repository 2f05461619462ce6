package system

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// TestAWorkerThatMovesDoesNotWaitForTheLinger: it leaves one proxy in order, which keeps its lease for it, and
// comes back through another.
func TestAWorkerThatMovesDoesNotWaitForTheLinger(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with("LEASE_LINGER=10m", long))
	one, two := h.proxy(), h.proxy()
	h.join(one, "a", "campaign", "wait").leave()
	first := h.join(one, "a", "campaign", "wait") // the linger is for this
	first.must("INSERT INTO work VALUES ('kept')")
	if epoch := h.epoch(); epoch != 1 {
		t.Errorf("the worker that came back has epoch %d", epoch)
	}
	first.leave()
	other := h.join(two, "b")
	if err := other.exec("INSERT INTO work VALUES ('b')"); stateOf(err) != fencing.StateNotLeader {
		t.Errorf("another worker writes while the lease is kept: %v", err)
	}
	other.leave() // it could take the lease too, once that is released
	h.join(two, "a", "campaign", "wait").must("INSERT INTO work VALUES ('moved')")
	one.Await(t, "the worker has come back through another proxy: its lease is not kept here any longer", "worker", "a")
}

// BenchmarkKilledProxy measures how long a worker commits nothing that connects to another proxy when its own is killed.
func BenchmarkKilledProxy(b *testing.B) {
	for _, provider := range allProviders {
		b.Run(provider, func(b *testing.B) {
			h := newCluster(b, provider, with(long))
			reportTakeovers(b, func(int) time.Duration {
				one, two := h.proxy(), h.proxy()
				h.join(one, "a", "campaign", "wait").must("INSERT INTO work VALUES ('first')")
				at := time.Now()
				one.Kill(b)
				second := h.join(two, "a", "campaign", "wait")
				second.must("INSERT INTO work VALUES ('second')")
				took := time.Since(at)
				second.leave()
				two.End()
				return took
			})
		})
	}
}
