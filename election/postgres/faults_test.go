package postgres_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/boottime"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/postgres"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

const patience = 60 * time.Second

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func bid(worker string) elector.AcquireRequest {
	return elector.AcquireRequest{Resource: "billing", Worker: worker, Incarnation: worker + "-1", TTL: ttl}
}

func mustAcquire(t *testing.T, p elector.Provider, b elector.AcquireRequest) *elector.Lease {
	t.Helper()
	lease, err := p.Acquire(within(t, patience), b)
	if err != nil {
		t.Fatalf("acquire for %s: %v", b.Worker, err)
	}
	return lease
}

// watch waits for what differs from seen. A read that was slow fails, as it may, and is tried again.
func watch(ctx context.Context, p *postgres.Provider, seen elector.Observation) (obs elector.Observation, err error) {
	for {
		if obs, err = p.Watch(ctx, "billing", seen); err == nil || ctx.Err() != nil {
			return obs, err
		}
	}
}

// The server's clock is set back by an hour after the dead holder's last renewal, so by
// that clock the lease lasts for another hour.
func TestStepOfTheServersClockBlocksNoOne(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	db := server.Database(t)
	p := provider(t, server, db, nil, nil)
	first := mustAcquire(t, p, bid("a"))
	server.Exec(t, pgtest.Control, db, "UPDATE fencepost.lease SET expires_at = expires_at + interval '1 hour'")
	began := time.Now()
	var obs elector.Observation
	for ctx := within(t, patience); obs.State != elector.Freed; {
		var err error
		if obs, err = watch(ctx, p, obs); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < ttl/2 {
		t.Errorf("the lease was seen free after %v, the TTL is %v", took, ttl)
	}
	second := mustAcquire(t, p, bid("b"))
	if second.Index <= first.Index {
		t.Errorf("award %d came after %d", second.Index, first.Index)
	}
	if err := p.Renew(within(t, patience), first); !errors.Is(err, elector.ErrLost) {
		t.Errorf("the dead holder renews with %v", err)
	}
}

// A holder that renews keeps its lease even if a candidate's own clock is ahead.
func TestStandstillIsForgottenWithARenewal(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	db := server.Database(t)
	holder := provider(t, server, db, nil, nil)
	var ahead atomic.Int64 // the provider reads the clock concurrently
	candidate := provider(t, server, db, nil, func() time.Duration { return boottime.Now() + time.Duration(ahead.Load()) })
	lease := mustAcquire(t, holder, bid("a"))
	if obs, err := watch(within(t, patience), candidate, elector.Observation{}); err != nil || obs.State != elector.Held {
		t.Fatalf("the candidate sees %+v, %v", obs, err)
	}
	if err := holder.Renew(within(t, patience), lease); err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(time.Hour)) // as if nothing had changed for an hour by its clock
	if _, err := candidate.Acquire(within(t, patience), bid("b")); !errors.Is(err, elector.ErrHeld) {
		t.Errorf("a lease that was renewed was taken: %v", err)
	}
}

func TestAwardsFollowWhatTheFenceRecorded(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	db := server.Database(t)
	server.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')",
		"UPDATE fencepost.fence SET source = 'postgres', source_index = 41")
	p := provider(t, server, db, nil, nil)
	if lease := mustAcquire(t, p, bid("a")); lease.Index != 42 {
		t.Errorf("award %d follows 41", lease.Index)
	}
}

func TestServerRestartIsUnknownNotLost(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	db := server.Database(t)
	p := provider(t, server, db, nil, nil)
	long := bid("a")
	long.TTL = time.Minute
	lease := mustAcquire(t, p, long)
	seen, err := watch(within(t, patience), p, elector.Observation{})
	if err != nil || seen.State != elector.Held {
		t.Fatalf("the lease is seen as %+v, %v", seen, err)
	}
	server.Crash(t)
	if err := p.Renew(within(t, patience), lease); err == nil || errors.Is(err, elector.ErrLost) {
		t.Errorf("without a server the renewal ended with %v", err)
	}
	server.Restart(t)
	deadline := time.Now().Add(patience)
	for err = p.Renew(within(t, patience), lease); err != nil; err = p.Renew(within(t, patience), lease) {
		if errors.Is(err, elector.ErrLost) || time.Now().After(deadline) {
			t.Fatalf("after the restart the renewal ended with %v", err)
		}
	}
	if again := mustAcquire(t, p, long); again.Index != lease.Index {
		t.Errorf("the award went from %d to %d", lease.Index, again.Index)
	}
	// The provider listens again: it sees a release before any timer is due.
	watched := make(chan error, 1)
	ctx := within(t, patience)
	go func() {
		for obs := seen; ; {
			var err error
			if obs, err = watch(ctx, p, obs); err != nil || obs.State == elector.Freed {
				watched <- err
				return
			}
		}
	}()
	if err := p.Release(within(t, patience), lease, elector.ReasonLeft, 0); err != nil {
		t.Fatal(err)
	}
	if err := <-watched; err != nil {
		t.Errorf("the release was not seen: %v", err)
	}
}

