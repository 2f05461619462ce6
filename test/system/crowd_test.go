package system

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// crowdSize is more workers than Consul accepts connections from one address.
const crowdSize = 220

// TestACrowdFollows lets many workers follow a leader at one proxy. When the leader
// ends, one of them becomes leader, and the others learn that they are not.
func TestACrowdFollows(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Start(t, pgtest.WithConfig(map[string]string{"max_connections": "300"}))
			h := newCluster(t, provider, with(long), onServer(server))
			p := h.proxy()
			leader := h.join(p, "leader", "campaign", "wait")
			workers := make([]*client, crowdSize)
			each(len(workers), func(i int) {
				var err error
				if workers[i], err = h.tryJoin(process.Patience, p, fmt.Sprint("w", i)); err != nil {
					t.Errorf("worker %d: %v", i, err)
				}
			})
			if t.Failed() {
				return
			}
			leader.must("INSERT INTO work VALUES ('leader')")
			leader.leave()
			process.Eventually(t, process.Patience, "another leader", func() bool { return h.epoch() == 2 })
			next := strings.TrimPrefix(h.granted(), "leader ")
			process.Eventually(t, process.Patience, "the next leader to know it", func() bool {
				place, err := strconv.Atoi(strings.TrimPrefix(next, "w"))
				return err != nil || workers[place].show("role") == "leader"
			})

			wrote := make([]error, crowdSize)
			each(len(workers), func(i int) {
				workers[i].show("role") // announces the role to the one that leads
				wrote[i] = workers[i].exec("INSERT INTO work VALUES ('follower')")
			})
			for i, err := range wrote {
				switch leads := fmt.Sprint("w", i) == next; {
				case leads && err != nil:
					t.Errorf("the leader's write: %v", err)
				case !leads && stateOf(err) != fencing.StateNotLeader:
					t.Errorf("a follower's write: %v; want ZF002", err)
				}
			}
			if got := h.granted(); got != "leader "+next || strings.Contains(next, " ") {
				t.Errorf("granted %q; want the leader and one of the crowd", got)
			}
			if got := len(h.works()); got != 2 {
				t.Errorf("%d rows; want one of each leader", got)
			}
		})
	}
}

// each runs f(0) to f(n-1), several at a time.
func each(n int, f func(i int)) {
	var wg sync.WaitGroup
	turns := make(chan struct{}, 16)
	for i := range n {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			f(i)
		})
	}
	wg.Wait()
}

// TestManyTakeoversAtOnce freezes a proxy that holds the leases of many resources, each
// of whose leaders has an open transaction. All takeovers begin when the leases expire,
// and each has to end such a transaction after the grace. The last one must not be
// delayed by their number.
func TestManyTakeoversAtOnce(t *testing.T) {
	t.Parallel()
	const resources = 40
	h := newCluster(t, "postgres", with("LEASE_TTL=10s", "LEASE_GRACE=1s")) // with such a long TTL, unaligned renewals would be noticed
	one, two := h.proxy(), h.proxy()
	at := make(chan time.Time, resources)
	for i := range resources {
		name := fmt.Sprint("many-", i)
		leader := h.join(one, "leader", "resource", name, "campaign", "wait")
		leader.must("BEGIN", "INSERT INTO work VALUES ('unfinished')")
		go func() {
			waiter, err := h.tryJoin(5*process.Patience, two, "waiter", "resource", name, "campaign", "wait")
			if err == nil {
				err = waiter.exec("INSERT INTO work VALUES ('taken')")
			}
			if err != nil {
				t.Errorf("resource %s: %v", name, err)
			}
			at <- time.Now()
		}()
	}
	process.Eventually(t, 2*process.Patience, "all workers wait", func() bool {
		return ask[int](h, "SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND datname = $2", pgtest.App, h.db) == 2*resources
	})
	one.Freeze(t)
	frozen, watch := time.Now(), startWatch(t)
	first, last := <-at, time.Time{}
	for range resources - 1 {
		last = <-at
	}
	one.Thaw(t)
	t.Logf("the first takeover came %v after the proxy froze, the last %v after the first", first.Sub(frozen), last.Sub(first))
	if spread := last.Sub(first); watch.late(t, spread, 2*time.Second-slack) {
		t.Errorf("the last takeover came %v after the first", spread)
	}
	if n := ask[int](h, "SELECT count(*) FROM work WHERE what = 'taken'"); n != resources {
		t.Errorf("%d workers wrote", n)
	}
}
