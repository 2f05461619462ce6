package migrations_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/migrations"
)

// structureOf returns a database's dump without data.
func structureOf(t *testing.T, s *pgtest.Server, db string, options ...string) string {
	t.Helper()
	dump, err := exec.Command(s.Program(t, "pg_dump"), append(options, "--schema-only", "-d", s.DSN(pgtest.Superuser, db))...).Output()
	if err != nil {
		t.Fatalf("pg_dump: %v", err)
	}
	return string(dump)
}

// madeFrom makes a database from a dump.
func madeFrom(t *testing.T, s *pgtest.Server, dump string) (db string) {
	t.Helper()
	db = s.EmptyDatabase(t)
	load := exec.Command(s.Program(t, "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", s.DSN(pgtest.Superuser, db))
	load.Stdin = strings.NewReader(dump)
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v: %s", err, out)
	}
	return db
}

// TestADumpWithoutData: a migration makes the schema that the dump of a used one leaves anew, as it makes it where there is
// none.
func TestADumpWithoutData(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithTools(t))
	from := s.Database(t)
	s.Exec(t, pgtest.Control, from, "SELECT fencepost.register('billing')", "SELECT fencepost.raise_epoch(1, 6, 'me', '', '1s', '1s')", "SELECT nextval('fencepost.lease_award')",
		"SELECT fencepost.make_guard(1, NULL)", "DROP FUNCTION fencepost.sweep()")
	s.Exec(t, pgtest.App, from, "CREATE TABLE invoices (id int); CREATE TABLE other (id int)")
	s.Exec(t, pgtest.Superuser, from, `CREATE TRIGGER "~fencepost" BEFORE INSERT ON invoices FOR EACH ROW EXECUTE FUNCTION fencepost.guard_1('refuse')`)
	if dump := structureOf(t, s, from, "--exclude-schema=fencepost"); strings.Contains(dump, "CREATE SCHEMA fencepost") || !strings.Contains(dump, `CREATE TRIGGER "~fencepost"`) {
		t.Errorf("without the schema fencepost, the dump is\n%s", dump)
	}
	db := madeFrom(t, s, structureOf(t, s, from))
	conn := plainConn(t, s, db)
	done, err := migrations.Up(t.Context(), conn, migrations.Options{})
	if err != nil || done.From != 0 || done.Version != done.Latest || strings.Join(done.Orphans, " ") != "public.invoices" {
		t.Fatalf("the migration has done %+v, %v", done, err)
	}
	made := plainConn(t, s, s.Database(t))
	want, got := definitions(t, made), definitions(t, conn)
	delete(got, "function fencepost.guard_1()")
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s is\n%s\ninstead of\n%s", name, got[name], text)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d functions and views, want %d", len(got), len(want))
	}
	const ask = `SELECT count(*) = 1 AND NOT EXISTS (SELECT FROM fencepost.fence) AND (SELECT last_value > 1 AND NOT is_called FROM fencepost.fence_id_seq)
		FROM fencepost.floor, fencepost.identity i, fencepost.lease_marker, fencepost.lease_channel WHERE i.id::text <> $1`
	original := pgtest.Ask[string](t, s, from, "SELECT id::text FROM fencepost.identity")
	var fresh bool
	if err := conn.QueryRow(t.Context(), ask, original).Scan(&fresh); err != nil || !fresh {
		t.Errorf("the tables hold what those of a new schema do: %v, %v", fresh, err)
	}
	if open := pgtest.Ask[int](t, s, db, "SELECT count(*) FROM fencepost.replicable()"); open > 0 {
		t.Errorf("logical replication could write %d tables", open)
	}
	app := s.Connect(t, pgtest.App, db)
	if _, err := app.Exec(t.Context(), "INSERT INTO other VALUES (1)"); err != nil {
		t.Error(err)
	}
	if _, err := app.Exec(t.Context(), "INSERT INTO invoices VALUES (1)"); err == nil || !strings.Contains(err.Error(), "ZF004") {
		t.Errorf("a write of a table whose guard has no resource: %v", err)
	}
	if done, err := migrations.Up(t.Context(), conn, migrations.Options{}); err != nil || done.From != done.Latest || len(done.Orphans) > 0 {
		t.Errorf("a second migration has done %+v, %v", done, err)
	}
}

// TestAUsedSchemaIsNotMadeAnew: its epochs could be granted again. A row in any table says that it was used, and so does a
// sequence.
func TestAUsedSchemaIsNotMadeAnew(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithTools(t))
	conn := plainConn(t, s, madeFrom(t, s, structureOf(t, s, s.Database(t))))
	refused := func(what string) {
		t.Helper()
		before := definitions(t, conn)
		_, err := migrations.Up(t.Context(), conn, migrations.Options{})
		var incomplete *migrations.IncompleteError
		if !errors.As(err, &incomplete) || !strings.Contains(err.Error(), "from a backup") {
			t.Errorf("with %s: %v", what, err)
		}
		if after := definitions(t, conn); len(after) != len(before) {
			t.Errorf("with %s: %d functions and views, and %d before", what, len(after), len(before))
		}
	}
	for _, row := range []string{"fence (resource) VALUES ('billing')", "floor (epoch) VALUES (7)", "lease (resource) VALUES ('billing')",
		"grants SELECT f.id, '', 1, '', '', '', 0, 0, now(), pg_current_xact_id(), pg_current_snapshot() FROM f",
		"running (pid, backend_start, fence, epoch) VALUES (1, now(), 1, 1)"} {
		sql := "INSERT INTO fencepost." + row
		if strings.HasSuffix(row, "FROM f") {
			sql = "WITH f AS (INSERT INTO fencepost.fence (resource) VALUES ('billing') RETURNING id) " + sql
		}
		execute(t, conn, sql)
		refused(row)
		execute(t, conn, "TRUNCATE fencepost.fence, fencepost.floor, fencepost.lease, fencepost.running RESTART IDENTITY CASCADE")
	}
	for _, c := range []struct{ use, undo string }{
		{"INSERT INTO fencepost.fence (resource) VALUES ('billing'); TRUNCATE fencepost.fence CASCADE", "TRUNCATE fencepost.fence RESTART IDENTITY CASCADE"},
		{"SELECT nextval('fencepost.lease_award')", "ALTER SEQUENCE fencepost.lease_award RESTART"},
	} {
		execute(t, conn, c.use)
		refused(c.use)
		execute(t, conn, c.undo)
	}
	if done, err := migrations.Up(t.Context(), conn, migrations.Options{}); err != nil || done.Version != done.Latest {
		t.Errorf("unused: %+v, %v", done, err)
	}
}

func execute(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