// TestALeaseDoesNotWaitForNotificationsOfOthers: someone's commit, in another database, has sent a
// notification and waits for a standby, and every other commit that notifies waits for that one. Nor does
// a lease wait for the standby itself: the grant that follows does.
func TestALeaseDoesNotWaitForNotificationsOfOthers(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	db, elsewhere := server.Database(t), server.Database(t)
	p, q := provider(t, server, db, nil, nil), provider(t, server, db, nil, nil)
	server.Exec(t, pgtest.App, elsewhere, "CREATE TABLE queue (id int)")
	server.Exec(t, pgtest.Superuser, "postgres", "ALTER SYSTEM SET synchronous_standby_names = 'ghost'", "SELECT pg_reload_conf()")
	look := server.Connect(t, pgtest.Superuser, db)
	until := func(what, sql string) {
		t.Helper()
		stopwatch.Eventually(t, patience, what, func() (holds bool) {
			if err := look.QueryRow(t.Context(), sql).Scan(&holds); err != nil {
				t.Fatalf("waiting for %s: %v", what, err)
			}
			return holds
		})
	}
	until("the setting", "SELECT current_setting('synchronous_standby_names') = 'ghost'")
	// Commits wait once the checkpointer has read the setting too, which it does before it makes a checkpoint.
	server.Exec(t, pgtest.Superuser, db, "CHECKPOINT")
	sender, sent := server.Connect(t, pgtest.App, elsewhere), make(chan error, 1)
	go func() {
		_, err := sender.Exec(context.Background(), "BEGIN; INSERT INTO queue VALUES (1); NOTIFY anything; COMMIT")
		sent <- err
	}()
	t.Cleanup(func() { // or nothing ends that waits for the commit
		server.Exec(t, pgtest.Superuser, "postgres", "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	})
	until("the commit that notifies", "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')")

	long := bid("a")
	long.TTL = 10 * time.Minute // nothing is due
	lease := mustAcquire(t, p, long)
	seen, err := watch(within(t, patience), q, elector.Observation{})
	if err != nil || seen.State != elector.Held {
		t.Fatalf("the lease is seen as %+v, %v", seen, err)
	}
	freed := make(chan struct{})
	go func() {
		defer close(freed)
		if obs, err := watch(within(t, patience), q, seen); err != nil || obs.State != elector.Freed {
			t.Errorf("the lease is seen as %+v, %v", obs, err)
		}
	}()
	if err := p.Release(within(t, patience), lease, elector.ReasonLeft, 0); err != nil {
		t.Errorf("the release: %v", err)
	}
	if err := p.Release(within(t, patience), &elector.Lease{AcquireRequest: bid("late")}, elector.ReasonLeft, 0); err != nil {
		t.Errorf("the release of an unknown award: %v", err)
	}
	<-freed
	select {
	case err := <-sent:
		t.Errorf("the commit that notifies has ended, so the test proves nothing: %v", err)
	default:
	}
	server.Exec(t, pgtest.Superuser, "postgres", "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	if err := <-sent; err != nil {
		t.Errorf("the commit that notifies: %v", err)
	}
}

// An acquire waits in the server for the lease's row, and its sender gives up.
func TestAcquireThatWaitsInTheServerTakesNothingAfterItsRelease(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	db := server.Database(t)
	p := provider(t, server, db, nil, nil)
	seed := mustAcquire(t, p, bid("seed"))
	if err := p.Release(within(t, patience), seed, elector.ReasonLeft, 0); err != nil {
		t.Fatal(err)
	}
	blocker, err := server.Connect(t, pgtest.Control, db).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := blocker.Exec(t.Context(), "SELECT FROM fencepost.lease FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	long := bid("a")
	long.TTL = time.Minute
	// A separate session sends it and does not give up: the worst case of a late
	// request.
	late := make(chan error, 1)
	conn := server.Connect(t, pgtest.Control, db)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT fencepost.lease_take($1, $2, $3, $4, NULL, NULL)",
			long.Resource, long.Worker, long.Incarnation, long.TTL)
		late <- err
	}()
	released := make(chan error, 1)
	go func() {
		released <- p.Release(within(t, patience), &elector.Lease{AcquireRequest: long}, elector.ReasonLeft, 0)
	}()
	look := server.Connect(t, pgtest.Superuser, db)
	stopwatch.Eventually(t, patience, "two requests wait for the row", func() bool {
		var waiting int
		if err := look.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock'", db).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		return waiting == 2
	})
	if err := blocker.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-late; err != nil {
		t.Errorf("the late acquire: %v", err)
	}
	if err := <-released; err != nil {
		t.Errorf("the release: %v", err)
	}
	mustAcquire(t, p, bid("b")) // whichever of the two came first
}

func TestMarksOfCandidaciesThatAreOverAreForgotten(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	db := server.Database(t)
	server.Exec(t, pgtest.Control, db, "INSERT INTO fencepost.lease_over SELECT 'old-' || n, now() - interval '2 hours' FROM generate_series(1, 100) n")
	p := provider(t, server, db, nil, nil)
	if err := p.Release(within(t, patience), &elector.Lease{AcquireRequest: bid("a")}, elector.ReasonLeft, 0); err != nil {
		t.Fatal(err)
	}
	var left []string
	if err := server.Connect(t, pgtest.Control, db).QueryRow(t.Context(), "SELECT array_agg(incarnation) FROM fencepost.lease_over").Scan(&left); err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || left[0] != "a-1" {
		t.Errorf("%d marks are left, %q", len(left), left)
	}
	if _, err := p.Acquire(within(t, patience), bid("a")); !errors.Is(err, elector.ErrHeld) {
		t.Errorf("a candidacy that is over asks again: %v", err)
	}
	mustAcquire(t, p, bid("b"))
}
