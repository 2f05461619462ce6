package fence_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// batch is a procedure that commits after every row, and drops every lock that it can
// drop.
const batch = `CREATE PROCEDURE public.batch(epoch bigint, n int, pause float) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..n LOOP
		INSERT INTO public.entries VALUES (epoch);
		COMMIT;
		PERFORM pg_advisory_unlock_all();
		PERFORM pg_sleep(pause);
	END LOOP;
END $$`

func TestSafetyAGrantEndsNotedBackends(t *testing.T) {
	t.Parallel()
	core, lines := observer.New(zap.InfoLevel)
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Logger = zap.New(core) })
	h.Server.Exec(t, pgtest.App, h.DB, "CREATE TABLE public.entries (epoch bigint)", batch)
	w := h.Worker(h.Grant("a"))
	if err := h.Enter(w); err != nil {
		t.Fatal(err)
	}
	const rounds = 6000 // take 12 s at least
	ended := make(chan error, 1)
	go func() {
		_, err := w.Exec(h.Ctx(), fmt.Sprintf("CALL public.batch($1, %d, 0.002)", rounds), int64(w.Term.Epoch))
		ended <- err
	}()
	fixture.Eventually(t, "the procedure writes", func() bool { return fencetest.Ask[int](h, "SELECT count(*) FROM public.entries") > 5 })
	h.Grant("b")
	rows := fencetest.Ask[int](h, "SELECT count(*) FROM public.entries")
	if rows >= rounds {
		t.Fatal("the procedure ended before the grant, so the test proves nothing")
	}
	if err := <-ended; fencetest.StateOf(err) != "57P01" {
		t.Errorf("the procedure ended with %v; want 57P01", err)
	}
	if later := fencetest.Ask[int](h, "SELECT count(*) FROM public.entries"); later != rows {
		t.Errorf("%d rows when the grant returned, %d later", rows, later)
	}
	if left := fencetest.Ask[int](h, "SELECT count(*) FROM fencepost.running"); left != 0 {
		t.Errorf("%d registrations are left", left)
	}
	said := lines.FilterMessage("terminated a backend that blocked a grant").All()
	if len(said) != 1 {
		t.Fatalf("%d log lines about the backend that was ended, want one: %v", len(said), lines.All())
	}
	if f := said[0].ContextMap(); f["resource"] != fencetest.Resource || f["pid"] != int32(w.PgConn().PID()) || f["user"] != pgtest.App || f["state"] != "active" {
		t.Errorf("the log line is %v", f)
	}
}

func TestNotesOfTheDeadAndTheGoneDisturbNoOne(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace = 2 * fixture.Patience })
	term := h.Grant("a")
	left, dead := h.Worker(term), h.Worker(term)
	h.MustEnter(dead)
	if err := h.Fence.UnregisterBackend(h.Ctx(), h.MustEnter(left)); err != nil {
		t.Fatal(err)
	}
	// A registration of a process id that now belongs to another backend.
	h.Server.Exec(t, pgtest.Control, h.DB, fmt.Sprintf("INSERT INTO fencepost.running (pid, backend_start, fence, epoch) VALUES (%d, '2000-01-01', %d, 1)",
		left.PgConn().PID(), h.Fence.ID()))
	if err := dead.Close(h.Ctx()); err != nil {
		t.Fatal(err)
	}
	h.Grant("b") // which would have no time for a grace
	if _, err := left.Exec(h.Ctx(), "SELECT 1"); err != nil {
		t.Errorf("a backend that had left was ended: %v", err)
	}
}

// awaitEnd waits until a backend that was terminated has ended.
func awaitEnd(h *fencetest.Database, pid int) {
	h.T.Helper()
	fixture.Eventually(h.T, "the backend has ended", func() bool {
		return fencetest.Ask[int](h, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) == 0
	})
}

