package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/pgtest"
)

// holding opens a session of the worker's role that has run statements, and describes it as commands do.
func holding(t *testing.T, s *pgtest.Server, user, db string, statements ...string) (conn *pgx.Conn, described string) {
	t.Helper()
	conn = s.Connect(t, user, db)
	for _, sql := range statements {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return conn, fmt.Sprintf("backend %d of role %q (application ", conn.PgConn().PID(), user)
}

// TestMigrateSaysWhomItWaitsFor: any role can take the lock that migrations share. The table of
// versions is the first that is read.
func TestMigrateSaysWhomItWaitsFor(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	empty, migrated := s.EmptyDatabase(t), s.Database(t)
	for _, c := range []struct {
		name, db, user string
		holds          []string
	}{
		{"the lock of migrations", empty, pgtest.App, []string{"SELECT pg_advisory_lock(x'66656e6365706f73'::bigint)"}},
		{"the table of versions", migrated, pgtest.Control, []string{"BEGIN", "LOCK TABLE fencepost.schema_version"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			testMigrateWaits(t, s, c.db, c.user, c.holds)
		})
	}
}

func testMigrateWaits(t *testing.T, s *pgtest.Server, db, user string, holds []string) {
	holder, who := holding(t, s, user, db, holds...)
	migrate := func(timeout string) output {
		return runCommand(t, nil, "migrate", "--dsn", s.DSN(pgtest.Superuser, db), "--control-role", pgtest.Control, "--lock-timeout", timeout)
	}
	out := migrate("15s")
	if out.code != exitFailure || !strings.Contains(out.stderr, "waiting: the migration needs a lock that is held by "+who) ||
		!strings.Contains(out.stderr, "for a lock for 15s") || !strings.Contains(out.stderr, "it is held by "+who) || !strings.Contains(out.stderr, "pg_terminate_backend") {
		t.Errorf("while %s holds the lock: code %d\n%s%s", who, out.code, out.stdout, out.stderr)
	}
	if err := holder.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if out := migrate("1m"); out.code != exitOK {
		t.Errorf("after that: code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	if out := migrate("0s"); out.code != exitUsage {
		t.Errorf("without any time: code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
}

// TestCommandsSayWhoHasLockedTheFence: somebody has locked the table of the fences.
func TestCommandsSayWhoHasLockedTheFence(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')")
	_, who := holding(t, s, pgtest.Control, db, "BEGIN", "LOCK TABLE fencepost.fence")
	dsn := s.DSN(pgtest.Control, db)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"status", "--dsn", dsn}, "needs a lock that is held by " + who},
		{[]string{"evict", "billing", "--dsn", dsn}, "table fencepost.fence is locked by " + who},
	} {
		out := runCommand(t, nil, c.args...)
		if out.code != exitFailure || !strings.Contains(out.stderr, c.says) || strings.Contains(out.stderr, "fencepost migrate") {
			t.Errorf("%v: code %d\n%s%s", c.args, out.code, out.stdout, out.stderr)
		}
	}
}

// signalled is a standard error that calls once when it is first written to.
type signalled struct {
	bytes.Buffer
	call func()
}

func (s *signalled) Write(b []byte) (int, error) {
	defer s.call()
	return s.Buffer.Write(b)
}

// TestGuardSaysWhomItWaitsFor interrupts commands when they have said that they wait. They change nothing.
func TestGuardSaysWhomItWaitsFor(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	dsn := s.DSN(pgtest.Superuser, db)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')")
	s.Exec(t, pgtest.App, db, "CREATE TABLE invoices (id int)")
	guard := func(args ...string) []string {
		return append(append([]string{"guard"}, args...), "--table", "public.invoices", "--dsn", dsn)
	}
	listed := func() string { return runCommand(t, nil, "guard", "list", "--dsn", dsn).stdout }
	for _, args := range [][]string{{"add", "--resource", "billing"}, {"remove"}} {
		before := listed()
		writer, who := holding(t, s, pgtest.App, db, "BEGIN", "LOCK TABLE invoices IN ROW EXCLUSIVE MODE")
		ctx, interrupt := context.WithTimeout(context.Background(), time.Minute)
		defer interrupt()
		errs := signalled{call: interrupt}
		term := terminal{stdout: new(bytes.Buffer), stderr: &errs, getenv: func(string) string { return "" }}
		code := run(ctx, term, guard(args...))
		if text := errs.String(); code != exitFailure || !strings.Contains(text, "waiting: table public.invoices is used by "+who) ||
			!strings.Contains(text, "interrupted before it was done") || strings.Contains(text, "canceling statement") {
			t.Errorf("%v, while %s uses the table: code %d\n%s", args, who, code, text)
		}
		if after := listed(); after != before {
			t.Errorf("%v was interrupted, and has changed the guards: before\n%safter\n%s", args, before, after)
		}
		if err := writer.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if out := runCommand(t, nil, guard(args...)...); out.code != exitOK {
			t.Errorf("%v: code %d\n%s%s", args, out.code, out.stdout, out.stderr)
		}
	}
}

func TestMigrateSaysWhatItDid(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.EmptyDatabase(t)
	dsn := s.DSN(pgtest.Superuser, db)
	first := runCommand(t, nil, "migrate", "--dsn", dsn)
	if first.code != exitOK || !strings.Contains(first.stdout, "made the schema fencepost, version 1") || !strings.Contains(first.stdout, "run migrate for each database") {
		t.Errorf("first run: code %d\n%s%s", first.code, first.stdout, first.stderr)
	}
	second := runCommand(t, map[string]string{"FENCEPOST_DSN": dsn}, "migrate")
	if second.code != exitOK || !strings.Contains(second.stdout, "already") || strings.Contains(second.stdout, "applied") {
		t.Errorf("second run: code %d\n%s%s", second.code, second.stdout, second.stderr)
	}
	status := runCommand(t, nil, "status", "--dsn", s.DSN(pgtest.Control, db))
	if status.code != exitOK || !strings.Contains(status.stdout, "no resources yet") {
		t.Errorf("status: code %d\n%s%s", status.code, status.stdout, status.stderr)
	}
}

func TestMigrateSaysWhichRightIsMissing(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	out := runCommand(t, nil, "migrate", "--dsn", s.DSN(pgtest.App, s.EmptyDatabase(t)))
	if out.code != exitFailure || !strings.Contains(out.stderr, "GRANT") {
		t.Errorf("code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
}

func TestStatusOfADatabaseWithoutTheSchema(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	out := runCommand(t, nil, "status", "--dsn", s.DSN(pgtest.Superuser, s.EmptyDatabase(t)))
	if out.code != exitFailure || !strings.Contains(out.stderr, "fencepost migrate") {
		t.Errorf("code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
}
