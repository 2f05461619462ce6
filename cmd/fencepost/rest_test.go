package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/migrations"
)

// TestADatabaseThatNobodyUsesIsLetGo checks that after the last worker has left,
// Fencepost does not stay connected to the database, so that it can be renamed or
// dropped. A copy of an older state under the same name counts as restored.
func TestADatabaseThatNobodyUsesIsLetGo(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	administer := func(statements ...string) {
		t.Helper()
		s.Exec(t, pgtest.Superuser, "postgres", statements...)
	}
	admin := s.Connect(t, pgtest.Superuser, "postgres")
	letGo := func() {
		t.Helper()
		eventually(t, "nobody is connected to the database", func() bool {
			var connected int
			if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = $1", db).Scan(&connected); err != nil {
				t.Fatal(err)
			}
			return connected == 0
		})
	}
	r := startServing(t, s, nil)
	for _, worker := range []string{"first", "second"} {
		conn := r.connect(t, db, "fencepost.resource=billing&fencepost.worker="+worker)
		if err := execSQL(t, conn, "CREATE TABLE "+worker+" (n int)"); err != nil {
			t.Fatalf("%s: %v", worker, err)
		}
		if err := conn.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		letGo()
		administer("ALTER DATABASE "+db+" RENAME TO "+db+"_away", "ALTER DATABASE "+db+"_away RENAME TO "+db)
		if worker == "first" {
			administer("CREATE DATABASE " + db + "_kept TEMPLATE " + db)
			t.Cleanup(func() { administer("DROP DATABASE " + db + "_kept WITH (FORCE)") })
		}
	}
	if warnings := r.log.lines(t, "cannot listen for changes of leases; looking at them now and then"); len(warnings) > 0 {
		t.Errorf("the log has %v", warnings)
	}

	letGo()
	administer("DROP DATABASE "+db, "CREATE DATABASE "+db+" TEMPLATE "+db+"_kept")
	_, err := pgx.Connect(t.Context(), r.dsn(db, "fencepost.resource=billing&fencepost.worker=third"))
	wantState(t, err, "ZF004")
	if err == nil || !strings.Contains(err.Error(), "restored from an older state") {
		t.Errorf("a worker of a restored database: %v", err)
	}
}

// TestADatabaseMadeAnewIsAnotherOne checks that a database that was dropped and made anew
// under its name is not taken for the old one: neither are its epochs too low, nor does the
// number of a fence of the old one stand for another resource in it.
func TestADatabaseMadeAnewIsAnotherOne(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for name, linger := range map[string]time.Duration{"no candidacy is left": 0, "a candidacy is left": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := s.EmptyDatabase(t)
			migrate := func() {
				t.Helper()
				if _, err := migrations.Up(t.Context(), s.Connect(t, pgtest.Control, db), migrations.Options{Control: pgtest.Control}); err != nil {
					t.Fatal(err)
				}
				s.Exec(t, pgtest.Control, db, "ALTER TABLE fencepost.fence ALTER COLUMN id RESTART WITH 1") // by chance, or by a template
			}
			migrate()
			r := startServing(t, s, func(c *config.Config) { c.Lease.Linger = config.Duration(linger) })
			const options = "fencepost.resource=billing&fencepost.worker=a"
			s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')",
				"UPDATE fencepost.fence SET epoch = 4", "SELECT setval('fencepost.epoch_1', 4)")
			old := r.connect(t, db, options)
			if err := execSQL(t, old, "CREATE TABLE t (n int)"); err != nil {
				t.Fatalf("a worker of the old database: %v", err)
			}
			s.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+db+" WITH (FORCE)", "CREATE DATABASE "+db,
				"GRANT CREATE ON DATABASE "+db+" TO "+pgtest.Control)
			migrate()
			s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('mail')", // with the number that billing had
				"UPDATE fencepost.fence SET epoch = 9", "SELECT setval('fencepost.epoch_1', 9)")
			conn := r.connect(t, db, options+"&fencepost.campaign=wait")
			if err := execSQL(t, conn, "CREATE TABLE t (n int)"); err != nil {
				t.Fatalf("a worker of the new database: %v", err)
			}
			var billing, mail int
			err := s.Connect(t, pgtest.Control, db).QueryRow(t.Context(), `SELECT (SELECT epoch FROM fencepost.fence WHERE resource = 'billing'),
				(SELECT epoch FROM fencepost.fence WHERE resource = 'mail')`).Scan(&billing, &mail)
			if err != nil || billing != 1 || mail != 9 {
				t.Errorf("billing has epoch %d, mail %d, %v; want 1 and 9", billing, mail, err)
			}
		})
	}
}

// TestADatabaseMadeFromATemplateIsAnotherOne checks the same for a template that has the
// schema, and with it an identity.
func TestADatabaseMadeFromATemplateIsAnotherOne(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t) // a copy of a database that has the schema
	r := startServing(t, s, nil)
	const options = "fencepost.resource=billing&fencepost.campaign=wait&fencepost.worker="
	for _, worker := range []string{"a", "b"} { // the second epoch is 2
		conn := r.connect(t, db, options+worker)
		if err := conn.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+db+" WITH (FORCE)", "CREATE DATABASE "+db+" TEMPLATE "+pgtest.Template)
	if err := execSQL(t, r.connect(t, db, options+"c"), "CREATE TEMPORARY TABLE t (n int)"); err != nil {
		t.Errorf("a worker of the new database: %v", err)
	}
}