func TestAFrozenNotedBackendIsNamed(t *testing.T) {
	t.Parallel()
	var told blocked
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) {
		c.Grace, c.Patience, c.Blocked = 50*time.Millisecond, 300*time.Millisecond, told.note
	})
	term := h.Grant("a")
	w := h.Worker(term)
	h.MustEnter(w)
	pid := int(w.PgConn().PID())
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	a := h.Award("b")
	for range 2 { // it is reported once
		_, err := h.Fence.Grant(h.Ctx(), a)
		fencetest.MustContain(t, err, "in the way", fmt.Sprint(pid), "still there")
	}
	leaderGoesOn(t, h, term)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	awaitEnd(h, pid)
	if _, err := h.Fence.Grant(h.Ctx(), a); err != nil {
		t.Fatal(err)
	}
	if all := told.reports(); len(all) != 2 || len(all[0]) != 1 || !strings.Contains(all[0][0], fmt.Sprint(pid)) || len(all[1]) != 0 {
		t.Errorf("reported: %q; want the backend, and nothing after the grant", all)
	}
}

func TestANoteThatCannotBeSeenIsNotTakenForGone(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	h := fencetest.New(t, s)
	term := h.Grant("a")
	w := h.Worker(term)
	h.MustEnter(w)
	s.Exec(t, pgtest.Superuser, h.DB, "REVOKE pg_read_all_stats FROM "+pgtest.Control)
	_, err := h.Fence.Grant(h.Ctx(), h.Award("b"))
	fencetest.MustContain(t, err, "pg_read_all_stats")
	if _, err := w.Exec(h.Ctx(), "SELECT 1"); err != nil {
		t.Errorf("the leader's backend after the abandoned grant: %v", err)
	}
}

func TestAStuckFenceDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace = time.Minute })
	other, err := h.Fences.Fence(h.Ctx(), "another")
	if err != nil {
		t.Fatal(err)
	}
	term := h.Grant("a")
	h.Worker(term).Claim(h.Ctx(), t, "")
	ctx, cancel := context.WithCancel(h.Ctx())
	over := make(chan struct{}, 32)
	stuck := h.Award("b")
	go func() {
		_, _ = h.Fence.Grant(ctx, stuck)
		over <- struct{}{}
	}()
	fixture.Eventually(t, "the grant waits", func() bool { return h.Waiting() })
	entry := h.Worker(term).Request()
	for range 31 { // far more than there are connections
		go func() {
			_, _ = h.Fence.RegisterBackend(ctx, entry)
			over <- struct{}{}
		}()
	}
	a := fencing.Award{Resource: "another", Worker: "w", Incarnation: "i", Source: "test", InstanceID: "instance-1", Index: 1}
	if _, err := other.Grant(h.Ctx(), a); err != nil {
		t.Errorf("a grant on another resource: %v", err)
	}
	if _, err := h.Fences.Pool().Exec(h.Ctx(), "SELECT 1"); err != nil {
		t.Errorf("the free pool: %v", err)
	}
	cancel()
	for range 32 {
		<-over
	}
}

// TestABackendThatIsNotThereIsNotRegistered, although another one has its process id: after a failover, when the session has
// led to another server than the control connection, or because it has ended.
func TestABackendThatIsNotThereIsNotRegistered(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	w := h.Worker(h.Grant("a"))
	elsewhere, ended := w.Request(), w.Request()
	elsewhere.Started = strings.Repeat("0", len(elsewhere.Started))
	admin := h.Server.Connect(t, pgtest.Superuser, h.DB)
	if err := admin.QueryRow(h.Ctx(), "SELECT encode(timestamptz_send(backend_start - interval '1 microsecond'), 'hex') FROM pg_stat_get_activity($1)", int32(ended.PID)).Scan(&ended.Seen); err != nil {
		t.Fatal(err)
	}
	for says, request := range map[string]fencing.RegisterRequest{"leads to another server": elsewhere, "cannot be seen": ended} {
		if _, err := h.Fence.RegisterBackend(h.Ctx(), request); fencetest.StateOf(err) != fencing.StateNoFence || !strings.Contains(err.Error(), says) {
			t.Errorf("registered: %v; want ZF004 that says %q", err, says)
		}
	}
	if n := fencetest.Ask[int](h, "SELECT count(*) FROM fencepost.running"); n != 0 {
		t.Errorf("%d registrations", n)
	}
	h.MustEnter(w)
}

