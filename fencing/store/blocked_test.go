package store_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// blocked records what a store reported, in order.
type blocked struct {
	mu  sync.Mutex
	all [][]string
}

func (b *blocked) note(_ string, by []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, slices.Clone(by))
}

func (b *blocked) reports() [][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.all)
}

// TestWhatBlocksAGrantIsReportedAtOnce covers a prepared transaction and a superuser's, which have locked the row
// by hand. Both must be reported long before the grace has passed.
func TestWhatBlocksAGrantIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("prepared", func(t *testing.T) {
		t.Parallel()
		gid := func(h *testDatabase) string { return "left behind in " + h.db }
		blocksAtOnce(t, func(h *testDatabase) (name string, end func()) {
			h.server.Exec(t, pgtest.Control, h.db, "BEGIN", "SELECT FROM fencepost.fence FOR KEY SHARE",
				fmt.Sprintf("PREPARE TRANSACTION '%s'", gid(h)))
			return gid(h), func() { h.server.Exec(t, pgtest.Control, h.db, fmt.Sprintf("ROLLBACK PREPARED '%s'", gid(h))) }
		})
	})
	t.Run("superuser", func(t *testing.T) {
		t.Parallel()
		blocksAtOnce(t, func(h *testDatabase) (name string, end func()) {
			conn := h.server.Connect(t, pgtest.Superuser, h.db)
			for _, sql := range []string{"SET application_name = 'nightly backup'", "BEGIN", "SELECT FROM fencepost.fence FOR KEY SHARE"} {
				if _, err := conn.Exec(h.ctx(), sql); err != nil {
					t.Fatal(err)
				}
			}
			return fmt.Sprintf("backend %d of role \"postgres\" (application \"nightly backup\"", conn.PgConn().PID()), func() { _ = conn.Close(h.ctx()) }
		})
	})
}

// blocksAtOnce lets block block a grant, and removes the obstacle once it has been
// reported.
func blocksAtOnce(t *testing.T, block func(h *testDatabase) (name string, end func())) {
	t.Helper()
	var told blocked
	h := newTestDatabase(t, pgtest.Shared(t), func(c *store.Config) { c.Grace, c.Blocked = 10*time.Minute, told.note })
	term := h.grant("a")
	what, end := block(h)
	end = sync.OnceFunc(end)
	t.Cleanup(end)
	next, granted := h.award("b"), make(chan error, 1)
	go func() {
		epoch, err := h.fence.Grant(h.ctx(), next)
		if err == nil && epoch != term.Epoch+1 {
			err = fmt.Errorf("epoch %d", epoch)
		}
		granted <- err
	}()
	eventually(t, "what blocks is reported", func() bool { return len(told.reports()) > 0 })
	if first := told.reports()[0]; len(first) != 1 || !strings.Contains(first[0], what) {
		t.Errorf("reported as blocking: %q, want %q", first, what)
	}
	end()
	if err := <-granted; err != nil {
		t.Errorf("once nothing blocked the grant: %v", err)
	}
	if all := told.reports(); len(all) != 2 || len(all[1]) != 0 {
		t.Errorf("reported %q; want an empty report at the end", all)
	}
}

// TestAGrantThatNothingBlocksReportsNothing checks that a transaction that the control
// role can end is not reported.
func TestAGrantThatNothingBlocksReportsNothing(t *testing.T) {
	t.Parallel()
	var told blocked
	h := newTestDatabase(t, pgtest.Shared(t), func(c *store.Config) { c.Blocked = told.note })
	w := h.worker(h.grant("a"))
	w.begin(h.ctx(), t, "")
	h.grant("b")
	if err := w.check(h.ctx()); stateOf(err) == "" {
		t.Error("the worker that blocked the grant was not ended")
	}
	if all := told.reports(); len(all) != 0 {
		t.Errorf("reported %q", all)
	}
}
