package migrations_test

import (
	"context"
	"errors"
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestUpBySuperuserMakesAndEquipsTheControlRole(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	db := s.EmptyDatabase(t)
	s.Exec(t, pgtest.Superuser, "postgres", `ALTER ROLE app SET default_transaction_read_only = on`)
	conn := s.Connect(t, pgtest.Superuser, db)
	opts := migrations.Options{Control: `odd "one"`}
	if _, err := migrations.Up(context.Background(), conn, opts); err == nil {
		t.Fatal("a missing control role was accepted without a password to create it with")
	}
	opts.Password = `it's`
	state, err := migrations.Up(context.Background(), conn, opts)
	if err != nil {
		t.Fatal(err)
	}
	var owner string
	var signals bool
	if err := conn.QueryRow(context.Background(), `SELECT tableowner, pg_has_role(tableowner, 'pg_signal_backend', 'USAGE')
		FROM pg_tables WHERE schemaname = 'fencepost' AND tablename = 'fence'`).Scan(&owner, &signals); err != nil {
		t.Fatal(err)
	}
	if state.Version == 0 || owner != opts.Control || !signals {
		t.Errorf("version %d, owner %q, may signal %t", state.Version, owner, signals)
	}
}

func TestUpNamesTheMissingRight(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for _, c := range []struct {
		name, user, control, right, fix string
	}{
		{"no create on the database", "bare_control", "", `CREATE on database`, `GRANT CREATE ON DATABASE`},
		{"no signal right", pgtest.App, "", "membership in pg_signal_backend", `GRANT pg_signal_backend TO "app"`},
		{"a control role that it may make but not equip", "makes_roles", "new_control", "membership in pg_signal_backend", `CREATE ROLE "new_control" LOGIN PASSWORD '...'; GRANT pg_signal_backend, pg_read_all_stats TO "new_control"`},
		{"a control role that does not inherit", pgtest.Superuser, "heirless", "the rights of pg_signal_backend", `ALTER ROLE "heirless" INHERIT; REVOKE pg_signal_backend FROM "heirless"; GRANT pg_signal_backend TO "heirless"`},
		{"not a member of the control role", pgtest.App, pgtest.Control, `membership in the control role "fencepost"`, `GRANT "fencepost" TO "app"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := s.EmptyDatabase(t)
			if c.user == "bare_control" {
				s.Exec(t, pgtest.Superuser, db, "CREATE ROLE bare_control LOGIN", "GRANT pg_signal_backend, pg_read_all_stats TO bare_control")
				t.Cleanup(func() { s.Exec(t, pgtest.Superuser, db, "DROP ROLE bare_control") })
			}
			if c.control == "heirless" {
				s.Exec(t, pgtest.Superuser, db, "CREATE ROLE heirless LOGIN NOINHERIT")
				t.Cleanup(func() { s.Exec(t, pgtest.Superuser, db, "DROP ROLE heirless") })
			}
			if c.user == "makes_roles" {
				s.Exec(t, pgtest.Superuser, db, "CREATE ROLE makes_roles LOGIN CREATEROLE")
				t.Cleanup(func() { s.Exec(t, pgtest.Superuser, db, "DROP ROLE makes_roles") })
			}
			conn := s.Connect(t, c.user, db)
			_, err := migrations.Up(context.Background(), conn, migrations.Options{Control: c.control, Password: "secret"})
			var right *migrations.RightError
			if !errors.As(err, &right) {
				t.Fatalf("got %v, want a RightError", err)
			}
			if !contains(right.Right, c.right) || !contains(right.Fix, c.fix) {
				t.Errorf("right %q, fix %q; want %q, %q", right.Right, right.Fix, c.right, c.fix)
			}
			state, err := migrations.Status(context.Background(), conn)
			if err != nil || state.Version != 0 {
				t.Errorf("after the refusal: %+v, %v", state, err)
			}
		})
	}
}

func TestUpIgnoresHostileDefaults(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.EmptyDatabase(t)
	for _, setting := range []string{"default_transaction_read_only = on", "default_transaction_isolation = 'serializable'", "search_path = 'public'"} {
		s.Exec(t, pgtest.Superuser, "postgres", "ALTER DATABASE "+db+" SET "+setting)
	}
	if _, err := migrations.Up(context.Background(), s.Connect(t, pgtest.Control, db), migrations.Options{}); err != nil {
		t.Error(err)
	}
}

func TestUpCorrectsGrants(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.Control, db,
		"SELECT fencepost.register('billing')",
		"REVOKE ALL ON fencepost.status FROM pg_monitor",
		"GRANT USAGE ON SCHEMA fencepost TO PUBLIC",
		"GRANT SELECT ON ALL SEQUENCES IN SCHEMA fencepost TO PUBLIC",
		"GRANT ALL ON fencepost.running TO PUBLIC")
	if _, err := migrations.Up(context.Background(), s.Connect(t, pgtest.Control, db), migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	var uses, reads, notes, monitors bool
	if err := s.Connect(t, pgtest.Superuser, db).QueryRow(context.Background(),
		`SELECT has_schema_privilege('app', 'fencepost', 'USAGE'), has_sequence_privilege('app', 'fencepost.lease_award', 'SELECT'),
			has_table_privilege('app', 'fencepost.running', 'DELETE'), has_table_privilege('pg_monitor', 'fencepost.status', 'SELECT')`).Scan(&uses, &reads, &notes, &monitors); err != nil {
		t.Fatal(err)
	}
	if uses || reads || notes || !monitors {
		t.Errorf("app uses the schema: %t, reads the sequence: %t, writes the registry: %t; pg_monitor reads the status: %t", uses, reads, notes, monitors)
	}
}
