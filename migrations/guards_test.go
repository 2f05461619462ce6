package migrations_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/migrations"
)

// TestGuardsOfAnEarlierSchema migrates a database of migration 014 with one guarded table,
// and a wrong number of them. Its functions are made anew, and what is there is recorded.
func TestGuardsOfAnEarlierSchema(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.EmptyDatabase(t)
	statements := []string{"BEGIN", "SET LOCAL search_path = pg_catalog, pg_temp", "CREATE SCHEMA fencepost",
		"CREATE TABLE fencepost.schema_version (version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT pg_catalog.now())"}
	for version := 1; version <= 14; version++ {
		files, err := filepath.Glob(fmt.Sprintf("%03d_*.sql", version))
		if err != nil || len(files) != 1 {
			t.Fatalf("migration %d: %v, %v", version, files, err)
		}
		text, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		statements = append(statements, string(text), fmt.Sprintf("INSERT INTO fencepost.schema_version VALUES (%d, 'x')", version))
	}
	statements = append(statements, "COMMIT",
		"SELECT f, fencepost.make_guard(f, NULL), fencepost.make_guard(f, 'e_''1') FROM fencepost.register('billing') f", "INSERT INTO fencepost.guarded SELECT f.id, 9 FROM fencepost.fence f",
		"SELECT f, fencepost.make_guard(f, NULL) FROM fencepost.register('gone') f", "INSERT INTO fencepost.guarded SELECT f.id, 1 FROM fencepost.fence f WHERE f.resource = 'gone'")
	conn := s.Connect(t, pgtest.Control, db)
	for _, sql := range statements {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	var fence int
	if err := conn.QueryRow(context.Background(), "SELECT id FROM fencepost.fence WHERE resource = 'billing'").Scan(&fence); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, pgtest.App, db, `CREATE TABLE public.invoices (id int, "e_'1" bigint)`)
	s.Exec(t, pgtest.Superuser, db,
		fmt.Sprintf(`CREATE TRIGGER "~fencepost" BEFORE INSERT OR UPDATE OR DELETE ON public.invoices FOR EACH ROW EXECUTE FUNCTION fencepost."guard_%d_e_'1"('refuse')`, fence),
		fmt.Sprintf(`CREATE TRIGGER "~fencepost_truncate" BEFORE TRUNCATE ON public.invoices EXECUTE FUNCTION fencepost.guard_%d('refuse')`, fence))
	if _, err := migrations.Up(context.Background(), conn, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	var recorded, functions string
	err := conn.QueryRow(context.Background(), `SELECT (SELECT string_agg(g.fence || ':' || g.tables || ':' || r.name, ' ') FROM fencepost.guarded g JOIN fencepost.guarded_tables r USING (fence)),
		(SELECT string_agg(p.proname, ' ' ORDER BY p.proname) FROM pg_proc p WHERE p.proname ~ '^guard_[0-9]' AND p.prosrc LIKE '%has_sequence_privilege%')`).Scan(&recorded, &functions)
	if err != nil || recorded != fmt.Sprintf("%d:1:public.invoices", fence) || functions != fmt.Sprintf("guard_%[1]d guard_%[1]d_e_'1", fence) {
		t.Errorf("recorded %q, functions %q: %v", recorded, functions, err)
	}
	s.Exec(t, pgtest.Control, db, fmt.Sprintf("SELECT fencepost.raise_epoch(%d, 6, '1 s', '1 s')", fence))
	s.Exec(t, pgtest.App, db, "SELECT fencepost.claim('billing', 7); INSERT INTO public.invoices VALUES (1)")
	var stamp int
	if err := s.Connect(t, pgtest.App, db).QueryRow(context.Background(), `SELECT "e_'1" FROM public.invoices`).Scan(&stamp); err != nil || stamp != 7 {
		t.Errorf("the stamp is %d, %v", stamp, err)
	}
}
