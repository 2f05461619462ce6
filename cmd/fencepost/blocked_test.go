package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestABlockedTakeoverSaysSoAtOnce checks that what blocks a takeover is named long
// before the grace has passed, wherever an operator looks.
func TestABlockedTakeoverSaysSoAtOnce(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t) // max_prepared_transactions is 10
	db := s.Database(t)
	r := startServing(t, s, func(c *config.Config) { c.Lease.Grace = config.Duration(10 * time.Minute) })
	leader := r.connect(t, db, "fencepost.resource=billing&fencepost.worker=first")
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
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	go func() {
		conn, err := pgx.Connect(ctx, r.dsn(db, "fencepost.resource=billing&fencepost.worker=second&fencepost.campaign=wait"))
		if err == nil {
			err = conn.Close(ctx)
		}
		next <- err
	}()
	metric := fmt.Sprintf("fencepost_grant_blocked{database=%q,resource=%q}", db, "billing")
	shows := func(path, part string) bool {
		_, body := r.ask(t, path)
		return strings.Contains(body, part)
	}
	eventually(t, "the takeover says what blocks it", func() bool { return shows("/v1/resources/"+db+"/billing", gid) })
	statusNames("while a takeover waits for it")
	if !shows("/metrics", metric+" 1") {
		t.Error("the metric does not show it")
	}
	if out := runCommand(t, nil, "status", "--admin", r.admin.Addr().String()); !strings.Contains(out.stdout, "takeover blocked: prepared transaction") {
		t.Errorf("status does not show it:\n%s%s", out.stdout, out.stderr)
	}
	if lines := r.log.lines(t, "takeover blocked by a transaction the control role cannot end"); len(lines) != 1 || lines[0]["resource"] != "billing" {
		t.Errorf("the log has %v", lines)
	}
	eventually(t, "/readyz to be ready", func() bool { // a busy server may not answer in time
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
			if err := execSQL(t, conn, sql); err != nil {
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
		hold        func(t *testing.T, r *running, db string) // makes the takeover wait, and ends the leader
	}{
		"a statement": {pgtest.App, "active", func(t *testing.T, r *running, db string) {
			dying, _ := wiretest.Connect(t, r.listeners[0].Addr().String(), "user", pgtest.App, "database", db, "fencepost.resource", "billing", "fencepost.worker", "first")
			dying.Send(wiretest.Query("SELECT pg_sleep(600)"))
			eventually(t, "the statement runs", func() bool { return len(backendsOf(t, s, db, `^SELECT pg_sleep.600`)) == 1 })
			if err := dying.Close(); err != nil {
				t.Fatal(err)
			}
		}},
		"a lock": {pgtest.Control, "idle in transaction", func(t *testing.T, r *running, db string) {
			leader := r.connect(t, db, "fencepost.resource=billing&fencepost.worker=first")
			if err := execSQL(t, s.Connect(t, pgtest.Control, db), "BEGIN; SELECT 'held' FROM fencepost.fence FOR KEY SHARE"); err != nil {
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
			r := startServing(t, s, func(c *config.Config) { c.Lease.Grace = config.Duration(10 * time.Minute) })
			c.hold(t, r, db)
			next, _ := wiretest.Connect(t, r.listeners[0].Addr().String(), "user", pgtest.App, "database", db, "fencepost.resource", "billing", "fencepost.worker", "second")
			defer func() { _ = next.Close() }()
			eventually(t, "the takeover says what it waits for", func() bool { return len(r.view(t, db, "billing").Awaits) > 0 })
			v, now := r.view(t, db, "billing"), time.Now()
			held := backendsOf(t, s, db, `^SELECT pg_sleep.600|SELECT 'held'`)
			if len(v.Awaits) != 1 || len(held) != 1 {
				t.Fatalf("it waits for %+v, want %v", v.Awaits, held)
			}
			b := v.Awaits[0]
			if b.PID != held[0] || b.User != c.role || b.Address != "127.0.0.1" || b.State != c.state || b.Since == nil || b.Since.After(now) {
				t.Errorf("it waits for %+v, want backend %d of role %s, which is %s", b, held[0], c.role, c.state)
			}
			if left := b.EndsAt.Sub(now); left > 10*time.Minute || left < 9*time.Minute-patience {
				t.Errorf("it is ended in %s, with a grace of 10m", left)
			}
			out := runCommand(t, nil, "status", "--admin", r.admin.Addr().String(), "--resource", "billing")
			if want := fmt.Sprintf("%s/billing: takeover waits for backend %d of role %s (application ", db, b.PID, c.role); !strings.Contains(out.stdout, want) ||
				!strings.Contains(out.stdout, ", from 127.0.0.1): "+c.state+" since ") || !strings.Contains(out.stdout, ", ended in 9m") {
				t.Errorf("status does not show it:\n%s%s", out.stdout, out.stderr)
			}
			s.Exec(t, pgtest.Superuser, db, fmt.Sprintf("SELECT pg_terminate_backend(%d)", b.PID))
			eventually(t, "the takeover", func() bool { return r.view(t, db, "billing").Leader == "second" })
			if still := r.view(t, db, "billing").Awaits; len(still) != 0 {
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

// TestReadinessAsksOneAtATime checks that concurrent and subsequent callers get the
// same result.
func TestReadinessAsksOneAtATime(t *testing.T) {
	t.Parallel()
	var r remembered[int]
	asked, release := make(chan struct{}), make(chan struct{})
	n := 0
	ask := func(ctx context.Context) (int, time.Duration) {
		n++
		asked <- struct{}{}
		<-release
		if ctx.Err() != nil {
			t.Error("the computation ended with the caller that started it")
		}
		return n, time.Hour
	}
	gone, leave := context.WithCancel(t.Context())
	answers := make(chan int, 10)
	go func() { answers <- r.get(gone, ask) }()
	<-asked
	leave()
	for range cap(answers) - 1 {
		go func() { answers <- r.get(t.Context(), ask) }()
	}
	close(release)
	for range cap(answers) {
		if got := <-answers; got != 1 {
			t.Errorf("answer %d, want the first one", got)
		}
	}
	go func() { <-asked }()
	r.until = time.Time{}
	if got := r.get(t.Context(), ask); got != 2 {
		t.Errorf("answer %d after the first one was too old", got)
	}
}

// TestADatabaseThatDoesNotAnswerHidesNoWarning checks that its last warnings stay, marked as such, that
// those of other databases are up to date, and that it is asked again soon. One that was dropped has none.
func TestADatabaseThatDoesNotAnswerHidesNoWarning(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	r := startServing(t, s, nil)
	blocked, other := s.Database(t), s.Database(t)
	for _, db := range []string{blocked, other} {
		s.Exec(t, pgtest.Control, db, "CREATE TABLE fencepost.said (said text)", "INSERT INTO fencepost.said VALUES ('the first warning')",
			"CREATE OR REPLACE FUNCTION fencepost.warnings() RETURNS SETOF text LANGUAGE sql STABLE AS 'SELECT said FROM fencepost.said'")
		r.connect(t, db, "fencepost.resource=billing&fencepost.worker=a")
	}
	const first, second = "the first warning", "the second warning"
	warned := func(of, part string) (bool, time.Duration) {
		list, counts := r.fences.warnings(t.Context())
		return slices.ContainsFunc(list, func(w string) bool {
			return strings.HasPrefix(w, "database "+of+": ") && strings.Contains(w, part)
		}), counts
	}
	for _, db := range []string{blocked, other} {
		eventually(t, "the warnings of database "+db, func() bool {
			found, counts := warned(db, first)
			return found && counts == warnedFor
		})
	}
	conn := s.Connect(t, pgtest.Control, blocked)
	if err := execSQL(t, conn, "BEGIN; LOCK TABLE fencepost.said"); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, pgtest.Control, other, "UPDATE fencepost.said SET said = 'the second warning'")
	eventually(t, "the new warning of the database that answers", func() bool {
		found, counts := warned(other, second)
		if counts != partlyFor {
			t.Errorf("the warnings count for %v while one database does not answer", counts)
		}
		return found
	})
	if found, _ := warned(blocked+", as last known", first); !found {
		t.Error("the last warnings of the database that does not answer are lost")
	}
	r.fences.mu.Lock()
	delete(r.fences.warned, blocked) // as if it had never answered
	r.fences.mu.Unlock()
	if found, _ := warned(blocked, "its warnings are not known: read the warnings"); !found {
		t.Error("nothing says that the warnings of a database are not known")
	}
	if err := execSQL(t, conn, "UPDATE fencepost.said SET said = 'the second warning'; COMMIT"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new warning of the other database", func() bool {
		found, counts := warned(blocked, second)
		return found && counts == warnedFor
	})
	s.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+other+" WITH (FORCE)")
	eventually(t, "no warning of a database that was dropped", func() bool {
		list, counts := r.fences.warnings(t.Context())
		return counts == warnedFor && !slices.ContainsFunc(list, func(w string) bool { return strings.Contains(w, other) })
	})
}
