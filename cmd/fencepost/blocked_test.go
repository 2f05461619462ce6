package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestABlockedTakeoverSaysSoAtOnce checks that what blocks a takeover is named long
// before the grace has passed, wherever an operator looks.
func TestABlockedTakeoverSaysSoAtOnce(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t) // max_prepared_transactions is 10
	db := s.Database(t)
	r := servicetest.Start(t, s, func(c *config.Config) { c.Lease.Grace = config.Duration(10 * time.Minute) })
	leader := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=first")
	gid := "left behind in " + db
	s.Exec(t, pgtest.Control, db, "BEGIN", "SELECT FROM fencepost.fence FOR KEY SHARE", "PREPARE TRANSACTION '"+gid+"'")
	removed := false
	t.Cleanup(func() {
		if !removed {
			s.Exec(t, pgtest.Control, db, "ROLLBACK PREPARED '"+gid+"'")
		}
	})
	statusNames := func(when string) {
		t.Helper()
		if out := runCommand(t, nil, "status", "--dsn", s.DSN(pgtest.Control, db)); !strings.Contains(out.stdout, gid) {
			t.Errorf("status --dsn does not name it %s:\n%s%s", when, out.stdout, out.stderr)
		}
	}
	statusNames("before a takeover waits for it")
	if err := leader.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	next := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 4*servicetest.Patience)
	defer cancel()
	go func() {
		conn, err := pgx.Connect(ctx, r.DSN(db, "fencepost.resource=billing&fencepost.worker=second&fencepost.campaign=wait"))
		if err == nil {
			err = conn.Close(ctx)
		}
		next <- err
	}()
	metric := fmt.Sprintf("fencepost_grant_blocked{database=%q,resource=%q}", db, "billing")
	shows := func(path, part string) bool {
		_, body := r.Ask(t, path)
		return strings.Contains(body, part)
	}
	servicetest.Eventually(t, "the takeover says what blocks it", func() bool { return shows("/v1/resources/"+db+"/billing", gid) })
	statusNames("while a takeover waits for it")
	if !shows("/metrics", metric+" 1") {
		t.Error("the metric does not show it")
	}
	if out := runCommand(t, nil, "status", "--admin", r.AdminAddress().String()); !strings.Contains(out.stdout, "takeover blocked: prepared transaction") {
		t.Errorf("status does not show it:\n%s%s", out.stdout, out.stderr)
	}
	if lines := r.Log.Lines(t, "takeover blocked by a transaction the control role cannot end"); len(lines) != 1 || lines[0]["resource"] != "billing" {
		t.Errorf("the log has %v", lines)
	}
	servicetest.Eventually(t, "/readyz to be ready", func() bool { // a busy server may not answer in time
		return shows("/readyz", `"ready": true`)
	})
	s.Exec(t, pgtest.Control, db, "ROLLBACK PREPARED '"+gid+"'")
	removed = true
	if err := <-next; err != nil {
		t.Errorf("the next leader: %v", err)
	}
	if !shows("/metrics", metric+" 0") || shows("/v1/resources/"+db+"/billing", gid) {
		t.Error("the takeover is over, and still shown as blocked")
	}
}

// TestStatusNamesASuperusersBackend that has locked the row of a fence, also to a role that may not see what it does, and no
// backend that a takeover ends.
func TestStatusNamesASuperusersBackend(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.admit('"+pgtest.App+"')")
	lock := func(role string) (pid uint32) {
		t.Helper()
		conn := s.Connect(t, role, db)
		for _, sql := range []string{"SET application_name = 'nightly'", "BEGIN", "SAVEPOINT s", "SELECT FROM fencepost.fence FOR KEY SHARE"} {
			if err := servicetest.Exec(t, conn, sql); err != nil {
				t.Fatal(err)
			}
		}
		return conn.PgConn().PID()
	}
	ended, stays := lock(pgtest.Control), lock(pgtest.Superuser)
	for role, does := range map[string]string{pgtest.Superuser: "idle in transaction", pgtest.Control: "idle in transaction", pgtest.App: "this role may not see what it does"} {
		out := runCommand(t, nil, "status", "--dsn", s.DSN(role, db))
		want := fmt.Sprintf("%s/billing: takeover blocked: backend %d of role postgres (application nightly, %s) belongs to a superuser", db, stays, does)
		if !strings.Contains(out.stdout, want) || strings.Contains(out.stdout, fmt.Sprintf("backend %d", ended)) {
			t.Errorf("to %s it says\n%s%s, want %q", role, out.stdout, out.stderr, want)
		}
	}
}

