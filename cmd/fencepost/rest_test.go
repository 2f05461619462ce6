package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
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
		servicetest.Eventually(t, "nobody is connected to the database", func() bool {
			var connected int
			if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = $1", db).Scan(&connected); err != nil {
				t.Fatal(err)
			}
			return connected == 0
		})
	}
	r := servicetest.Start(t, s, nil)
	for _, worker := range []string{"first", "second"} {
		conn := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker="+worker)
		if err := servicetest.Exec(t, conn, "CREATE TABLE "+worker+" (n int)"); err != nil {
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
	if warnings := r.Log.Lines(t, "cannot listen for changes of leases; looking at them now and then"); len(warnings) > 0 {
		t.Errorf("the log has %v", warnings)
	}

	letGo()
	administer("DROP DATABASE "+db, "CREATE DATABASE "+db+" TEMPLATE "+db+"_kept")
	_, err := pgx.Connect(t.Context(), r.DSN(db, "fencepost.resource=billing&fencepost.worker=third"))
	servicetest.WantState(t, err, "ZF004")
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
			r := servicetest.Start(t, s, func(c *config.Config) { c.Lease.Linger = config.Duration(linger) })
			const options = "fencepost.resource=billing&fencepost.worker=a"
			s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')",
				"UPDATE fencepost.fence SET epoch = 4")
			old := r.Connect(t, db, options)
			if err := servicetest.Exec(t, old, "CREATE TABLE t (n int)"); err != nil {
				t.Fatalf("a worker of the old database: %v", err)
			}
			s.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+db+" WITH (FORCE)", "CREATE DATABASE "+db,
				"GRANT CREATE ON DATABASE "+db+" TO "+pgtest.Control)
			migrate()
			s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('mail')", // with the number that billing had
				"UPDATE fencepost.fence SET epoch = 9")
			conn := r.Connect(t, db, options+"&fencepost.campaign=wait")
			if err := servicetest.Exec(t, conn, "CREATE TABLE t (n int)"); err != nil {
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
	r := servicetest.Start(t, s, nil)
	const options = "fencepost.resource=billing&fencepost.campaign=wait&fencepost.worker="
	for _, worker := range []string{"a", "b"} { // the second epoch is 2
		conn := r.Connect(t, db, options+worker)
		if err := conn.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+db+" WITH (FORCE)", "CREATE DATABASE "+db+" TEMPLATE "+pgtest.Template)
	if err := servicetest.Exec(t, r.Connect(t, db, options+"c"), "CREATE TEMPORARY TABLE t (n int)"); err != nil {
		t.Errorf("a worker of the new database: %v", err)
	}
}

// foreign makes another role in a database that has no schema fencepost, and has it make one. What is in it calls a function of that
// role, which then runs with the rights of whoever uses the schema. sprung reports whether it has been called, or was
// about to be in a read-only transaction, which ends with an error that contains SPRUNG.
func foreign(t *testing.T, s *pgtest.Server, db string) (role string, sprung func() bool) {
	t.Helper()
	role = "maker_of_" + db
	s.Exec(t, pgtest.Superuser, db, "CREATE ROLE "+role+" LOGIN", "GRANT CREATE ON DATABASE "+db+" TO "+role)
	t.Cleanup(func() {
		s.Exec(t, pgtest.Superuser, db, "SET ROLE NONE", "DROP OWNED BY "+role, "DROP ROLE "+role)
	})
	s.Exec(t, role, db,
		"CREATE SCHEMA trap", "CREATE SEQUENCE trap.sprung", "GRANT USAGE ON SCHEMA trap TO PUBLIC", "GRANT USAGE ON SEQUENCE trap.sprung TO PUBLIC",
		`CREATE FUNCTION trap.spring() RETURNS integer LANGUAGE plpgsql AS $$ BEGIN
			RETURN 30 + 0 * nextval('trap.sprung');
		EXCEPTION WHEN read_only_sql_transaction THEN
			RAISE EXCEPTION 'SPRUNG';
		END $$`,
		"CREATE FUNCTION trap.before() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.spring(); RETURN NEW; END $$",
		"CREATE SCHEMA fencepost", "GRANT USAGE ON SCHEMA fencepost TO PUBLIC",
		"CREATE VIEW fencepost.schema_version AS SELECT trap.spring() AS version, ''::text AS name, now() AS applied_at",
		`CREATE VIEW fencepost.status AS SELECT ''::text AS resource, ''::text AS worker, trap.spring()::bigint AS epoch, now() AS granted_at, ''::text AS state, now() AS state_since,
			now() AS confirmed_until, ''::text AS source, '0'::xid AS lockers, 0::bigint AS guarded_tables, '{}'::text[] AS orders,
			'{}'::text[] AS waiting, ''::text AS proxy, false AS says_led, false AS paused`,
		"CREATE VIEW fencepost.guarded_tables AS SELECT trap.spring() AS fence",
		`CREATE TABLE fencepost.rejections (minute timestamptz, database text, resource text, worker text, login_role text, kind text, write boolean, sqlstate text, fingerprint text,
			count bigint, first_at timestamptz, last_at timestamptz, epoch bigint, current_epoch bigint, current_worker text, client text, proxy text, statement text,
			CONSTRAINT rejections_pkey PRIMARY KEY (minute, database, resource, worker, login_role, kind, write, sqlstate, fingerprint))`,
		"CREATE TRIGGER before BEFORE INSERT ON fencepost.rejections FOR EACH ROW EXECUTE FUNCTION trap.before()",
		"CREATE VIEW fencepost.fence AS SELECT trap.spring() AS id, 'billing'::text AS resource",
		"CREATE VIEW fencepost.guarded AS SELECT trap.spring() AS fence, 0 AS tables", "CREATE VIEW fencepost.bars AS SELECT trap.spring() AS fence",
		`CREATE VIEW fencepost.orders AS SELECT trap.spring()::bigint AS id, ''::text AS kind, ''::text AS resource, ''::text AS worker, now() AS until, 0::bigint AS epoch,
			''::text AS asked_by, ''::text AS role, ''::text AS reason, now() AS asked_at`,
		"CREATE FUNCTION fencepost.enter(integer, integer, text, text, bigint, text, text, bigint, bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.spring(); END $$",
		"CREATE FUNCTION fencepost.holds(fencepost.fence, bigint, bigint, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
		"GRANT ALL ON ALL TABLES IN SCHEMA fencepost TO PUBLIC",
	)
	return role, func() bool { return pgtest.Ask[bool](t, s, db, "SELECT is_called FROM trap.sprung") }
}

