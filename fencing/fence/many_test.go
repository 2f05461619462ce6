package fence_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

// openTransactions is many resources whose leaders all have an open transaction.
type openTransactions struct {
	*fencetest.Database
	fences  []*fence.Fence
	workers []*fencetest.Worker
}

func newOpenTransactions(t *testing.T, n int, grace time.Duration) *openTransactions {
	t.Helper()
	c := &openTransactions{Database: fencetest.New(t, pgtest.Shared(t), func(cfg *fence.Config) { cfg.Grace = grace })}
	for i := range n {
		f, err := c.Fences.Fence(c.Ctx(), fmt.Sprintf("resource %d", i))
		if err != nil {
			t.Fatal(err)
		}
		a := c.AwardOf(f, "old")
		epoch, err := f.Grant(c.Ctx(), a)
		if err != nil {
			t.Fatal(err)
		}
		w := c.Worker(fencing.Term{Award: a, Epoch: epoch})
		w.Fence = f
		w.Claim(c.Ctx(), t, "")
		c.fences, c.workers = append(c.fences, f), append(c.workers, w)
	}
	return c
}

// TestManyTakeoversAtOnceEndTogether checks that each takeover waits for the grace of
// its own resource only, and that no one else waits for any of them.
func TestManyTakeoversAtOnceEndTogether(t *testing.T) {
	t.Parallel()
	const grace, together = 5 * time.Second, 10 * time.Second
	c := newOpenTransactions(t, 40, grace)
	quiet := c.Worker(c.Grant("quiet"))
	var mu sync.Mutex
	var ends []time.Time
	var grants, others sync.WaitGroup
	began, watch, over := time.Now(), stopwatch.Start(t), make(chan struct{})
	for _, f := range c.fences {
		a := c.AwardOf(f, "new")
		grants.Go(func() {
			epoch, err := f.Grant(c.Ctx(), a)
			mu.Lock()
			defer mu.Unlock()
			ends = append(ends, time.Now())
			if err != nil || epoch != 2 {
				t.Errorf("%s: epoch %d, %v", a.Resource, epoch, err)
			}
		})
	}
	var slowest time.Duration
	others.Go(func() {
		for rounds := 0; ; rounds++ {
			select {
			case <-over:
				if rounds < 3 {
					t.Errorf("%d rounds: the test shows nothing", rounds)
				}
				return
			default:
			}
			slowest = max(slowest, c.useOf(quiet))
		}
	})
	grants.Wait()
	close(over)
	others.Wait()
	first, last := ends[0], ends[len(ends)-1]
	t.Logf("the first after %s, the last %s later; the slowest use of another fence %s", first.Sub(began), last.Sub(first), slowest)
	if watch.Late(t, last.Sub(first), together) {
		t.Errorf("the last takeover ended %s after the first; want at most %s", last.Sub(first), together)
	}
	if first.Sub(began) < grace {
		t.Errorf("the first ended after %s, and the grace is %s", first.Sub(began), grace)
	}
	if watch.Late(t, slowest, grace) {
		t.Errorf("Record, Verify, RegisterBackend or UnregisterBackend on another fence took %s", slowest)
	}
}

// useOf runs every operation on the quiet worker's fence, and returns how long the
// slowest took.
func (c *openTransactions) useOf(w *fencetest.Worker) (slowest time.Duration) {
	var note fencing.Entry
	for name, do := range map[string]func() (err error){
		"record": func() (err error) { _, err = c.Fence.Record(c.Ctx()); return err },
		"verify": func() error { return c.Fence.Verify(c.Ctx(), w.Term) },
		"enter": func() (err error) {
			if note, err = c.Fence.RegisterBackend(c.Ctx(), w.Request()); err == nil {
				err = c.Fence.UnregisterBackend(c.Ctx(), note)
			}
			return err
		},
	} {
		began := time.Now()
		if err := do(); err != nil {
			c.T.Errorf("%s: %v", name, err)
		}
		slowest = max(slowest, time.Since(began))
	}
	return slowest
}

// TestManyGrantsUseFewConnections checks that a grant that waits for its turn holds no
// connection.
func TestManyGrantsUseFewConnections(t *testing.T) {
	t.Parallel()
	c := newOpenTransactions(t, 20, time.Minute)
	var grants sync.WaitGroup
	ends := make([]chan error, len(c.fences))
	for i, f := range c.fences {
		a := c.AwardOf(f, "new")
		ends[i] = make(chan error, 1)
		grants.Go(func() {
			_, err := f.Grant(c.Ctx(), a)
			ends[i] <- err
		})
	}
	fixture.Eventually(t, "as many grants wait as have a turn", func() bool {
		return fencetest.Ask[int](c.Database, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND usename = $1 AND datname = current_database()", pgtest.Control) >= store.PoolSize
	})
	// A grant whose obstacle is gone succeeds, in any order, long before the grace of
	// the others has passed.
	for i := len(c.fences) - 1; i >= 0; i-- {
		if err := c.workers[i].Close(c.Ctx()); err != nil {
			t.Fatal(err)
		}
		if err := <-ends[i]; err != nil {
			t.Errorf("the grant of %s: %v", c.fences[i].Resource(), err)
		}
	}
	grants.Wait()
	const bound = fence.Connections - 2
	if n := fencetest.Ask[int](c.Database, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1", pgtest.Control); n > bound {
		t.Errorf("%d connections of the control role, want at most %d", n, bound)
	}
}
