package migrations_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/migrations"
)

// definitionsSQL shows all functions and views of the schema, with who may use them.
const definitionsSQL = `SELECT 'function ' || p.oid::regprocedure, pg_get_functiondef(p.oid) || coalesce(p.proacl, '{}')::text FROM pg_proc p WHERE p.pronamespace = 'fencepost'::regnamespace
	UNION ALL SELECT 'view ' || c.oid::regclass, pg_get_viewdef(c.oid) || coalesce(c.relacl, '{}')::text FROM pg_class c WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind = 'v'`

func definitions(t *testing.T, conn *pgx.Conn) map[string]string {
	t.Helper()
	rows, err := conn.Query(t.Context(), definitionsSQL)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	var name, text string
	if _, err := pgx.ForEachRow(rows, []any{&name, &text}, func() error { all[name] = text; return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// plainConn connects as the control role, and has no names of the schema in its search_path.
func plainConn(t *testing.T, s *pgtest.Server, db string) *pgx.Conn {
	t.Helper()
	conn := s.Connect(t, pgtest.Control, db)
	if _, err := conn.Exec(t.Context(), "SET search_path = pg_catalog, pg_temp"); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestMissingFunctionsAndViewsAreMadeAgain drops every function and view of the schema. A migration makes
// them again as they were.
func TestMissingFunctionsAndViewsAreMadeAgain(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	conn := plainConn(t, s, db)
	before := definitions(t, conn)
	for name := range before {
		if _, err := conn.Exec(t.Context(), "DROP "+strings.Replace(name, " ", " IF EXISTS ", 1)+" CASCADE"); err != nil {
			t.Fatal(err)
		}
	}
	problem, remedy, err := migrations.Examine(t.Context(), conn, "fencepost migrate --dsn X")
	if err != nil || !strings.Contains(problem, "lacks function fencepost.") || remedy != "Run: fencepost migrate --dsn X (it makes again what is missing)" {
		t.Errorf("the problem is %q, the remedy %q, the error %v", problem, remedy, err)
	}
	done, err := migrations.Up(t.Context(), conn, migrations.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(done.Repaired) != len(before) {
		t.Errorf("%d functions and views were made again, and %d were there", len(done.Repaired), len(before))
	}
	after := definitions(t, conn)
	for name, text := range before {
		if after[name] != text {
			t.Errorf("%s was\n%s\nand is now\n%s", name, text, after[name])
		}
	}
	if problem, _, err := migrations.Examine(t.Context(), conn, ""); problem != "" || err != nil {
		t.Errorf("afterwards: %q, %v", problem, err)
	}
	if done, err := migrations.Up(t.Context(), conn, migrations.Options{}); err != nil || len(done.Repaired) != 0 {
		t.Errorf("a second run made again %v: %v", done.Repaired, err)
	}
}

// TestEveryObjectIsLookedFor renames each function, view, table and sequence that a migration has made.
func TestEveryObjectIsLookedFor(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	conn := plainConn(t, s, s.Database(t))
	rows, err := conn.Query(t.Context(), `SELECT 'function ' || p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'fencepost'::regnamespace
		UNION ALL SELECT CASE c.relkind WHEN 'v' THEN 'view ' WHEN 'S' THEN 'sequence ' ELSE 'table ' END || c.oid::regclass FROM pg_class c
		WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind IN ('r', 'v', 'S') AND c.relname <> 'schema_version' AND c.relname NOT LIKE '%_id_seq' -- of identity columns`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "ALTER "+name+" RENAME TO elsewhere"); err != nil {
			t.Fatal(err)
		}
		problem, remedy, err := migrations.Examine(t.Context(), conn, "fencepost migrate")
		data := strings.HasPrefix(name, "table") || strings.HasPrefix(name, "sequence")
		if err != nil || !strings.Contains(problem, "lacks ") || !strings.Contains(problem, strings.ReplaceAll(name, `"`, "")) || strings.Contains(remedy, "backup") != data {
			t.Errorf("without %s: problem %q, remedy %q, error %v", name, problem, remedy, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if problem, _, err := migrations.Examine(t.Context(), conn, ""); problem != "" || err != nil {
		t.Errorf("at last: %q, %v", problem, err)
	}
	if _, err := conn.Exec(t.Context(), "INSERT INTO fencepost.schema_version VALUES (9999, 'later'); DROP TABLE fencepost.floor"); err != nil {
		t.Fatal(err)
	}
	if problem, _, err := migrations.Examine(t.Context(), conn, ""); problem != "" || err != nil {
		t.Errorf("a newer schema: %q, %v", problem, err)
	}
}

// TestALostTableIsNotMadeAgain: an empty fence would let an epoch be granted a second time.
func TestALostTableIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for _, table := range []string{"fence", "schema_version"} {
		db := s.Database(t)
		conn := plainConn(t, s, db)
		s.Exec(t, pgtest.Control, db, "DROP FUNCTION fencepost.sweep()", "ALTER TABLE fencepost."+table+" RENAME TO elsewhere")
		_, err := migrations.Up(context.Background(), conn, migrations.Options{})
		var incomplete *migrations.IncompleteError
		if !errors.As(err, &incomplete) || !strings.Contains(err.Error(), "table fencepost."+table) || !strings.Contains(err.Error(), "from a backup") {
			t.Errorf("without %s: %v", table, err)
		}
		if definitions(t, conn)["function fencepost.sweep()"] != "" {
			t.Errorf("without %s, a function was made again", table)
		}
	}
}