// TestTheFirstWorkerOfADatabaseMadeAnewLeads: test suites drop a database and create it again at once, again and again. The
// first connection leads, as in any other database, whether the old one's worker has left or was cut off.
func TestTheFirstWorkerOfADatabaseMadeAnewLeads(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for name, worker := range map[string]string{"a worker of the same name": "&fencepost.worker=a", "a nameless worker": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := s.Database(t)
			r := servicetest.Start(t, s, nil)
			for round := range 8 {
				conn, err := pgx.Connect(t.Context(), r.DSN(db, "fencepost.resource=billing"+worker))
				if err != nil {
					t.Fatalf("round %d: connect: %v", round, err)
				}
				if err := servicetest.Exec(t, conn, "CREATE TABLE t (n int)"); err != nil {
					t.Errorf("round %d: the first statement: %v", round, err)
				}
				if round%2 == 0 {
					if err := conn.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				s.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+db+" WITH (FORCE)", "CREATE DATABASE "+db+" TEMPLATE "+pgtest.Template)
			}
		})
	}
}

// TestNoCommandUsesAForeignSchema: whoever may create a schema in a database must not have what it contains run
// by an operator's superuser, or by the control role.
func TestNoCommandUsesAForeignSchema(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.EmptyDatabase(t)
	maker, sprung := foreign(t, s, db)
	for _, setting := range []string{"RESET role", "SET role = " + maker} {
		s.Exec(t, pgtest.Superuser, db, "ALTER DATABASE "+db+" "+setting)
		for _, command := range []string{"migrate", "doctor", "status", "audit", "audit --verify", "guard list", "resource list", "evict billing", "pause billing", "ledger prune --keep 30d"} {
			for _, role := range []string{pgtest.Superuser, pgtest.Control} {
				out := runCommand(t, nil, append(strings.Fields(command), "--dsn", s.DSN(role, db))...)
				text := out.stdout + out.stderr
				if out.code == exitOK || !strings.Contains(text, "the schema fencepost belongs to role ") || !strings.Contains(text, "DROP SCHEMA fencepost CASCADE") || strings.Contains(text, "SPRUNG") {
					t.Errorf("%s: %s as %s: code %d: %s", setting, command, role, out.code, text)
				}
				if sprung() {
					t.Fatalf("%s: %s as %s has run what another role has put into the schema", setting, command, role)
				}
			}
		}
	}
}

