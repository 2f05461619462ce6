package fence_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestWhenAnAwaitedBackendIsEnded: an idle one has as long as the control role's setting says, and one that works has the
// grace. When the grant has returned, it waits for none.
func TestWhenAnAwaitedBackendIsEnded(t *testing.T) {
	t.Parallel()
	told := make(chan []fencing.Awaited, 100)
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) {
		c.Grace, c.Awaited = 10*time.Minute, func(_ string, all []fencing.Awaited) { told <- all }
	})
	h.Server.DrainsPatiently(t, h.DB)
	h.Fences.CloseIdle() // connections that have the old setting
	first := h.Grant("a")
	idle, busy := h.Worker(first), h.Worker(first)
	h.MustEnter(idle)
	h.MustEnter(busy)
	if _, err := busy.Exec(h.Ctx(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	began, granted, award := time.Now(), make(chan error, 1), h.Award("b")
	go func() {
		_, err := h.Fence.Grant(h.Ctx(), award)
		granted <- err
	}()
	ends := map[uint32]time.Time{}
	for len(ends) == 0 {
		for _, b := range <-told { // that of the first grant is empty
			ends[uint32(b.PID)] = b.EndsAt
		}
	}
	for _, w := range []*fencetest.Worker{idle, busy} {
		grace := map[*fencetest.Worker]time.Duration{idle: time.Minute, busy: 10 * time.Minute}[w]
		if left := ends[w.PgConn().PID()].Sub(began); left < grace || left > grace+fixture.Patience/2 {
			t.Errorf("a backend that may stay for %s is ended in %s: %v", grace, left, ends)
		}
		h.Server.Exec(t, pgtest.Superuser, h.DB, fmt.Sprintf("SELECT pg_terminate_backend(%d)", w.PgConn().PID()))
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
	last := []fencing.Awaited{{}}
	for len(told) > 0 {
		last = <-told
	}
	if len(ends) != 2 || len(last) != 0 {
		t.Errorf("it waited for %v, and in the end for %+v", ends, last)
	}
}
