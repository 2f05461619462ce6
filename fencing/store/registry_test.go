package store_test

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
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// entry returns the request that registers the worker's backend. The worker's epoch has
// been announced to it. A backend that has ended cannot be registered.
func (w *worker) entry() fencing.RegisterRequest {
	if w.started == "" {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := w.QueryRow(ctx, "SELECT encode(timestamptz_send(pg_postmaster_start_time()), 'hex'), encode(timestamptz_send(clock_timestamp()), 'hex')").Scan(&w.started, &w.seen); err != nil {
			w.started = err.Error()
		}
	}
	return fencing.RegisterRequest{PID: w.PgConn().PID(), Started: w.started, Seen: w.seen, Worker: w.term.Worker, Incarnation: w.term.Incarnation, Announced: w.term.Epoch, Held: w.term.Epoch}
}

// enter registers the worker's backend, as the proxy does.
func (h *testDatabase) enter(w *worker) error {
	if unfenced {
		return nil
	}
	_, err := h.fence.RegisterBackend(h.ctx(), w.entry())
	return err
}

// mustEnter is enter for a registration that must succeed.
func (h *testDatabase) mustEnter(w *worker) fencing.Registration {
	h.t.Helper()
	note, err := h.fence.RegisterBackend(h.ctx(), w.entry())
	if err != nil {
		h.t.Fatal(err)
	}
	return note
}

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
	h := newTestDatabase(t, pgtest.Shared(t), func(c *store.Config) { c.Logger = zap.New(core) })
	h.server.Exec(t, pgtest.App, h.db, "CREATE TABLE public.entries (epoch bigint)", batch)
	w := h.worker(h.grant("a"))
	if err := h.enter(w); err != nil {
		t.Fatal(err)
	}
	const rounds = 6000 // take 12 s at least
	ended := make(chan error, 1)
	go func() {
		_, err := w.Exec(h.ctx(), fmt.Sprintf("CALL public.batch($1, %d, 0.002)", rounds), int64(w.term.Epoch))
		ended <- err
	}()
	eventually(t, "the procedure writes", func() bool { return ask[int](h, "SELECT count(*) FROM public.entries") > 5 })
	h.grant("b")
	rows := ask[int](h, "SELECT count(*) FROM public.entries")
	if rows >= rounds {
		t.Fatal("the procedure ended before the grant, so the test proves nothing")
	}
	if err := <-ended; stateOf(err) != "57P01" {
		t.Errorf("the procedure ended with %v; want 57P01", err)
	}
	if later := ask[int](h, "SELECT count(*) FROM public.entries"); later != rows {
		t.Errorf("%d rows when the grant returned, %d later", rows, later)
	}
	if left := ask[int](h, "SELECT count(*) FROM fencepost.running"); left != 0 {
		t.Errorf("%d registrations are left", left)
	}
	said := lines.FilterMessage("terminated a backend that blocked a grant").All()
	if len(said) != 1 {
		t.Fatalf("%d log lines about the backend that was ended, want one: %v", len(said), lines.All())
	}
	if f := said[0].ContextMap(); f["resource"] != resource || f["pid"] != int32(w.PgConn().PID()) || f["user"] != pgtest.App || f["state"] != "active" {
		t.Errorf("the log line is %v", f)
	}
}

func TestNotesOfTheDeadAndTheGoneDisturbNoOne(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t), func(c *store.Config) { c.Grace = 2 * patience })
	term := h.grant("a")
	left, dead := h.worker(term), h.worker(term)
	h.mustEnter(dead)
	if err := h.fence.UnregisterBackend(h.ctx(), h.mustEnter(left)); err != nil {
		t.Fatal(err)
	}
	// A registration of a process id that now belongs to another backend.
	h.server.Exec(t, pgtest.Control, h.db, fmt.Sprintf("INSERT INTO fencepost.running (pid, backend_start, fence, epoch) VALUES (%d, '2000-01-01', %d, 1)",
		left.PgConn().PID(), h.fence.ID()))
	if err := dead.Close(h.ctx()); err != nil {
		t.Fatal(err)
	}
	h.grant("b") // which would have no time for a grace
	if _, err := left.Exec(h.ctx(), "SELECT 1"); err != nil {
		t.Errorf("a backend that had left was ended: %v", err)
	}
}

// awaitEnd waits until a backend that was terminated has ended.
func (h *testDatabase) awaitEnd(pid int) {
	h.t.Helper()
	eventually(h.t, "the backend has ended", func() bool {
		return ask[int](h, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) == 0
	})
}

