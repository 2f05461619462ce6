package main

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestConnectingWaitsForItsOwnGrant covers a worker that dies inside a statement and
// connects again at once. The new process has the lease, and its grant must first end
// the old statement, which takes longer than startup_wait. Meanwhile it must not be
// told that it does not lead.
func TestConnectingWaitsForItsOwnGrant(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := startServing(t, s, func(c *config.Config) {
		c.StartupWait = config.Duration(1500 * time.Millisecond) // enough to get the lease, even on a busy machine
		c.Lease.Grace = config.Duration(3 * time.Second)
	})
	admin := s.Connect(t, pgtest.Superuser, db)
	dying, _ := wiretest.Connect(t, r.listeners[0].Addr().String(), "user", pgtest.App, "database", db,
		"fencepost.resource", "billing", "fencepost.worker", "first")
	dying.Send(wiretest.Query("SELECT pg_sleep(600)"))
	eventually(t, "the statement runs", func() bool {
		var n int
		err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)' AND state = 'active' AND datname = current_database()").Scan(&n)
		return err == nil && n == 1
	})
	if err := dying.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease is free", func() bool { return len(r.log.lines(t, "released")) == 1 })
	next := r.connect(t, db, "fencepost.resource=billing&fencepost.worker=second")
	if err := execSQL(t, next, "CREATE TABLE made (n int)"); err != nil {
		t.Errorf("the first write of the new process: %v", err)
	}
}
