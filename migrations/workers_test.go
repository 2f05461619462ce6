package migrations_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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

func up(t *testing.T, s *pgtest.Server, db string, workers ...string) error {
	t.Helper()
	_, err := migrations.Up(context.Background(), s.Connect(t, pgtest.Control, db), migrations.Options{WorkerRoles: workers})
	return err
}

// mayRead reports whether a role may do what the check does, on each fence.
func mayRead(t *testing.T, s *pgtest.Server, db, role string) bool {
	t.Helper()
	conn := s.Connect(t, role, db)
	all := 0
	for _, sql := range []string{"SELECT last_value FROM fencepost.epoch_1", "SELECT last_value FROM fencepost.epoch_2",
		"SELECT fencepost.current(1, 1, 1)", "SELECT fencepost.refuse(1, 0, 'w', 'i', 0, false)", "SELECT fencepost.verdict(1, 0, 'w', 'i', 0, false)", "SELECT fencepost.undone()"} {
		_, err := conn.Exec(context.Background(), sql)
		var pg *pgconn.PgError
		switch {
		case err == nil, errors.As(err, &pg) && pg.Code == "ZF002", pg != nil && pg.Code == "ZF001":
			all++
		case pg == nil || pg.Code != "42501":
			t.Fatalf("%s: %s: %v", role, sql, err)
		}
	}
	if all != 0 && all != 6 {
		t.Errorf("role %s may do %d of the 6 things that Fencepost does in its name", role, all)
	}
	return all > 0
}

func TestWorkerRolesAreRemembered(t *testing.T) {
	t.Parallel()
	s, db := workersServer(t)
	want := func(when string, app, clerk, stranger bool) {
		t.Helper()
		for role, may := range map[string]bool{pgtest.App: app, "clerk": clerk, "stranger": stranger} {
			if got := mayRead(t, s, db, role); got != may {
				t.Errorf("%s: role %s may read: %t, want %t", when, role, got, may)
			}
		}
	}
	if err := up(t, s, db, "Shop staff"); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('after')")
	want("one role named", false, true, false)
	if err := up(t, s, db); err != nil {
		t.Fatal(err)
	}
	want("a plain run later", false, true, false)
	if err := up(t, s, db, pgtest.App, "stranger"); err != nil {
		t.Fatal(err)
	}
	want("two others named", true, false, true)
	if err := up(t, s, db, "PUBLIC"); err != nil {
		t.Fatal(err)
	}
	want("the way back", true, true, true)
	for _, wrong := range [][]string{{"nobody here"}, {"public", pgtest.App}} {
		if err := up(t, s, db, wrong...); err == nil || !strings.Contains(err.Error(), "worker role") {
			t.Errorf("%q: %v; want an error that says what is wrong", wrong, err)
		}
	}
	want("after what was refused", true, true, true)
}

// TestAWorkerRoleThatIsGoneOpensNothing checks that nobody may read then, rather than
// everybody, and that the operator is warned.
func TestAWorkerRoleThatIsGoneOpensNothing(t *testing.T) {
	t.Parallel()
	s, db := workersServer(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('after')")
	if err := up(t, s, db, "stranger"); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, pgtest.Superuser, db, "DROP OWNED BY stranger", "DROP ROLE stranger")
	if err := up(t, s, db); err != nil {
		t.Fatal(err)
	}
	if mayRead(t, s, db, pgtest.App) {
		t.Error("every role may read the fence again")
	}
	wantWarning(t, s, db, "the worker role stranger does not exist any more")
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

func TestWarningsOfPreparedTransactionsAndOfMightyRoles(t *testing.T) {
	t.Parallel()
	s, db := workersServer(t) // max_prepared_transactions is 10
	wantWarning(t, s, db, "every role may read the fence")
	if err := up(t, s, db, "Shop staff"); err != nil {
		t.Fatal(err)
	}
	wantWarning(t, s, db, "can still block a takeover")
	s.Exec(t, pgtest.Superuser, db, "GRANT pg_write_all_data TO stranger")
	if got := warnings(t, s, db); strings.Contains(got, "stranger") {
		t.Errorf("the warning names a role of no worker: %s", got)
	}
	s.Exec(t, pgtest.Superuser, db, "GRANT pg_write_all_data TO clerk")
	wantWarning(t, s, db, "pg_write_all_data lets clerk change the fence")

	none, quiet := workersServer(t, pgtest.WithConfig(map[string]string{"max_prepared_transactions": "0"}))
	if got := warnings(t, none, quiet); got != "" {
		t.Errorf("unexpected warnings: %s", got)
	}
}

// TestPostgresLocksASequenceBeforeItLooksAtTheRight shows why privileges alone do not
// keep a role from blocking a takeover on purpose, as the warning says.
func TestPostgresLocksASequenceBeforeItLooksAtTheRight(t *testing.T) {
	t.Parallel()
	s, db := workersServer(t)
	if err := up(t, s, db, pgtest.App); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	conn := s.Connect(t, "stranger", db)
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	sub, err := tx.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var pg *pgconn.PgError
	if _, err := sub.Exec(ctx, "SELECT nextval('fencepost.epoch_1')"); !errors.As(err, &pg) || pg.Code != "42501" {
		t.Fatalf("nextval: %v; want 42501", err)
	}
	if err := sub.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(ctx, "SELECT FROM pg_locks WHERE relation = 'fencepost.epoch_1'::regclass AND pid = pg_backend_pid()").Scan(); errors.Is(err, pgx.ErrNoRows) {
		t.Error("no lock was taken: this Postgres checks the privilege first, so the warning can be removed")
	} else if err != nil {
		t.Fatal(err)
	}
}