// TestTheRegistryStaysSmall: workers that connect often leave entries of backends that are gone. No grant may come for months.
func TestTheRegistryStaysSmall(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	w := h.Worker(h.Grant("a"))
	h.MustEnter(w)
	note := func() {
		t.Helper()
		fencetest.Ask[int](h, "SELECT fencepost.note_candidates('p', 'proxy', 0, true, '{}', '{}', '{}', '{}', '{}', '{}', '{}')")
	}
	h.Server.Exec(t, pgtest.Control, h.DB, "INSERT INTO fencepost.running (pid, backend_start, fence, epoch, note) SELECT 1, now(), id, 1, n FROM fencepost.fence, generate_series(1, 999) n")
	note() // a thousand are few
	h.Server.Exec(t, pgtest.Control, h.DB, "INSERT INTO fencepost.running (pid, backend_start, fence, epoch, note) SELECT 1, now(), id, 1, 1000 FROM fencepost.fence")
	if n := fencetest.Ask[int](h, "SELECT count(*) FROM fencepost.running"); n != 1001 {
		t.Errorf("%d entries, want 1001", n)
	}
	note()
	if pids := fencetest.Ask[[]int32](h, "SELECT array_agg(pid) FROM fencepost.running"); len(pids) != 1 || uint32(pids[0]) != w.PgConn().PID() {
		t.Errorf("entries of %d, want that of backend %d, which is there", pids, w.PgConn().PID())
	}
}

