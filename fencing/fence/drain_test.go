package fence_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestABusyBackendHasTheGrace: a registered backend that works ends by itself within the grace.
func TestABusyBackendHasTheGrace(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace = fixture.Patience })
	h.Server.Exec(t, pgtest.App, h.DB, "CREATE TABLE public.entries (epoch bigint)")
	w := h.Worker(h.Grant("a"))
	h.MustEnter(w)
	if _, err := w.Exec(h.Ctx(), "BEGIN; INSERT INTO public.entries VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	granted, award := make(chan error, 1), h.Award("b")
	go func() {
		_, err := h.Fence.Grant(context.Background(), award)
		granted <- err
	}()
	fixture.Eventually(t, "the grant waits", func() bool {
		return fencetest.Ask[int](h, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%fencepost.grant%' AND datname = current_database()") == 1
	})
	if _, err := w.Exec(h.Ctx(), "SELECT pg_sleep(0.5); COMMIT"); err != nil { // longer than an idle backend may stay
		t.Errorf("the transaction: %v", err)
	}
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	if n := fencetest.Ask[int](h, "SELECT count(*) FROM public.entries"); n != 1 {
		t.Errorf("%d rows, want the one that was committed in the grace", n)
	}
}

// TestSafetyWhatAnExitCommitsIsThere: a backend drops its temporary tables, and what depends on them, while it
// exits. That is over when the grant returns.
func TestSafetyWhatAnExitCommitsIsThere(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	w := h.Worker(h.Grant("a"))
	if err := h.Enter(w); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Exec(h.Ctx(), `DO $$BEGIN FOR i IN 1..500 LOOP EXECUTE format('CREATE TEMP TABLE t%s (a int)', i); END LOOP; END$$;
		CREATE FUNCTION public.dependent(t1) RETURNS int LANGUAGE sql AS 'SELECT 1'`); err != nil {
		t.Fatal(err)
	}
	h.Grant("b")
	if n := fencetest.Ask[int](h, "SELECT count(*) FROM pg_proc WHERE proname = 'dependent'"); n != 0 {
		t.Error("the function is there when the grant returns")
	}
}

// TestSafetyRegistrationsRaceWithGrants: connections register and write without a pause while other workers are
// granted epochs. No row of an epoch appears after the grant of a later one has returned.
func TestSafetyRegistrationsRaceWithGrants(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace = 20 * time.Millisecond })
	h.Server.Exec(t, pgtest.App, h.DB, "CREATE TABLE public.entries (epoch bigint)")
	var current atomic.Pointer[fencing.Term]
	first := h.Grant("0")
	current.Store(&first)
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			for ctx.Err() == nil {
				writeUntilEnded(ctx, h, *current.Load())
			}
		})
	}
	for n := 1; n <= 25; n++ {
		before := fencetest.Ask[int](h, "SELECT count(*) FROM public.entries")
		fixture.Eventually(t, "somebody writes", func() bool { return fencetest.Ask[int](h, "SELECT count(*) FROM public.entries") > before })
		next := h.Grant(fmt.Sprint(n))
		rows := fencetest.Ask[int](h, "SELECT count(*) FROM public.entries WHERE epoch < $1", int64(next.Epoch))
		current.Store(&next)
		time.Sleep(5 * time.Millisecond) // for whoever would be late
		if later := fencetest.Ask[int](h, "SELECT count(*) FROM public.entries WHERE epoch < $1", int64(next.Epoch)); later != rows {
			t.Fatalf("%d rows of older epochs when epoch %d was granted, %d later", rows, next.Epoch, later)
		}
	}
	stop()
	all.Wait()
}

// writeUntilEnded registers a new connection and writes until it is ended.
func writeUntilEnded(ctx context.Context, h *fencetest.Database, term fencing.Term) {
	conn, err := pgx.Connect(ctx, h.Server.DSN(pgtest.App, h.DB))
	if err != nil {
		return
	}
	defer func() { _ = conn.Close(context.Background()) }()
	w := &fencetest.Worker{Conn: conn, Fence: h.Fence, Term: term}
	if !fencetest.Unfenced {
		entry := w.Request()
		if _, err := h.Fence.RegisterBackend(ctx, entry); err != nil {
			return
		}
	}
	for ctx.Err() == nil {
		if _, err := w.Exec(ctx, "INSERT INTO public.entries VALUES ($1)", int64(term.Epoch)); err != nil {
			return
		}
	}
}

// TestOnlyAGrantEndsSessions: other proxies are notified of a grant that waits, and not by a notification that some role
// has sent.
func TestOnlyAGrantEndsSessions(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace = fixture.Patience })
	told := make(chan string, 10)
	ctx, stop := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() {
		_ = h.Fences.FollowDrains(ctx, func(d fencing.Drain) { told <- fmt.Sprint(d.Resource, " ", d.Epoch) })
	})
	defer following.Wait()
	defer stop()
	fixture.Eventually(t, "somebody listens", func() bool {
		return fencetest.Ask[int](h, "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT fencepost.lease_listen()' AND datname = current_database()") == 1
	})
	for _, payload := range []string{fmt.Sprintf(`{"resource":"%s","epoch":99}`, fencetest.Resource), "x"} {
		if err := h.Fences.Drain(h.Ctx(), payload, func(d fencing.Drain) { t.Errorf("told of %+v", d) }); err != nil {
			t.Error(err)
		}
	}
	h.Server.Exec(t, pgtest.Superuser, h.DB, "SELECT fencepost.lease_tell('x')")
	w := h.Worker(h.Grant("a"))
	h.MustEnter(w)
	busy, granted := make(chan error, 1), make(chan error, 1)
	go func() { // otherwise the grant might end it before anyone is notified
		_, err := w.Exec(h.Ctx(), "SELECT pg_sleep(3600)")
		busy <- err
	}()
	pid := int32(w.PgConn().PID())
	fixture.Eventually(t, "the worker's backend to work", func() bool {
		return fencetest.Ask[string](h, "SELECT coalesce(wait_event, '') FROM pg_stat_activity WHERE pid = $1", pid) == "PgSleep"
	})
	award := h.Award("b")
	go func() {
		_, err := h.Fence.Grant(h.Ctx(), award)
		granted <- err
	}()
	select {
	case got := <-told:
		if want := fmt.Sprint(fencetest.Resource, " ", w.Term.Epoch); got != want {
			t.Errorf("told of %q first, want %q", got, want)
		}
	case <-time.After(fixture.Patience):
		t.Error("told of nothing")
	}
	h.Server.Exec(t, pgtest.Superuser, h.DB, fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
	if err := <-granted; err != nil {
		t.Errorf("the grant: %v", err)
	}
	if err := <-busy; err == nil {
		t.Error("the worker was not ended")
	}
}
