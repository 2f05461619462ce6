package system

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

// TestSafetyAPoolIsToldAgain plays a pool of a worker that is superseded and leads again: one
// that replaces its connections at each error, and keeps others open that do not know yet.
func TestSafetyAPoolIsToldAgain(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider, with(long))
			one, two := h.proxy(), h.proxy()
			const write = "INSERT INTO work VALUES ('a')"
			refused := func(c *client, state string) {
				t.Helper()
				if err := c.exec(write); stateOf(err) != state {
					t.Fatalf("the write: %v; want %s", err, state)
				}
				if state == fencing.StateStartOver {
					c.must("SELECT 1") // which shows that it has read the error
				}
				c.leave()
			}
			pool := func() *client { return h.join(one, "a", "worker_timeout", "300ms") }
			// others lets another worker lead and leave, once a is silent.
			others := func(worker string) {
				t.Helper()
				other := h.join(two, worker, "campaign", "wait")
				other.must("INSERT INTO work VALUES ('other')")
				other.leave()
				two.Await(t, "released", "worker", worker)
			}

			first, second, third := pool(), pool(), pool()
			first.must(write)
			others("b")
			refused(first, fencing.StateSuperseded)
			refused(pool(), fencing.StateStartOver)
			last := pool() // its candidacy ended with the connection that was told
			last.must(write)
			last.leave()
			last = pool()
			last.must(write)
			// A statement that the pool sends again after this one was decided by a worker
			// that did not know.
			refused(second, fencing.StateSuperseded)
			refused(pool(), fencing.StateStartOver)
			pool().must(write)

			last.must(write)
			others("c")
			refused(last, fencing.StateSuperseded)
			refused(pool(), fencing.StateStartOver)
			pool().must(write)
			// The same holds if the connection is cut before it is told.
			if err := third.PgConn().Conn().Close(); err != nil {
				t.Fatal(err)
			}
			process.Eventually(t, process.Patience, "the proxy to notice", func() bool {
				c := pool()
				defer c.leave()
				return stateOf(c.exec(write)) == fencing.StateStartOver
			})
		})
	}
}