// TestAProxyUsesNoForeignSchema: a refusal is to be recorded in the database that the client chooses.
func TestAProxyUsesNoForeignSchema(t *testing.T) {
	t.Parallel()
	s := pgtest.SharedMajor(t, 18) // where a connection without a resource needs no fence
	db := s.EmptyDatabase(t)
	maker, sprung := foreign(t, s, db)
	for _, c := range []struct{ grant, says string }{
		{"", "DROP SCHEMA fencepost CASCADE"},
		{"GRANT pg_signal_backend, pg_read_all_stats TO " + maker, "whose rights the role that asks does not have"},
	} {
		s.Exec(t, pgtest.Superuser, db, c.grant)
		r := servicetest.Start(t, s, nil)
		servicetest.WantState(t, servicetest.Exec(t, r.Connect(t, db, ""), "CREATE TABLE trap.work (n int)"), fencing.StateNotLeader)
		if c.grant == "" {
			_, err := pgx.Connect(t.Context(), r.DSN(db, "fencepost.resource=billing&fencepost.worker=w"))
			servicetest.WantState(t, err, fencing.StateNoFence)
		}
		if err := r.Stop(); err != nil {
			t.Fatal(err)
		}
		if lines := fmt.Sprint(r.Log.Lines(t, "refusals are not recorded in the database")); !strings.Contains(lines, c.says) {
			t.Errorf("after %q, the log says %v", c.grant, lines)
		}
		if sprung() {
			t.Errorf("after %q, the proxy has run what another role has put into the schema", c.grant)
		}
	}
}

// TestADatabaseMadeAnewByAnotherRole: the proxy knows the database, and lets go of it before it is dropped.
func TestADatabaseMadeAnewByAnotherRole(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := servicetest.Start(t, s, nil)
	conn := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=first")
	if err := servicetest.Exec(t, conn, "CREATE TABLE work (n int)"); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	servicetest.Eventually(t, "nobody is connected to the database", func() bool {
		return pgtest.Ask[int](t, s, "postgres", "SELECT count(*) FROM pg_stat_activity WHERE datname = $1", db) == 0
	})
	s.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+db, "CREATE DATABASE "+db)
	_, sprung := foreign(t, s, db)
	_, err := pgx.Connect(t.Context(), r.DSN(db, "fencepost.resource=billing&fencepost.worker=second"))
	servicetest.WantState(t, err, fencing.StateNoFence)
	if err == nil || !strings.Contains(err.Error(), "the schema fencepost belongs to role") {
		t.Errorf("a worker is refused with %v", err)
	}
	if sprung() {
		t.Error("the proxy has run what another role has put into the schema")
	}
}

// TestAConnectionWithoutASchemaIsNotKept: another role makes the schema only after the proxy has connected.
func TestAConnectionWithoutASchemaIsNotKept(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	st, err := store.Open(t.Context(), store.Config{Address: s.Addr(), Database: db, User: pgtest.Control})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	s.Exec(t, pgtest.Superuser, db, "DROP SCHEMA fencepost CASCADE")
	st.CloseIdle()
	if _, err := st.Gone(t.Context(), "another", ""); !store.NoSchema(err) {
		t.Errorf("without a schema: %v", err)
	}
	_, sprung := foreign(t, s, db)
	if _, err := st.Gone(t.Context(), "another", ""); err == nil || !strings.Contains(err.Error(), "the schema fencepost belongs to role") {
		t.Errorf("with a schema of another role: %v", err)
	}
	if sprung() {
		t.Error("what another role has put into the schema was run")
	}
}

// TestTheSessionOfACommand: what the owner of the database has set does not count for the role, and for how SQL is read; the
// role that the operator says does.
func TestTheSessionOfACommand(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.EmptyDatabase(t)
	s.Exec(t, pgtest.Superuser, "postgres", "ALTER DATABASE "+db+" SET role = "+pgtest.Control,
		"ALTER DATABASE "+db+" SET standard_conforming_strings = off", "ALTER DATABASE "+db+" SET quote_all_identifiers = on")
	for says, want := range map[string]string{"": pgtest.Superuser, "&role=" + pgtest.App: pgtest.App, "&options=-c%20role%3D" + pgtest.App: pgtest.App} {
		conn, err := connect(t.Context(), s.DSN(pgtest.Superuser, db)+says)
		if err != nil {
			t.Fatal(err)
		}
		var role, literals, identifiers string
		err = conn.QueryRow(t.Context(), "SELECT current_user, current_setting('standard_conforming_strings'), current_setting('quote_all_identifiers')").Scan(&role, &literals, &identifiers)
		if err != nil || role != want || literals != "on" || identifiers != "off" {
			t.Errorf("with %q, the role is %s, want %s; standard_conforming_strings is %s, quote_all_identifiers %s; %v", says, role, want, literals, identifiers, err)
		}
		if err := conn.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}