// TestATakeoverSaysWhatItWaitsFor: status and /v1/resources name the backend that a grant waits for, and say when it is
// ended, be it a registered one or one that has locked the row of the fence.
func TestATakeoverSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for name, c := range map[string]struct {
		role, state string
		hold        func(t *testing.T, r *servicetest.Running, db string) // makes the takeover wait, and ends the leader
	}{
		"a statement": {pgtest.App, "active", func(t *testing.T, r *servicetest.Running, db string) {
			dying, _ := wiretest.Connect(t, r.Address(), "user", pgtest.App, "database", db, "fencepost.resource", "billing", "fencepost.worker", "first")
			dying.Send(wiretest.Query("SELECT pg_sleep(600)"))
			servicetest.Eventually(t, "the statement runs", func() bool { return len(backendsOf(t, s, db, `^SELECT pg_sleep.600`)) == 1 })
			if err := dying.Close(); err != nil {
				t.Fatal(err)
			}
		}},
		"a lock": {pgtest.Control, "idle in transaction", func(t *testing.T, r *servicetest.Running, db string) {
			leader := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=first")
			if err := servicetest.Exec(t, s.Connect(t, pgtest.Control, db), "BEGIN; SELECT 'held' FROM fencepost.fence FOR KEY SHARE"); err != nil {
				t.Fatal(err)
			}
			if err := leader.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := s.Database(t)
			r := servicetest.Start(t, s, func(c *config.Config) { c.Lease.Grace = config.Duration(10 * time.Minute) })
			c.hold(t, r, db)
			next, _ := wiretest.Connect(t, r.Address(), "user", pgtest.App, "database", db, "fencepost.resource", "billing", "fencepost.worker", "second")
			defer func() { _ = next.Close() }()
			servicetest.Eventually(t, "the takeover says what it waits for", func() bool { return len(r.View(t, db, "billing").Awaits) > 0 })
			v, now := r.View(t, db, "billing"), time.Now()
			held := backendsOf(t, s, db, `^SELECT pg_sleep.600|SELECT 'held'`)
			if len(v.Awaits) != 1 || len(held) != 1 {
				t.Fatalf("it waits for %+v, want %v", v.Awaits, held)
			}
			b := v.Awaits[0]
			if b.PID != held[0] || b.User != c.role || b.Address != "127.0.0.1" || b.State != c.state || b.Since == nil || b.Since.After(now) {
				t.Errorf("it waits for %+v, want backend %d of role %s, which is %s", b, held[0], c.role, c.state)
			}
			if left := b.EndsAt.Sub(now); left > 10*time.Minute || left < 9*time.Minute-servicetest.Patience {
				t.Errorf("it is ended in %s, with a grace of 10m", left)
			}
			out := runCommand(t, nil, "status", "--admin", r.AdminAddress().String(), "--resource", "billing")
			if want := fmt.Sprintf("%s/billing: takeover waits for backend %d of role %s (application ", db, b.PID, c.role); !strings.Contains(out.stdout, want) ||
				!strings.Contains(out.stdout, ", from 127.0.0.1): "+c.state+" since ") || !strings.Contains(out.stdout, ", ended in 9m") {
				t.Errorf("status does not show it:\n%s%s", out.stdout, out.stderr)
			}
			s.Exec(t, pgtest.Superuser, db, fmt.Sprintf("SELECT pg_terminate_backend(%d)", b.PID))
			servicetest.Eventually(t, "the takeover", func() bool { return r.View(t, db, "billing").Leader == "second" })
			if still := r.View(t, db, "billing").Awaits; len(still) != 0 {
				t.Errorf("the takeover is over, and still waits for %+v", still)
			}
		})
	}
}

// backendsOf returns the backends of a database whose last statement matches a pattern.
func backendsOf(t *testing.T, s *pgtest.Server, db, pattern string) []int32 {
	t.Helper()
	conn := s.Connect(t, pgtest.Superuser, db)
	defer func() { _ = conn.Close(context.Background()) }()
	rows, err := conn.Query(t.Context(), "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database() AND query ~ $1", pattern)
	if err != nil {
		t.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		t.Fatal(err)
	}
	return pids
}
