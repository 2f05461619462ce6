package store_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

// openTransactions is many resources whose leaders all have an open transaction.
type openTransactions struct {
	*testDatabase
	fences  []*store.Fence
	workers []*worker
}

func newOpenTransactions(t *testing.T, n int, grace time.Duration) *openTransactions {
	t.Helper()
	c := &openTransactions{testDatabase: newTestDatabase(t, pgtest.Shared(t), func(cfg *store.Config) { cfg.Grace = grace })}
	for i := range n {
		f, err := c.store.Fence(c.ctx(), fmt.Sprintf("resource %d", i))
		if err != nil {
			t.Fatal(err)
		}
		a := c.awardOf(f, "old")
		epoch, err := f.Grant(c.ctx(), a)
		if err != nil {
			t.Fatal(err)
		}
		w := c.worker(fencing.Term{Award: a, Epoch: epoch})
		w.fence = f
		w.begin(c.ctx(), t, "")
		c.fences, c.workers = append(c.fences, f), append(c.workers, w)
	}
	return c
}

// awardOf returns the next award, for another resource.
func (h *testDatabase) awardOf(f *store.Fence, name string) fencing.Award {
	a := h.award(name)
	a.Resource = f.Resource()
	return a
}

// TestManyTakeoversAtOnceEndTogether checks that each takeover waits for the grace of
// its own resource only, and that no one else waits for any of them.
func TestManyTakeoversAtOnceEndTogether(t *testing.T) {
	t.Parallel()
	const grace, together = 5 * time.Second, 10 * time.Second
	c := newOpenTransactions(t, 40, grace)
	quiet := c.worker(c.grant("quiet"))
	var mu sync.Mutex
	var ends []time.Time
	var grants, others sync.WaitGroup
	began, watch, over := time.Now(), stopwatch.Start(t), make(chan struct{})
	for _, f := range c.fences {
		a := c.awardOf(f, "new")
		grants.Go(func() {
			epoch, err := f.Grant(c.ctx(), a)
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
func (c *openTransactions) useOf(w *worker) (slowest time.Duration) {
	var note fencing.Registration
	for name, do := range map[string]func() (err error){
		"record": func() (err error) { _, err = c.fence.Record(c.ctx()); return err },
		"verify": func() error { return c.fence.Verify(c.ctx(), w.term) },
		"enter": func() (err error) {
			if note, err = c.fence.RegisterBackend(c.ctx(), w.entry()); err == nil {
				err = c.fence.UnregisterBackend(c.ctx(), note)
			}
			return err
		},
	} {
		began := time.Now()
		if err := do(); err != nil {
			c.t.Errorf("%s: %v", name, err)
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
		a := c.awardOf(f, "new")
		ends[i] = make(chan error, 1)
		grants.Go(func() {
			_, err := f.Grant(c.ctx(), a)
			ends[i] <- err
		})
	}
	eventually(t, "as many grants wait as have a turn", func() bool {
		return ask[int](c.testDatabase, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND usename = $1 AND datname = current_database()", pgtest.Control) >= store.PoolSize
	})
	// A grant whose obstacle is gone succeeds, in any order, long before the grace of
	// the others has passed.
	for i := len(c.fences) - 1; i >= 0; i-- {
		if err := c.workers[i].Close(c.ctx()); err != nil {
			t.Fatal(err)
		}
		if err := <-ends[i]; err != nil {
			t.Errorf("the grant of %s: %v", c.fences[i].Resource(), err)
		}
	}
	grants.Wait()
	const bound = store.Connections - 2
	if n := ask[int](c.testDatabase, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1", pgtest.Control); n > bound {
		t.Errorf("%d connections of the control role, want at most %d", n, bound)
	}
}
