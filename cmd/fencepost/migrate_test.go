package main

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMigrateSaysWhatItDid(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.EmptyDatabase(t)
	dsn := s.DSN(pgtest.Superuser, db)
	first := runCommand(t, nil, "migrate", "--dsn", dsn)
	if first.code != exitOK || !strings.Contains(first.stdout, "applied 001_fence") || !strings.Contains(first.stdout, "run migrate for each database") {
		t.Errorf("first run: code %d\n%s%s", first.code, first.stdout, first.stderr)
	}
	second := runCommand(t, map[string]string{"FENCEPOST_DSN": dsn}, "migrate")
	if second.code != exitOK || !strings.Contains(second.stdout, "already") || strings.Contains(second.stdout, "applied") {
		t.Errorf("second run: code %d\n%s%s", second.code, second.stdout, second.stderr)
	}
	status := runCommand(t, nil, "status", "--dsn", s.DSN(pgtest.App, db))
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
