package system

import (
	"fmt"
	"strings"
	"sync"
	"testing"

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
