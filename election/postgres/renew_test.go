package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/boottime"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/postgres"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// bidFor is a bid for one of several resources, with a lease that lasts.
func bidFor(i int) elector.AcquireRequest {
	b := bid("a")
	b.Resource, b.TTL = fmt.Sprint("r-", i), time.Minute
	return b
}

// acquireMany acquires the leases of n resources, from r-0 on.
func acquireMany(t *testing.T, p elector.Provider, n int) (leases []*elector.Lease) {
	t.Helper()
	for i := range n {
		leases = append(leases, mustAcquire(t, p, bidFor(i)))
	}
	return leases
}

// renewAll renews leases at the same time, and returns the errors.
func renewAll(ctx context.Context, p elector.Provider, leases ...*elector.Lease) []error {
	errs := make([]error, len(leases))
	var wg sync.WaitGroup
	for i, l := range leases {
		wg.Go(func() { errs[i] = p.Renew(ctx, l) })
	}
	wg.Wait()
	return errs
}

// TestManyIdleLeasesCostFewStatements: those of the lease service count, while 50 resources are led and nothing
// happens.
func TestManyIdleLeasesCostFewStatements(t *testing.T) {
	t.Parallel()
	const resources, ttl, watched = 50, 15 * time.Second, 12 * time.Second
	server := pgtest.Shared(t)
	db := server.Database(t)
	p, count := counted(t, server, db)
	e := elections(t, server, ttl, func(own *postgres.Provider) elector.Provider {
		if err := own.Close(); err != nil {
			t.Error(err)
		}
		return p
	})
	t.Cleanup(func() { _ = e.Close(context.Background()) })
	all := lead(t, e, db, "worker", resources)
	awaitLeads(t, all, patience)
	settled, renewed := count.n.Load(), boottime.Now()
	for n := int64(-1); n != settled; time.Sleep(200 * time.Millisecond) { // what follows the grants has ended
		n, settled = settled, count.n.Load()
	}
	before, began := count.n.Load(), boottime.Now()
	time.Sleep(watched)
	cost := count.n.Load() - before
	// Each third of a TTL all are renewed, in one statement or, on a busy machine, in some. All are read every
	// few seconds, and when they would expire.
	rounds := int64((boottime.Now() - began) / (ttl / 3))
	if most := 8 * (rounds + 1); cost > most {
		t.Errorf("%d statements for %d leases in %v; want at most %d", cost, resources, boottime.Now()-renewed, most)
	} else {
		t.Logf("%d statements for %d leases that were renewed %d times", cost, resources, rounds)
	}
	awaitLeads(t, all, patience)
}

// TestALockedRowDelaysNoOtherRenewal: whoever has locked a lease, the others are renewed with one statement, and
// that one when its row is free.
func TestALockedRowDelaysNoOtherRenewal(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	db := server.Database(t)
	p := provider(t, server, db, nil, nil)
	locked, free, last := mustAcquire(t, p, bidFor(1)), mustAcquire(t, p, bidFor(0)), mustAcquire(t, p, bidFor(2))
	blocker, err := server.Connect(t, pgtest.Control, db).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := blocker.Exec(t.Context(), "SELECT FROM fencepost.lease WHERE resource = 'r-1' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	late := make(chan error, 1)
	go func() { late <- p.Renew(within(t, patience), locked) }()
	for i, err := range renewAll(within(t, patience), p, free, last) {
		if err != nil {
			t.Errorf("the renewal of lease %d: %v", i, err)
		}
	}
	brief, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := p.Renew(brief, locked); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the locked lease was renewed with %v", err)
	}
	select {
	case err := <-late:
		t.Errorf("the locked lease was renewed with %v", err)
	default:
	}
	if err := blocker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-late; err != nil {
		t.Errorf("the lease that was locked was renewed with %v", err)
	}
}

// TestEachRenewalHasItsOwnResult: of leases that are renewed together, one is lost, and one caller gives up.
func TestEachRenewalHasItsOwnResult(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	db := server.Database(t)
	p := provider(t, server, db, nil, nil)
	leases := acquireMany(t, p, 20)
	server.Exec(t, pgtest.Control, db, "DELETE FROM fencepost.lease WHERE resource = 'r-7'", "UPDATE fencepost.lease SET renewals = 0")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	gaveUp := make(chan error, 1)
	go func() { gaveUp <- p.Renew(gone, leases[0]) }()
	for i, err := range renewAll(within(t, patience), p, leases[1:]...) {
		if lost := i+1 == 7; lost != errors.Is(err, elector.ErrLost) || !lost && err != nil {
			t.Errorf("lease %d was renewed with %v", i+1, err)
		}
	}
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up was told %v", err)
	}
	if n := pgtest.Ask[int](t, server, db, "SELECT count(*) FROM fencepost.lease WHERE renewals = 1 AND expires_at > now() + interval '30 s'"); n < 18 {
		t.Errorf("%d leases were renewed once", n)
	}
}

// TestAnErrorReachesEachRenewal: it does not say that a lease is lost.
func TestAnErrorReachesEachRenewal(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	db := server.Database(t)
	p := provider(t, server, db, nil, nil)
	leases := acquireMany(t, p, 5)
	server.Exec(t, pgtest.Control, db, "ALTER TABLE fencepost.lease RENAME TO elsewhere")
	for i, err := range renewAll(within(t, patience), p, leases...) {
		if err == nil || errors.Is(err, elector.ErrLost) {
			t.Errorf("lease %d was renewed with %v", i, err)
		}
	}
	server.Exec(t, pgtest.Control, db, "ALTER TABLE fencepost.elsewhere RENAME TO lease")
	for i, err := range renewAll(within(t, patience), p, leases...) {
		if err != nil {
			t.Errorf("lease %d was renewed with %v", i, err)
		}
	}
}

// TestARenewalSurvivesTheEndOfIdleConnections: the pool's connections have ended, and no one has asked whether
// they are still there.
func TestARenewalSurvivesTheEndOfIdleConnections(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	db := server.Database(t)
	p := provider(t, server, db, nil, nil)
	lease := mustAcquire(t, p, bidFor(0))
	server.Exec(t, pgtest.Superuser, "postgres", "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '"+db+"'")
	if err := p.Renew(within(t, patience), lease); err != nil {
		t.Errorf("the renewal: %v", err)
	}
}
