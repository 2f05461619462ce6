package store_test

import (
	"context"
	"errors"
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

// superuser locks the row of the fence in a transaction of a superuser, and returns its process id and what ends it.
func (h *testDatabase) superuser(lock string) (pid string, end func()) {
	h.t.Helper()
	conn := h.server.Connect(h.t, pgtest.Superuser, h.db)
	if _, err := conn.Exec(h.ctx(), "BEGIN; SELECT FROM fencepost.fence "+lock); err != nil {
		h.t.Fatal(err)
	}
	return fmt.Sprint(conn.PgConn().PID()), func() { _ = conn.Close(h.ctx()) }
}

// TestWhatBlockedAGrantIsNamedWhileSomebodyLooks: what blocks is named without a gap from one grant to the next, and no
// longer once no one would notice that it has ended.
func TestWhatBlockedAGrantIsNamedWhileSomebodyLooks(t *testing.T) {
	t.Parallel()
	var told blocked
	h := newTestDatabase(t, pgtest.Shared(t), func(c *store.Config) { c.Blocked = told.note })
	h.grant("a")
	pid, end := h.superuser("FOR KEY SHARE")
	a := h.award("b")
	for range 3 {
		_, err := h.fence.Grant(h.ctx(), a)
		mustContain(t, err, "is blocked", pid)
		ctx, cancel := context.WithTimeout(h.ctx(), 1500*time.Millisecond)
		if err := h.fence.AwaitUnblocked(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it is said not to be blocked any more: %v", err)
		}
		cancel()
		if by := h.fence.BlockedBy(); len(by) != 1 || !strings.Contains(by[0], pid) {
			t.Errorf("meanwhile it is blocked by %q", by)
		}
	}
	for _, by := range told.reports() {
		if len(by) != 1 {
			t.Errorf("reported %q while it was blocked", by)
		}
	}
	end()
	eventually(t, "nobody looks, and nothing is named", func() bool {
		all := told.reports()
		return len(all[len(all)-1]) == 0 && len(h.fence.BlockedBy()) == 0
	})
}

// TestWhatBlocksIsNotNamedAfterItsEnd, although the grant continues to wait for someone else, whom it is going to end.
func TestWhatBlocksIsNotNamedAfterItsEnd(t *testing.T) {
	t.Parallel()
	var told blocked
	h := newTestDatabase(t, pgtest.Shared(t), func(c *store.Config) { c.Grace, c.Blocked = 10*time.Minute, told.note })
	worker := h.worker(h.grant("a"))
	_, end := h.superuser("FOR SHARE") // a grant waits for those who have locked the row one after the other
	tx := worker.begin(h.ctx(), t, "")
	next, granted := h.award("b"), make(chan error, 1)
	go func() {
		_, err := h.fence.Grant(h.ctx(), next)
		granted <- err
	}()
	eventually(t, "what blocks is reported", func() bool { return len(told.reports()) > 0 })
	end()
	eventually(t, "it is not named any more", func() bool { return len(h.fence.BlockedBy()) == 0 })
	if !waiting(h) {
		t.Error("the grant waits for nobody, so the test proves nothing")
	}
	if err := tx.Commit(h.ctx()); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
	if all := told.reports(); len(all) != 2 || len(all[1]) != 0 {
		t.Errorf("reported %q", all)
	}
}

// TestASuperusersRegisteredBackendIsFollowed: its role was made a superuser since. A grant is blocked by it until it ends.
func TestASuperusersRegisteredBackendIsFollowed(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	w := h.worker(h.grant("a"))
	h.mustEnter(w)
	super := h.server.Connect(t, pgtest.Superuser, h.db)
	h.server.Exec(t, pgtest.Control, h.db, fmt.Sprintf(`UPDATE fencepost.running SET pid = %d, backend_start = (SELECT backend_start FROM pg_stat_get_activity(%[1]d))`, super.PgConn().PID()))
	_, err := h.fence.Grant(h.ctx(), h.award("b"))
	mustContain(t, err, "superuser", fmt.Sprint(super.PgConn().PID()))
	unblocked := make(chan error, 1)
	go func() { unblocked <- h.fence.AwaitUnblocked(h.ctx()) }()
	eventually(t, "it is looked for", func() bool {
		return ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE usename = $1 AND datname = current_database() AND query LIKE '%OR t.super AND%')", pgtest.Control)
	})
	_ = super.Close(h.ctx())
	if err := <-unblocked; err != nil || len(h.fence.BlockedBy()) != 0 {
		t.Errorf("after its end: %v, blocked by %q", err, h.fence.BlockedBy())
	}
}