func TestAFrozenNotedBackendIsNamed(t *testing.T) {
	t.Parallel()
	var told blocked
	h := newTestDatabase(t, pgtest.Shared(t), func(c *store.Config) {
		c.Grace, c.Patience, c.Blocked = 50*time.Millisecond, 300*time.Millisecond, told.note
	})
	term := h.grant("a")
	w := h.worker(term)
	h.mustEnter(w)
	pid := int(w.PgConn().PID())
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	a := h.award("b")
	for range 2 { // it is reported once
		_, err := h.fence.Grant(h.ctx(), a)
		mustContain(t, err, "in the way", fmt.Sprint(pid), "still there")
	}
	leaderGoesOn(t, h, term)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	h.awaitEnd(pid)
	if _, err := h.fence.Grant(h.ctx(), a); err != nil {
		t.Fatal(err)
	}
	if all := told.reports(); len(all) != 2 || len(all[0]) != 1 || !strings.Contains(all[0][0], fmt.Sprint(pid)) || len(all[1]) != 0 {
		t.Errorf("reported: %q; want the backend, and nothing after the grant", all)
	}
}

func TestANoteThatCannotBeSeenIsNotTakenForGone(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	h := newTestDatabase(t, s)
	term := h.grant("a")
	w := h.worker(term)
	h.mustEnter(w)
	s.Exec(t, pgtest.Superuser, h.db, "REVOKE pg_read_all_stats FROM "+pgtest.Control)
	_, err := h.fence.Grant(h.ctx(), h.award("b"))
	mustContain(t, err, "pg_read_all_stats")
	if _, err := w.Exec(h.ctx(), "SELECT 1"); err != nil {
		t.Errorf("the leader's backend after the abandoned grant: %v", err)
	}
}

func TestAStuckFenceDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t), func(c *store.Config) { c.Grace = time.Minute })
	other, err := h.store.Fence(h.ctx(), "another")
	if err != nil {
		t.Fatal(err)
	}
	term := h.grant("a")
	h.worker(term).begin(h.ctx(), t, "")
	ctx, cancel := context.WithCancel(h.ctx())
	over := make(chan struct{}, 32)
	stuck := h.award("b")
	go func() {
		_, _ = h.fence.Grant(ctx, stuck)
		over <- struct{}{}
	}()
	eventually(t, "the grant waits", func() bool { return waiting(h) })
	entry := h.worker(term).entry()
	for range 31 { // far more than there are connections
		go func() {
			_, _ = h.fence.RegisterBackend(ctx, entry)
			over <- struct{}{}
		}()
	}
	a := fencing.Award{Resource: "another", Worker: "w", Incarnation: "i", Source: "test", InstanceID: "life-1", Index: 1}
	if _, err := other.Grant(h.ctx(), a); err != nil {
		t.Errorf("a grant on another resource: %v", err)
	}
	if _, err := h.store.Pool().Exec(h.ctx(), "SELECT 1"); err != nil {
		t.Errorf("the free pool: %v", err)
	}
	cancel()
	for range 32 {
		<-over
	}
}

