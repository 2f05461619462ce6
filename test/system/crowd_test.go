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

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

// crowdSize is more workers than Consul accepts connections from one address, which are crowdLimit here.
const crowdSize, crowdLimit = 60, 30

// TestACrowdFollows lets many workers follow a leader at one proxy. When the leader
// ends, one of them becomes leader, and the others learn that they are not.
func TestACrowdFollows(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "consul", with(long), withConsul(consultest.Start(t, consultest.WithConnections(crowdLimit))))
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

// TestNoOneMakesResourcesWithoutEnd lets one role ask for twice as many resources as there may be. It is
// stopped at the limit, and when it has left, nothing but the rows remains.
func TestNoOneMakesResourcesWithoutEnd(t *testing.T) {
	t.Parallel()
	const limit, asked = 40, 80
	h := newCluster(t, "postgres", with(fmt.Sprintf("LIMITS_MAX_RESOURCES=%d", limit+1), "LIMITS_RESOURCE_IDLE=1s"))
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
	process.Eventually(t, process.Patience, "all goroutines to be gone", func() bool { return goroutines(t, p) < before+limit/2 })
	exists := ask[string](h, "SELECT max(resource) FROM fencepost.fence")
	h.join(p, "after", "resource", exists).must("INSERT INTO work VALUES ('after')") // existing resources keep working
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
