package main

import (
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestWorkersNeedNoRight: a role that may not even use the schema leads and writes. Which jobs may call fencepost.claim
// is said by --claim-role, and the flag that named workers is gone.
func TestWorkersNeedNoRight(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := servicetest.Start(t, s, nil)
	worker := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=b&fencepost.campaign=wait")
	for _, sql := range []string{"CREATE TABLE t (n int)", "INSERT INTO t VALUES (1)", "BEGIN", "UPDATE t SET n = 2", "COMMIT"} {
		if err := servicetest.Exec(t, worker, sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if may := pgtest.Ask[bool](t, s, db, "SELECT has_schema_privilege('"+pgtest.App+"', 'fencepost', 'USAGE')"); may {
		t.Error("the role of the worker may use the schema")
	}
	migrate := func(flags ...string) output {
		return runCommand(t, nil, append([]string{"migrate", "--dsn", s.DSN(pgtest.Superuser, db)}, flags...)...)
	}
	servicetest.WantState(t, servicetest.Exec(t, worker, "SELECT fencepost.claim('billing', 99)"), "42501")
	if out := migrate("--claim-role", pgtest.App); out.code != exitOK {
		t.Fatalf("migrate --claim-role: code %d, %s", out.code, out.stderr)
	}
	servicetest.WantState(t, servicetest.Exec(t, worker, "SELECT fencepost.claim('billing', 99)"), "ZF004")
	if out := migrate("--claim-role", "nobody here"); out.code != exitFailure || !strings.Contains(out.stderr, `"nobody here" does not exist`) {
		t.Errorf("a role that does not exist: code %d, %s", out.code, out.stderr)
	}
	for _, old := range [][]string{{"--worker-role", pgtest.App}, {"-worker-role=" + pgtest.App}} {
		if out := migrate(old...); out.code != exitUsage || !strings.Contains(out.stderr, "--worker-role is gone") {
			t.Errorf("%v: code %d, %s", old, out.code, out.stderr)
		}
	}
}

// TestConnectingWaitsForItsOwnGrant covers a worker that dies inside a statement and
// connects again at once. The new process has the lease, and its grant must first end
// the old statement, which takes longer than startup_wait. Meanwhile it must not be
// told that it does not lead.
func TestConnectingWaitsForItsOwnGrant(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := servicetest.Start(t, s, func(c *config.Config) {
		c.StartupWait = config.Duration(6 * time.Second)         // enough to get the lease, even on a busy machine
		c.Lease.Grace = config.Duration(6500 * time.Millisecond) // connecting waits for 5 s more than startup_wait
	})
	admin := s.Connect(t, pgtest.Superuser, db)
	dying, _ := wiretest.Connect(t, r.Address(), "user", pgtest.App, "database", db,
		"fencepost.resource", "billing", "fencepost.worker", "first")
	dying.Send(wiretest.Query("SELECT pg_sleep(600)"))
	servicetest.Eventually(t, "the statement runs", func() bool {
		var n int
		err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)' AND state = 'active' AND datname = current_database()").Scan(&n)
		return err == nil && n == 1
	})
	if err := dying.Close(); err != nil {
		t.Fatal(err)
	}
	servicetest.Eventually(t, "the lease is free", func() bool { return len(r.Log.Lines(t, "released")) == 1 })
	next := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=second")
	if err := servicetest.Exec(t, next, "CREATE TABLE made (n int)"); err != nil {
		t.Errorf("the first write of the new process: %v", err)
	}
}
