package system

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

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

// TestNobodyMakesResourcesWithoutEnd lets one role ask for five times as many resources as there may be. It is
// stopped at the limit, and when it has left, nothing but the rows remains.
func TestNobodyMakesResourcesWithoutEnd(t *testing.T) {
	t.Parallel()
	const limit, asked = 40, 200
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider, with(fmt.Sprintf("LIMITS_MAX_RESOURCES=%d", limit+1), "LIMITS_RESOURCE_IDLE=1s"))
			p := h.proxy()
			h.join(p, "before").leave() // opens the database; its resource exceeds the limit by one
			process.Eventually(t, process.Patience, "it to be forgotten", func() bool { return metricLines(t, p) == 0 })
			before := goroutines(t, p)
			var made, refused atomic.Int64
			var group errgroup.Group
			group.SetLimit(8)
			for i := range asked {
				group.Go(func() error {
					c, err := h.tryJoin(process.Patience, p, "mallory", "resource", fmt.Sprint("made-up-", i))
					var failure *pgconn.PgError
					switch {
					case err == nil:
						made.Add(1)
						c.leave()
					case errors.As(err, &failure) && failure.Code == "53400" && strings.Contains(failure.Hint, "limits.max_resources"):
						refused.Add(1)
					default:
						return err
					}
					return nil
				})
			}
			if err := group.Wait(); err != nil {
				t.Fatalf("neither connected nor refused by the limit: %v", err)
			}
			if made.Load() != limit || refused.Load() != asked-limit {
				t.Errorf("%d were created and %d refused, want %d and %d", made.Load(), refused.Load(), limit, asked-limit)
			}
			if rows := ask[int](h, "SELECT count(*) FROM fencepost.fence"); rows != limit+1 {
				t.Errorf("the fence table has %d rows", rows)
			}
			process.Eventually(t, process.Patience, "all lines of metrics to be gone", func() bool { return metricLines(t, p) == 0 })
			// The proxy keeps up to eight idle connections to Consul for longer than this
			// test waits, with two goroutines each; one left for each resource would exceed
			// the margin.
			process.Eventually(t, process.Patience, "all goroutines to be gone", func() bool { return goroutines(t, p) < before+limit/2 })
			exists := ask[string](h, "SELECT max(resource) FROM fencepost.fence")
			h.join(p, "after", "resource", exists).must("INSERT INTO work VALUES ('after')") // existing resources keep working
		})
	}
}

var (
	goroutineLine = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)
	resourceLine  = regexp.MustCompile(`(?m)^fencepost_.*resource=.*$`)
)

// goroutines returns how many goroutines the proxy has.
func goroutines(t testing.TB, p *process.Server) int {
	t.Helper()
	_, metrics := p.Get(t, "/metrics")
	n, err := strconv.Atoi(goroutineLine.FindStringSubmatch(metrics)[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// metricLines returns how many lines of metrics are about resources.
func metricLines(t testing.TB, p *process.Server) int {
	t.Helper()
	_, metrics := p.Get(t, "/metrics")
	return len(resourceLine.FindAllString(metrics, -1))
}
