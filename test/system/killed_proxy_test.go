package system

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

const (
	// ownConnections is how many connections of the worker write.
	ownConnections = 3
	// ownTTL is a TTL that no case waits for.
	ownTTL = time.Minute
	// ownRetry is the pause after a write that was refused because the worker does not lead.
	ownRetry = 5 * time.Millisecond
)

// ownWriters is one worker under load whose DSN names two proxies.
type ownWriters struct {
	h    *cluster
	dsn  atomic.Pointer[string]
	stop chan struct{}
	all  sync.WaitGroup
	told sync.WaitGroup // counts the connections that have not seen the end
	last atomic.Int64   // the number of the last write that was begun

	mu       sync.Mutex
	wrote    []ownWrite
	failures map[string]int // by SQLSTATE
}

// ownWrite is a write that was acknowledged.
type ownWrite struct {
	what    string
	address string // of the proxy
	at      time.Time
}

// through makes the connections that are opened from now on try these proxies, in this order.
func (w *ownWriters) through(first, second *process.Server) {
	dsn, err := url.Parse(w.h.dsn(first, "a"))
	if err != nil {
		w.h.t.Fatal(err)
	}
	dsn.Host = first.Address + "," + second.Address
	text := dsn.String()
	w.dsn.Store(&text)
}

// start has one connection write after the other until the end.
func (w *ownWriters) start() {
	w.told.Add(1)
	w.all.Go(func() {
		seen := sync.OnceFunc(w.told.Done)
		defer seen()
		for !w.ended() {
			if err := w.connected(seen); err != nil {
				w.failed(err)
			}
		}
	})
}

func (w *ownWriters) ended() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

func (w *ownWriters) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures[stateOf(err)]++
}

// connected writes over one connection until that fails for good. At the end it says that it has seen it, and stays until
// all others have: one that was just connecting would find that the worker has left, and lead again.
func (w *ownWriters) connected(seen func()) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*process.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, *w.dsn.Load())
	if err != nil {
		return err
	}
	defer conn.Close(ctx) // it may be broken, as the case intends
	address := conn.PgConn().Conn().RemoteAddr().String()
	for !w.ended() {
		what := fmt.Sprint(w.last.Add(1))
		_, err := conn.Exec(ctx, "INSERT INTO work VALUES ('"+what+"')")
		switch stateOf(err) {
		case fencing.StateNotLeader:
			w.failed(err)
			time.Sleep(ownRetry)
			continue
		case fencing.StateStartOver:
			w.failed(err)
			continue
		}
		if err != nil {
			return err
		}
		w.mu.Lock()
		w.wrote = append(w.wrote, ownWrite{what, address, time.Now()})
		w.mu.Unlock()
	}
	seen()
	w.told.Wait()
	return nil
}

// by returns the acknowledged writes through a proxy.
func (w *ownWriters) by(p *process.Server) (writes []ownWrite) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.wrote {
		if one.address == p.Address {
			writes = append(writes, one)
		}
	}
	return writes
}

// kills kills the proxy through which a worker writes so many times, and returns how long each time
// nothing was committed.
func kills(h *cluster, times int) (gaps []time.Duration) {
	h.t.Helper()
	w := &ownWriters{h: h, stop: make(chan struct{}), failures: map[string]int{}}
	one, two := h.proxy(), h.proxy()
	w.through(one, two)
	for range ownConnections {
		w.start()
	}
	defer func() {
		close(w.stop)
		w.all.Wait()
		w.verify(times)
	}()
	for range times {
		process.Eventually(h.t, process.Patience, "the worker to write", func() bool { return len(w.by(one)) > 20 })
		at, watch := time.Now(), startWatch(h.t)
		one.Kill(h.t)
		process.Eventually(h.t, process.Patience, "the worker to write through the other proxy", func() bool { return len(w.by(two)) > 0 })
		gap := w.by(two)[0].at.Sub(at)
		if watch.late(h.t, gap, ownTTL/4) {
			h.t.Errorf("no commits for %v, the TTL is %v", gap, ownTTL)
		}
		gaps = append(gaps, gap)
		one, two = two, h.proxy()
		w.through(one, two)
	}
	return gaps
}

// verify fails the test unless everything that was acknowledged is there, and each kill has cost one
// epoch.
func (w *ownWriters) verify(kills int) {
	there := map[string]bool{}
	for _, what := range w.h.works() {
		there[what] = true
	}
	for _, one := range w.wrote {
		if !there[one.what] {
			w.h.t.Errorf("write %s was acknowledged and is not there", one.what)
		}
	}
	if got, want := w.h.granted(), strings.TrimSpace(strings.Repeat("a ", kills+1)); got != want {
		w.h.t.Errorf("granted to %q, want %q", got, want)
	}
	w.h.t.Logf("%d writes, failures by SQLSTATE %v", len(w.wrote), w.failures)
}

// TestAKilledProxyCostsItsWorkerNoTTL: the worker's next connection takes its own lease away from the
// proxy that is gone.
func TestAKilledProxyCostsItsWorkerNoTTL(t *testing.T) {
	t.Parallel()
	for _, provider := range allProviders {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			gaps := kills(newCluster(t, provider, with("LEASE_TTL="+ownTTL.String())), 3)
			t.Logf("no commits for %v, the TTL is %v", gaps, ownTTL)
		})
	}
}

// TestAWorkerThatMovesDoesNotWaitForTheLinger: it leaves one proxy in order, which keeps its lease for it, and
// comes back through another.
func TestAWorkerThatMovesDoesNotWaitForTheLinger(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider, with("LEASE_LINGER=10m", "LEASE_TTL="+ownTTL.String()))
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
		})
	}
}

// TestTwoProcessesOfOneNameDoNotTradeTheLease: they write through two proxies that are there.
func TestTwoProcessesOfOneNameDoNotTradeTheLease(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider, with("LEASE_TTL="+ownTTL.String()))
			one, two := h.proxy(), h.proxy()
			a := h.join(one, "a", "campaign", "wait")
			a.must("INSERT INTO work VALUES ('first')")
			second := h.join(two, "a")
			two.Await(t, "another proxy, which is there, holds the lease under the same worker id: the worker has just left it, or two processes have one id", "worker", "a")
			for i := range 10 {
				if err := second.exec("INSERT INTO work VALUES ('second')"); stateOf(err) != fencing.StateNotLeader {
					t.Errorf("write %d of the second process: %v", i, err)
				}
				a.must("INSERT INTO work VALUES ('first')")
				if i%3 == 2 { // both connect again
					second.leave()
					second = h.join(two, "a")
					h.join(one, "a").must("INSERT INTO work VALUES ('first')")
				}
			}
			if got := h.granted(); got != "a" {
				t.Errorf("granted to %q", got)
			}
		})
	}
}

// BenchmarkKilledProxy measures how long a worker under load, whose DSN names two proxies, commits
// nothing when its proxy is killed.
func BenchmarkKilledProxy(b *testing.B) {
	for _, provider := range allProviders {
		b.Run(provider, func(b *testing.B) {
			gaps := kills(newCluster(b, provider, with("LEASE_TTL="+ownTTL.String())), b.N)
			slices.Sort(gaps)
			b.ReportMetric(milliseconds(gaps[len(gaps)/2]), "ms/median")
			b.ReportMetric(milliseconds(gaps[(len(gaps)*99-1)/100]), "ms/p99")
			b.ReportMetric(0, "ns/op") // it waits for load
		})
	}
}
