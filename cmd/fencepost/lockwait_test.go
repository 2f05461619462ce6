package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

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

// TestMigrateSaysWhomItWaitsFor: any role can take the lock that migrations share.
func TestMigrateSaysWhomItWaitsFor(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.EmptyDatabase(t)
	holder, who := holding(t, s, pgtest.App, db, "SELECT pg_advisory_lock(x'66656e6365706f73'::bigint)")
	migrate := func(timeout string) output {
		return runCommand(t, nil, "migrate", "--dsn", s.DSN(pgtest.Superuser, db), "--control-role", pgtest.Control, "--lock-timeout", timeout)
	}
	out := migrate("5s")
	if out.code != exitFailure || !strings.Contains(out.stderr, "waiting: the migration needs a lock that is held by "+who) ||
		!strings.Contains(out.stderr, "for a lock for 5s") || !strings.Contains(out.stderr, "it is held by "+who) || !strings.Contains(out.stderr, "pg_terminate_backend") {
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