// TestSafetyAGrantEndsAnIdleBackendAtOnce, and leaves one that works until the grace is over.
func TestSafetyAGrantEndsAnIdleBackendAtOnce(t *testing.T) {
	t.Parallel()
	var told atomic.Int64
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) {
		c.Grace = 10 * time.Minute
		c.Draining = func(d fencing.Drain) {
			if d.Resource == fencetest.Resource {
				told.Store(int64(d.Epoch))
			}
		}
	})
	term := h.Grant("a")
	idle, works := h.Worker(term), h.Worker(term)
	for _, w := range []*fencetest.Worker{idle, works} {
		if err := h.Enter(w); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := works.Begin(h.Ctx())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(h.Ctx(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	granted := make(chan error, 1)
	award := h.Award("b")
	go func() {
		_, err := h.Fence.Grant(h.Ctx(), award)
		granted <- err
	}()
	awaitEnd(h, int(idle.PgConn().PID()))
	if _, err := idle.Exec(h.Ctx(), "SELECT 1"); err == nil {
		t.Error("the idle backend goes on")
	}
	fixture.Eventually(t, "it is told of the end of the epoch", func() bool { return told.Load() == int64(term.Epoch) })
	if err := tx.Commit(h.Ctx()); err != nil {
		t.Errorf("the transaction that had the grace to end: %v", err)
	}
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	if _, err := works.Exec(h.Ctx(), "SELECT 1"); fencetest.StateOf(err) != "57P01" {
		t.Errorf("the backend that worked, after the grant: %v; want 57P01", err)
	}
}

// TestAGrantThatMayNotEndAllEndsNoOne: a registered backend is a superuser's, or one of a role of which the control
// role is no member, while it may not signal those of others.
func TestAGrantThatMayNotEndAllEndsNoOne(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	s.Exec(t, pgtest.Superuser, "postgres", "CREATE ROLE own LOGIN", "GRANT own TO "+pgtest.Control)
	for role, want := range map[string]string{pgtest.Superuser: "is a superuser", pgtest.App: "pg_signal_backend"} {
		t.Run(role, func(t *testing.T) {
			s.Exec(t, pgtest.Superuser, "postgres", "GRANT pg_signal_backend TO "+pgtest.Control)
			h := fencetest.New(t, s, func(c *fence.Config) { c.Grace = 2 * time.Second })
			term := h.Grant("a")
			own := &fencetest.Worker{Conn: h.Server.Connect(t, "own", h.DB), Fence: h.Fence, Term: term}
			above := &fencetest.Worker{Conn: h.Server.Connect(t, role, h.DB), Fence: h.Fence, Term: term}
			h.MustEnter(own)
			h.MustEnter(above)
			h.Server.Exec(t, pgtest.Superuser, "postgres", "REVOKE pg_signal_backend FROM "+pgtest.Control)
			_, err := h.Fence.Grant(h.Ctx(), h.Award("b"))
			fencetest.MustContain(t, err, "in the way", fmt.Sprint(above.PgConn().PID()), want)
			for _, w := range []*fencetest.Worker{own, above} {
				if _, err := w.Exec(h.Ctx(), "SELECT 1"); err != nil {
					t.Errorf("the abandoned grant has ended a backend: %v", err)
				}
			}
			leaderGoesOn(t, h, term)
		})
	}
}

// TestRegistrationsOfTheGoneAreSwept opens a fence, as a proxy does that replaces one that
// has died.
func TestRegistrationsOfTheGoneAreSwept(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	term := h.Grant("a")
	gone, lives := h.Worker(term), h.Worker(term)
	h.MustEnter(gone)
	h.MustEnter(lives)
	if err := gone.Close(h.Ctx()); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, "the registration of the backend that is gone is deleted", func() bool {
		if _, err := h.Fences.Fence(h.Ctx(), "another"); err != nil {
			t.Fatal(err)
		}
		return fencetest.Ask[int](h, "SELECT count(*) FROM fencepost.running") == 1
	})
	if pid := fencetest.Ask[uint32](h, "SELECT pid FROM fencepost.running"); pid != lives.PgConn().PID() {
		t.Errorf("the registration of backend %d is left, want that of %d", pid, lives.PgConn().PID())
	}
}

// TestTheRegistryTakesNoOnesWord: only the candidacy that was granted the current epoch, and that it was announced to, is
// registered. The others are over, or have never led.
func TestTheRegistryTakesNoOnesWord(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	over, current := h.Grant("a"), h.Grant("b")
	for _, term := range []fencing.Term{over, current, {Award: h.Award("c")}} {
		w := h.Worker(term)
		for told := range fencing.Epoch(4) {
			for held := range fencing.Epoch(4) {
				may := term == current && told == 2 && held == 2
				if err := w.CheckAs(h.Ctx(), told, held); (err == nil) != may {
					t.Errorf("%s, told %d, holds %d: %v; it may pass: %t", term.Worker, told, held, err, may)
				}
			}
		}
	}
	if left := fencetest.Ask[int](h, "SELECT count(*) FROM fencepost.running"); left != 0 {
		t.Errorf("%d registrations were left", left)
	}
}

// TestALateDeletionMeetsNoOtherNote checks that a deletion identifies its registration.
// A late deletion must not remove the next registration of the same backend, nor that
// of a backend that reuses the process id.
func TestALateDeletionMeetsNoOtherNote(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	w := h.Worker(h.Grant("a"))
	first := h.MustEnter(w)
	second := h.MustEnter(w)
	for range 2 {
		if err := h.Fence.UnregisterBackend(h.Ctx(), first); err != nil {
			t.Fatal(err)
		}
	}
	if got := fencetest.Ask[int64](h, "SELECT note FROM fencepost.running WHERE pid = $1", int32(w.PgConn().PID())); got != second.ID {
		t.Errorf("registration %d is left, want %d", got, second.ID)
	}
	h.Grant("b")
	if _, err := w.Exec(h.Ctx(), "SELECT 1"); fencetest.StateOf(err) != "57P01" {
		t.Errorf("the registered backend: %v; want 57P01", err)
	}
}