// TestAnEndedBackendIsNotRunning: the entry of a backend that has ended stays until the
// next grant, and is not counted.
func TestAnEndedBackendIsNotRunning(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	w := h.worker(h.grant("a"))
	h.mustEnter(w)
	running := func() int {
		t.Helper()
		all, err := h.store.Status(h.ctx())
		if err != nil || len(all) != 1 {
			t.Fatalf("%v, %v", all, err)
		}
		return all[0].Running
	}
	if n := running(); n != 1 {
		t.Errorf("%d backends are running, want 1", n)
	}
	if err := w.Close(h.ctx()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the backend is not counted", func() bool { return running() == 0 })
}

// TestABackendOfAnotherServerIsNotRegistered: the process id is that of a backend of this server, as
// it may be after a failover, when the session has led to another server than the control connection.
func TestABackendOfAnotherServerIsNotRegistered(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	w := h.worker(h.grant("a"))
	there := w.entry()
	there.Started = strings.Repeat("0", len(there.Started))
	if _, err := h.fence.RegisterBackend(h.ctx(), there); stateOf(err) != fencing.StateNoFence || !strings.Contains(err.Error(), "leads to another server") {
		t.Errorf("registered: %v; want ZF004 that names another server", err)
	}
	if n := ask[int](h, "SELECT count(*) FROM fencepost.running"); n != 0 {
		t.Errorf("%d registrations", n)
	}
	h.mustEnter(w)
}

// TestABackendThatHasEndedIsNotRegistered: its process id is that of another backend by now, which was started later.
func TestABackendThatHasEndedIsNotRegistered(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	w := h.worker(h.grant("a"))
	before := w.entry()
	admin := h.server.Connect(t, pgtest.Superuser, h.db)
	if err := admin.QueryRow(h.ctx(), "SELECT encode(timestamptz_send(backend_start - interval '1 microsecond'), 'hex') FROM pg_stat_get_activity($1)", int32(before.PID)).Scan(&before.Seen); err != nil {
		t.Fatal(err)
	}
	if _, err := h.fence.RegisterBackend(h.ctx(), before); stateOf(err) != fencing.StateNoFence || !strings.Contains(err.Error(), "cannot be seen") {
		t.Errorf("registered: %v; want ZF004 that says that the backend cannot be seen", err)
	}
	if n := ask[int](h, "SELECT count(*) FROM fencepost.running"); n != 0 {
		t.Errorf("%d registrations", n)
	}
	h.mustEnter(w)
}

// TestTheRegistryStaysSmall: workers that connect often leave entries of backends that are gone. No grant may come for months.
func TestTheRegistryStaysSmall(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	w := h.worker(h.grant("a"))
	h.mustEnter(w)
	note := func() {
		t.Helper()
		ask[int](h, "SELECT fencepost.note_candidates('p', 'proxy', 0, true, '{}', '{}', '{}', '{}', '{}', '{}', '{}')")
	}
	h.server.Exec(t, pgtest.Control, h.db, "INSERT INTO fencepost.running (pid, backend_start, fence, epoch, note) SELECT 1, now(), id, 1, n FROM fencepost.fence, generate_series(1, 999) n")
	note() // a thousand are few
	h.server.Exec(t, pgtest.Control, h.db, "INSERT INTO fencepost.running (pid, backend_start, fence, epoch, note) SELECT 1, now(), id, 1, 1000 FROM fencepost.fence")
	if n := ask[int](h, "SELECT count(*) FROM fencepost.running"); n != 1001 {
		t.Errorf("%d entries, want 1001", n)
	}
	note()
	if pids := ask[[]int32](h, "SELECT array_agg(pid) FROM fencepost.running"); len(pids) != 1 || uint32(pids[0]) != w.PgConn().PID() {
		t.Errorf("entries of %d, want that of backend %d, which is there", pids, w.PgConn().PID())
	}
}

// TestSafetyAGrantEndsAnIdleBackendAtOnce, and leaves one that works until the grace is over.
func TestSafetyAGrantEndsAnIdleBackendAtOnce(t *testing.T) {
	t.Parallel()
	var told atomic.Int64
	h := newTestDatabase(t, pgtest.Shared(t), func(c *store.Config) {
		c.Grace = 10 * time.Minute
		c.Draining = func(name string, e fencing.Epoch) {
			if name == resource {
				told.Store(int64(e))
			}
		}
	})
	term := h.grant("a")
	idle, works := h.worker(term), h.worker(term)
	for _, w := range []*worker{idle, works} {
		if err := h.enter(w); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := works.Begin(h.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(h.ctx(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	granted := make(chan error, 1)
	award := h.award("b")
	go func() {
		_, err := h.fence.Grant(h.ctx(), award)
		granted <- err
	}()
	h.awaitEnd(int(idle.PgConn().PID()))
	if _, err := idle.Exec(h.ctx(), "SELECT 1"); err == nil {
		t.Error("the idle backend goes on")
	}
	eventually(t, "it is told of the end of the epoch", func() bool { return told.Load() == int64(term.Epoch) })
	if err := tx.Commit(h.ctx()); err != nil {
		t.Errorf("the transaction that had the grace to end: %v", err)
	}
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	if _, err := works.Exec(h.ctx(), "SELECT 1"); stateOf(err) != "57P01" {
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
			h := newTestDatabase(t, s, func(c *store.Config) { c.Grace = 2 * time.Second })
			term := h.grant("a")
			own := &worker{Conn: h.server.Connect(t, "own", h.db), fence: h.fence, term: term}
			above := &worker{Conn: h.server.Connect(t, role, h.db), fence: h.fence, term: term}
			h.mustEnter(own)
			h.mustEnter(above)
			h.server.Exec(t, pgtest.Superuser, "postgres", "REVOKE pg_signal_backend FROM "+pgtest.Control)
			_, err := h.fence.Grant(h.ctx(), h.award("b"))
			mustContain(t, err, "in the way", fmt.Sprint(above.PgConn().PID()), want)
			for _, w := range []*worker{own, above} {
				if _, err := w.Exec(h.ctx(), "SELECT 1"); err != nil {
					t.Errorf("the abandoned grant has ended a backend: %v", err)
				}
			}
			leaderGoesOn(t, h, term)
		})
	}
}
