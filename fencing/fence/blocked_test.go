package fence_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/fixture"
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

// TestWhatBlocksAGrantIsReportedAtOnce: a prepared transaction that has locked the row is reported long before the grace
// has passed.
func TestWhatBlocksAGrantIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	var told blocked
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace, c.Blocked = 10*time.Minute, told.note })
	term, gid := h.Grant("a"), "left behind in "+h.DB
	h.Server.Exec(t, pgtest.Control, h.DB, "BEGIN", "SELECT FROM fencepost.fence FOR KEY SHARE", fmt.Sprintf("PREPARE TRANSACTION '%s'", gid))
	end := sync.OnceFunc(func() { h.Server.Exec(t, pgtest.Control, h.DB, fmt.Sprintf("ROLLBACK PREPARED '%s'", gid)) })
	t.Cleanup(end)
	next, granted := h.Award("b"), make(chan error, 1)
	go func() {
		epoch, err := h.Fence.Grant(h.Ctx(), next)
		if err == nil && epoch != term.Epoch+1 {
			err = fmt.Errorf("epoch %d", epoch)
		}
		granted <- err
	}()
	fixture.Eventually(t, "what blocks is reported", func() bool { return len(told.reports()) > 0 })
	want := fmt.Sprintf("prepared transaction %q of role %q must be committed or rolled back", gid, pgtest.Control)
	if first := told.reports()[0]; len(first) != 1 || first[0] != want {
		t.Errorf("reported as blocking: %q, want %q", first, want)
	}
	end()
	if err := <-granted; err != nil {
		t.Errorf("once nothing blocked the grant: %v", err)
	}
	if all := told.reports(); len(all) != 2 || len(all[1]) != 0 {
		t.Errorf("reported %q; want an empty report at the end", all)
	}
}

// superuser locks the row of the fence in a transaction of a superuser, and returns its process id and what ends it.
func superuser(h *fencetest.Database, lock string) (pid string, end func()) {
	h.T.Helper()
	conn := h.Server.Connect(h.T, pgtest.Superuser, h.DB)
	if _, err := conn.Exec(h.Ctx(), "BEGIN; SELECT FROM fencepost.fence "+lock); err != nil {
		h.T.Fatal(err)
	}
	return fmt.Sprint(conn.PgConn().PID()), func() { _ = conn.Close(h.Ctx()) }
}

// TestWhatBlockedAGrantIsNamedWhileSomebodyLooks: what blocks is named without a gap from one grant to the next, and no
// longer once no one would notice that it has ended.
func TestWhatBlockedAGrantIsNamedWhileSomebodyLooks(t *testing.T) {
	t.Parallel()
	var told blocked
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Blocked = told.note })
	term := h.Grant("a")
	pid, end := superuser(h, "FOR KEY SHARE")
	a := h.Award("b")
	for range 3 {
		_, err := h.Fence.Grant(h.Ctx(), a)
		var way *fence.GrantBlockedError
		if !errors.As(err, &way) {
			t.Fatalf("got %v, want a GrantBlockedError", err)
		}
		fencetest.MustContain(t, err, "is blocked", pid, `role "postgres"`, "belongs to a superuser")
		ctx, cancel := context.WithTimeout(h.Ctx(), 1500*time.Millisecond)
		if err := h.Fence.AwaitUnblocked(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it is said not to be blocked any more: %v", err)
		}
		cancel()
		if by := h.Fence.BlockedBy(); len(by) != 1 || !strings.Contains(by[0], pid) {
			t.Errorf("meanwhile it is blocked by %q", by)
		}
	}
	leaderGoesOn(t, h, term)
	for _, by := range told.reports() {
		if len(by) != 1 {
			t.Errorf("reported %q while it was blocked", by)
		}
	}
	end()
	fixture.Eventually(t, "nobody looks, and nothing is named", func() bool {
		all := told.reports()
		return len(all[len(all)-1]) == 0 && len(h.Fence.BlockedBy()) == 0
	})
}

// TestWhatBlocksIsNotNamedAfterItsEnd, although the grant continues to wait for someone else, whom it is going to end.
func TestWhatBlocksIsNotNamedAfterItsEnd(t *testing.T) {
	t.Parallel()
	var told blocked
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace, c.Blocked = 10*time.Minute, told.note })
	worker := h.Worker(h.Grant("a"))
	_, end := superuser(h, "FOR SHARE") // a grant waits for those who have locked the row one after the other
	tx := worker.Claim(h.Ctx(), t, "")
	next, granted := h.Award("b"), make(chan error, 1)
	go func() {
		_, err := h.Fence.Grant(h.Ctx(), next)
		granted <- err
	}()
	fixture.Eventually(t, "what blocks is reported", func() bool { return len(told.reports()) > 0 })
	end()
	fixture.Eventually(t, "it is not named any more", func() bool { return len(h.Fence.BlockedBy()) == 0 })
	if !h.Waiting() {
		t.Error("the grant waits for nobody, so the test proves nothing")
	}
	if err := tx.Commit(h.Ctx()); err != nil {
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
	h := fencetest.New(t, pgtest.Shared(t))
	w := h.Worker(h.Grant("a"))
	h.MustEnter(w)
	super := h.Server.Connect(t, pgtest.Superuser, h.DB)
	h.Server.Exec(t, pgtest.Control, h.DB, fmt.Sprintf(`UPDATE fencepost.running SET pid = %d, backend_start = (SELECT backend_start FROM pg_stat_get_activity(%[1]d))`, super.PgConn().PID()))
	_, err := h.Fence.Grant(h.Ctx(), h.Award("b"))
	fencetest.MustContain(t, err, "superuser", fmt.Sprint(super.PgConn().PID()))
	unblocked := make(chan error, 1)
	go func() { unblocked <- h.Fence.AwaitUnblocked(h.Ctx()) }()
	fixture.Eventually(t, "it is looked for", func() bool {
		return fencetest.Ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE usename = $1 AND datname = current_database() AND query LIKE '%OR t.super AND%')", pgtest.Control)
	})
	_ = super.Close(h.Ctx())
	if err := <-unblocked; err != nil || len(h.Fence.BlockedBy()) != 0 {
		t.Errorf("after its end: %v, blocked by %q", err, h.Fence.BlockedBy())
	}
}
