package main

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestExplainAsksTheDatabaseWhatIsProven(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.EmptyDatabase(t)
	s.Exec(t, pgtest.Superuser, db, "CREATE TABLE bills (id int)", "CREATE VIEW late AS SELECT 1")
	const sql = "SELECT count(*) FROM bills; SELECT * FROM late; DELETE FROM bills"
	out := runCommand(t, nil, "explain", "--dsn", s.DSN(pgtest.App, db), sql)
	if out.code != exitOK {
		t.Fatalf("exit code %d: %s", out.code, out.stderr)
	}
	for _, want := range []string{"proven harmless", "proven no: relation late is a view", "taken  for a write"} {
		if !strings.Contains(out.stdout, want) {
			t.Errorf("explain does not say %q:\n%s", want, out.stdout)
		}
	}
	if out := runCommand(t, nil, "explain", sql); out.code != exitOK || strings.Contains(out.stdout, "proven") {
		t.Errorf("without a database (exit code %d) it says what is proven:\n%s", out.code, out.stdout)
	}
	if out := runCommand(t, nil, "explain", "--dsn", "postgres://127.0.0.1:1/nowhere", sql); out.code != exitFailure {
		t.Errorf("exit code %d when the database cannot be reached", out.code)
	}
}
