package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// TestAFalseAlarmIsShownAndIsTheWorkersOwn covers a worker without a name that comes
// back after a silence, and then connects again.
func TestAFalseAlarmIsShownAndIsTheWorkersOwn(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE work (n int)")
	const timeout = 250 * time.Millisecond
	r := servicetest.Start(t, s, func(c *config.Config) { c.Lease.WorkerTimeout = config.Duration(timeout) })
	worker := r.Connect(t, db, "fencepost.resource=billing")
	servicetest.Eventually(t, "the lease to be released for silence", func() bool { v := r.View(t, db, "billing"); return !v.Here && v.Workers[0].Unresponsive })
	if err := servicetest.Exec(t, worker, "INSERT INTO work VALUES (1)"); err != nil {
		t.Fatalf("the write of a worker that came back: %v", err)
	}
	// On a slow machine it may become unresponsive and come back once more.
	mustWait := func(some bool) {
		t.Helper()
		v := r.View(t, db, "billing")
		if v.FalseAlarms < 1 || len(v.Workers) != 1 {
			t.Fatalf("the resource shows %+v", v)
		}
		w := v.Workers[0]
		want := min(timeout<<w.FalseAlarms, 4*timeout).Seconds()
		if (w.FalseAlarms > 0) != some || w.WorkerTimeout == nil || *w.WorkerTimeout != want {
			text, _ := json.Marshal(w)
			t.Errorf("want a worker timeout of %v s: %s", want, text)
		}
	}
	servicetest.Eventually(t, "the false alarm to be counted", func() bool { return r.View(t, db, "billing").FalseAlarms > 0 })
	mustWait(true)
	lines := r.Log.Lines(t, "false alarm: a worker whose lease was released for silence is active again; its timeout is extended")
	if len(lines) == 0 || lines[0]["false_alarms"] != 1.0 || lines[0]["waited"] != timeout.String() {
		t.Errorf("the log says %v", lines)
	}
	reconnect := func(user string) {
		t.Helper()
		if err := worker.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		servicetest.Eventually(t, "it to have left", func() bool { return len(r.View(t, db, "billing").Workers) == 0 })
		var err error
		ctx, cancel := context.WithTimeout(context.Background(), servicetest.Patience)
		defer cancel()
		if worker, err = pgx.Connect(ctx, strings.Replace(r.DSN(db, "fencepost.resource=billing"), "//"+pgtest.App+"@", "//"+user+"@", 1)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = worker.Close(context.Background()) })
	}
	reconnect(pgtest.App)
	mustWait(true)
	other := db + "_other"
	s.Exec(t, pgtest.Superuser, db, "CREATE ROLE "+other+" LOGIN")
	reconnect(other)
	mustWait(false)
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
