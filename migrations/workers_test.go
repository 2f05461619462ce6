package migrations_test

import (
	"context"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/migrations"
)

// workersServer is a server with a worker's role, a group that it is a member of, and an
// unrelated role.
func workersServer(t *testing.T, opts ...pgtest.Option) (s *pgtest.Server, db string) {
	t.Helper()
	s = pgtest.Start(t, opts...)
	s.Exec(t, pgtest.Superuser, "postgres", `CREATE ROLE "Shop staff"`, `CREATE ROLE clerk LOGIN IN ROLE "Shop staff"`, "CREATE ROLE stranger LOGIN")
	db = s.Database(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('before')")
	return s, db
}

func up(t *testing.T, s *pgtest.Server, db string, claim ...string) error {
	t.Helper()
	_, err := migrations.Up(context.Background(), s.Connect(t, pgtest.Control, db), migrations.Options{ClaimRoles: claim})
	return err
}

// TestWhoMayClaim: the roles that were named, their members, and nobody else. A later migration keeps them.
func TestWhoMayClaim(t *testing.T) {
	t.Parallel()
	s, db := workersServer(t)
	want := func(when string, may map[string]bool) {
		t.Helper()
		for role, want := range may {
			_, err := s.Connect(t, role, db).Exec(context.Background(), "SELECT fencepost.claim('before', 0)")
			state := map[bool]string{true: "ZF004", false: "42501"}[want] // 0 is no epoch
			if got := pgtest.StateOf(err); got != state {
				t.Errorf("%s: a claim of role %s: %v, want %s", when, role, err, state)
			}
		}
	}
	want("at first", map[string]bool{pgtest.App: false, "clerk": false, "stranger": false})
	if err := up(t, s, db, "Shop staff"); err != nil {
		t.Fatal(err)
	}
	if err := up(t, s, db, "stranger"); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"nobody here", "public", "PUBLIC"} {
		if err := up(t, s, db, wrong); err == nil || !strings.Contains(err.Error(), `the role "`+wrong+`" does not exist`) {
			t.Errorf("%q: %v; want an error that says what is wrong", wrong, err)
		}
	}
	if err := up(t, s, db); err != nil {
		t.Fatal(err)
	}
	want("two were named", map[string]bool{pgtest.App: false, "clerk": true, "stranger": true})
	s.Exec(t, pgtest.Control, db, "REVOKE USAGE ON SCHEMA fencepost FROM stranger")
	want("one was taken back", map[string]bool{pgtest.App: false, "clerk": true, "stranger": false})
}

func warnings(t *testing.T, s *pgtest.Server, db string) string {
	t.Helper()
	list, err := migrations.Warnings(context.Background(), s.Connect(t, pgtest.Control, db))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(list, "\n")
}

func wantWarning(t *testing.T, s *pgtest.Server, db, part string) {
	t.Helper()
	if got := warnings(t, s, db); !strings.Contains(got, part) {
		t.Errorf("the warnings are %q; want %q", got, part)
	}
}

func TestWarningsOfMightyRoles(t *testing.T) {
	t.Parallel()
	s, db := workersServer(t)
	if got := warnings(t, s, db); got != "" {
		t.Errorf("unexpected warnings: %s", got)
	}
	s.Exec(t, pgtest.Superuser, db, "GRANT pg_write_all_data TO clerk")
	wantWarning(t, s, db, "pg_write_all_data lets clerk change the fence")
	s.Exec(t, pgtest.Superuser, db, "GRANT fencepost TO stranger")
	wantWarning(t, s, db, "membership in the control role lets stranger change the fence itself, so Fencepost refuses workers of such roles: REVOKE fencepost FROM them")
}

// TestWhoMayOnlyGrantTheControlRoleIsNoMember: since 16, who creates a role may grant it, and cannot act as it.
func TestWhoMayOnlyGrantTheControlRoleIsNoMember(t *testing.T) {
	t.Parallel()
	s := pgtest.SharedMajor(t, 18)
	db := s.Database(t)
	s.Exec(t, pgtest.Superuser, db, "CREATE ROLE maker LOGIN; GRANT fencepost TO maker WITH ADMIN TRUE, INHERIT FALSE, SET FALSE; CREATE ROLE taker LOGIN; GRANT fencepost TO taker WITH INHERIT FALSE, SET TRUE")
	got := warnings(t, s, db)
	if !strings.Contains(got, "taker change the fence itself") || strings.Contains(got, "maker") {
		t.Errorf("the warnings are %q; want one about taker alone", got)
	}
}

func TestWarningOfRolesThatMayLockTheFence(t *testing.T) {
	t.Parallel()
	s := pgtest.SharedMajor(t, 18) // pg_maintain is new in 17
	db := s.Database(t)
	s.Exec(t, pgtest.Superuser, db, "CREATE ROLE keeper LOGIN IN ROLE pg_maintain")
	wantWarning(t, s, db, "pg_maintain lets keeper hold off takeovers")
}
