package failover

import (
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// outcome is how a command has ended.
type outcome struct {
	code int
	out  string
}

// pausing begins fencepost pause, which waits at the primary for the transaction of the leader w.
func (h *pair) pausing(p *process.Server) <-chan outcome {
	h.t.Helper()
	w := h.join(p, "w")
	h.must(w, "BEGIN")
	h.must(w, "INSERT INTO work VALUES ('open')")
	ended := make(chan outcome, 1)
	go func() {
		code, out := h.commandWith([]string{"FENCEPOST_LEASE_GRACE=30s"}, "pause", "billing", "--database", h.db)
		ended <- outcome{code, out}
	}()
	process.Eventually(h.t, process.Patience, "pause to wait for the transaction", func() bool {
		return ask[int](h, h.a, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%fencepost.pause(%' AND wait_event_type = 'Lock'") == 1
	})
	return ended
}

// wantDemoted checks that a command has said that its host is not the primary any more.
func (h *pair) wantDemoted(got outcome) {
	h.t.Helper()
	says := "the command was given at host " + h.a.Addr() + ", but " + h.a.Addr() + " is no longer the primary"
	if got.code != 1 || !strings.Contains(got.out, says) || !strings.Contains(got.out, "run it again") || strings.Contains(got.out, "is paused") {
		h.t.Errorf("pause: code %d, want 1 and %q:\n%s", got.code, says, got.out)
	}
}

// TestAnOrderDuringAFailover: the standby is promoted while an order waits, and the old primary
// lives. The order does not count as given there.
func TestAnOrderDuringAFailover(t *testing.T) {
	t.Parallel()
	h := newPair(t)
	p := h.proxy("FENCEPOST_LEASE_GRACE=30s")
	ended := h.pausing(p)
	h.b.Promote(t)
	h.wantDemoted(<-ended)
	if code, out := h.command("pause", "billing", "--database", h.db); code != 0 || !strings.Contains(out, "host "+h.b.Addr()+" is the primary") || !strings.Contains(out, "is paused") {
		t.Errorf("pause again: code %d:\n%s", code, out)
	}
}

// TestAnOrderAtAFrozenPrimary ends when another host is the primary.
func TestAnOrderAtAFrozenPrimary(t *testing.T) {
	t.Parallel()
	h := newPair(t)
	p := h.proxy("FENCEPOST_LEASE_GRACE=30s")
	ended := h.pausing(p)
	h.fail(func(t testing.TB) { h.a.Freeze(t) })
	select {
	case got := <-ended:
		h.wantDemoted(got)
	case <-time.After(soon):
		h.a.Thaw(t)
		t.Error("pause waits for the frozen server")
		<-ended
	}
}

// TestAnOrderWithoutTheSynchronousStandby waits for it, and says so.
func TestAnOrderWithoutTheSynchronousStandby(t *testing.T) {
	t.Parallel()
	h := newPair(t).synchronous()
	p := h.proxy()
	h.must(h.join(p, "w"), "INSERT INTO work VALUES ('before')")
	h.b.Freeze(t)
	ended := make(chan outcome, 1)
	go func() {
		code, out := h.command("pause", "billing", "--database", h.db, "--at", h.a.Addr())
		ended <- outcome{code, out}
	}()
	waits := func() bool {
		return ask[int](h, h.a, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%fencepost.pause(%' AND wait_event = 'SyncRep'") == 1
	}
	process.Eventually(t, process.Patience, "pause to wait for the standby", waits)
	process.Always(t, soon/5, "pause waits for the standby", waits)
	h.b.Thaw(t)
	const says = "waiting: no standby of synchronous_standby_names = 'standby' confirms the grant"
	if got := <-ended; got.code != 0 || !strings.Contains(got.out, says) || !strings.Contains(got.out, "is paused") {
		t.Errorf("pause: code %d, want 0, %q and that it is paused:\n%s", got.code, says, got.out)
	}
}

// TestCommandsWithoutTheSynchronousStandby wait for it and say so, like orders.
func TestCommandsWithoutTheSynchronousStandby(t *testing.T) {
	t.Parallel()
	h := newPair(t).synchronous()
	p := h.proxy()
	for _, worker := range []string{"v", "w"} {
		h.must(h.join(p, worker), "SELECT 1")
		if code, out := h.command("evict", "billing", "--database", h.db); code != 0 {
			t.Fatalf("evict: code %d: %s", code, out)
		}
	}
	h.a.Exec(t, pgtest.Superuser, h.db, "UPDATE fencepost.grants SET granted_at = granted_at - interval '10 days'")
	waits := func() bool {
		return ask[int](h, h.a, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND (application_name = 'fencepost' OR query = 'commit')") > 0
	}
	start := func(args ...string) chan outcome {
		ended := make(chan outcome, 1)
		go func() {
			code, out := h.command(args...)
			ended <- outcome{code, out}
		}()
		process.Eventually(t, process.Patience, args[0]+" to wait for the standby", waits)
		return ended
	}
	const says = "waiting: no standby of synchronous_standby_names = 'standby' confirms what was written"
	bump := []string{"generation", "bump", "--restored", "--yes", "--database", h.db, "--at", h.a.Addr()}
	for _, args := range [][]string{
		bump,
		{"ledger", "prune", "--keep", "1d", "--database", h.db, "--at", h.a.Addr()},
		{"migrate", "--dsn", h.a.DSN(pgtest.Superuser, h.db), "--control-role", pgtest.Control},
	} {
		h.b.Freeze(t)
		ended := start(args...)
		process.Always(t, 3*soon/8, args[0]+" waits", waits)
		h.b.Thaw(t)
		if got := <-ended; got.code != 0 || !strings.Contains(got.out, says) {
			t.Errorf("%v: code %d, want 0 and %q:\n%s", args, got.code, says, got.out)
		}
	}

	h.b.Freeze(t)
	ended := start(bump...)
	process.Eventually(t, process.Patience, "the wait of the new generation to be cancelled", func() bool {
		return ask[int](h, h.a, "SELECT count(*) FROM (SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%lease_bump%') c") == 1
	})
	if got := <-ended; got.code != 1 || !strings.Contains(got.out, "it is recorded, but no standby of synchronous_standby_names has confirmed it") {
		t.Errorf("a wait that was cancelled: code %d: %s", got.code, got.out)
	}
	h.b.Thaw(t)
}
