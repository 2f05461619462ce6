package migrations_test

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/migrations"
)

// laterFiles are those of a release with two upgrades, which knows of a shelf on which a resource stands. The
// function holder has another name for nobody, and the view status another column. others are in their place.
func laterFiles(t *testing.T, others map[string]string) fs.FS {
	t.Helper()
	const shelf = `CREATE TABLE fencepost.shelf (fence integer PRIMARY KEY REFERENCES fencepost.fence (id), place text NOT NULL);
`
	replace := func(name, old, text string) string {
		before := migrations.File(t, name)
		if strings.Count(before, old) != 1 {
			t.Fatalf("%s has %d times %q", name, strings.Count(before, old), old)
		}
		return strings.Replace(before, old, text, 1)
	}
	files := map[string]string{
		"text.sql": replace("text.sql", "'nobody'", "'no one'"),
		"guards.sql": migrations.File(t, "guards.sql") + shelf + `CREATE OR REPLACE FUNCTION fencepost.place_of(fence integer) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT s.place FROM fencepost.shelf s WHERE s.fence = place_of.fence $$;
`,
		"status.sql":               replace("status.sql", " AS paused\n", " AS paused,\n        fencepost.place_of(s.id) AS stands\n"),
		"upgrade_002_shelf.sql":    shelf,
		"upgrade_003_on_shelf.sql": "INSERT INTO fencepost.shelf SELECT f.id, 'cellar' FROM fencepost.fence f;\n",
	}
	maps.Copy(files, others)
	return migrations.WithFiles(t, files)
}

// TestUpgrade brings a schema of version 1 to a later one, as it would have been made anew.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db, fresh := s.Database(t), s.EmptyDatabase(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.raise_epoch(1, 6, 'me', '', '1s', '1s')")
	conn := plainConn(t, s, db)
	files := laterFiles(t, nil)
	done, err := migrations.UpFrom(t.Context(), conn, migrations.Options{}, files)
	if err != nil {
		t.Fatal(err)
	}
	if done.From != 1 || done.Version != 3 || done.Latest != 3 || len(done.Applied) != 3 || done.Applied[2].Name != "on_shelf" || len(done.Repaired) > 0 {
		t.Errorf("the upgrade has done %+v", done)
	}
	var epoch int
	var place, nobody string
	if err := conn.QueryRow(t.Context(), "SELECT epoch, stands, fencepost.holder(NULL) FROM fencepost.status").Scan(&epoch, &place, &nobody); err != nil || epoch != 7 || place != "cellar" || nobody != "no one" {
		t.Errorf("afterwards: epoch %d, place %q, holder %q, error %v", epoch, place, nobody, err)
	}
	anew := plainConn(t, s, fresh)
	if done, err := migrations.UpFrom(t.Context(), anew, migrations.Options{}, files); err != nil || done.From != 0 || done.Version != 3 || len(done.Applied) != 1 {
		t.Errorf("where there was no schema: %+v, %v", done, err)
	}
	upgraded, made := definitions(t, conn), definitions(t, anew)
	for name := range made {
		if upgraded[name] != made[name] {
			t.Errorf("%s is\n%s\nwhere it was upgraded, and\n%s\nwhere it is new", name, upgraded[name], made[name])
		}
	}
	if len(upgraded) != len(made) {
		t.Errorf("%d functions and views where it was upgraded, %d where it is new", len(upgraded), len(made))
	}
	if done, err := migrations.UpFrom(t.Context(), conn, migrations.Options{}, files); err != nil || done.From != 3 || len(done.Applied) != 3 {
		t.Errorf("a second run: %+v, %v", done, err)
	}
	if _, err := migrations.Up(t.Context(), conn, migrations.Options{}); !errors.Is(err, migrations.ErrNewer) {
		t.Errorf("the earlier release: %v; want ErrNewer", err)
	}
}

// TestAnUpgradeThatFailsChangesNothing: neither do the upgrades before it.
func TestAnUpgradeThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	conn := plainConn(t, s, s.Database(t))
	before := definitions(t, conn)
	for name, others := range map[string]map[string]string{
		"an upgrade":             {"upgrade_003_on_shelf.sql": "CREATE TABLE fencepost.another (id int); SELECT 1 / 0;"},
		"a function":             {"rights.sql": strings.Replace(migrations.File(t, "rights.sql"), "RETURNS SETOF text", "RETURNS SETOF nothing", 1)},
		"what was not made":      {"upgrade_002_shelf.sql": "SELECT 1;", "upgrade_003_on_shelf.sql": "SELECT 1;"},
		"the grants at the end":  {"rights.sql": strings.Replace(migrations.File(t, "rights.sql"), "GRANT USAGE ON SCHEMA fencepost TO pg_monitor", "GRANT nothing ON SCHEMA fencepost TO pg_monitor", 1)},
		"another type of result": {"text.sql": strings.Replace(migrations.File(t, "text.sql"), "plain(name text) RETURNS boolean", "plain(name text) RETURNS text", 1)},
	} {
		if _, err := migrations.UpFrom(t.Context(), conn, migrations.Options{}, laterFiles(t, others)); err == nil {
			t.Errorf("%s does not fail", name)
		}
		state, err := migrations.Status(t.Context(), conn)
		if err != nil || state.Version != 1 || !maps.Equal(definitions(t, conn), before) {
			t.Errorf("after %s: %+v, %v", name, state, err)
		}
		var left int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace AND relname IN ('shelf', 'another')").Scan(&left); err != nil || left > 0 {
			t.Errorf("after %s, %d tables are left, %v", name, left, err)
		}
	}
}

// TestUpgradesAtOnce: one does it, and the others find it done.
func TestUpgradesAtOnce(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	files := laterFiles(t, nil)
	for db, from := range map[string]int{s.Database(t): 1, s.EmptyDatabase(t): 0} {
		const runs = 4
		type result struct {
			done migrations.Migrated
			err  error
		}
		results := make(chan result, runs)
		for range runs {
			conn := s.Connect(t, pgtest.Control, db)
			go func() {
				done, err := migrations.UpFrom(context.Background(), conn, migrations.Options{}, files)
				results <- result{done, err}
			}()
		}
		froms := map[int]int{}
		for range runs {
			r := <-results
			if r.err != nil || r.done.Version != 3 {
				t.Errorf("from version %d: %+v, %v", from, r.done, r.err)
			}
			froms[r.done.From]++
		}
		if froms[from] != 1 || froms[3] != runs-1 {
			t.Errorf("the runs began at these versions: %v", froms)
		}
	}
}

// TestEveryTableHasAPrimaryKey: where all tables of a database are published, Postgres updates and deletes no rows
// of a table without one.
func TestEveryTableHasAPrimaryKey(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	conn := plainConn(t, s, db)
	rows, err := conn.Query(t.Context(), `SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind IN ('r', 'p')
		AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'p')`)
	if err != nil {
		t.Fatal(err)
	}
	if names, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(names) > 0 {
		t.Errorf("these tables have none: %v, %v", names, err)
	}
	s.Exec(t, pgtest.Superuser, db, "CREATE PUBLICATION everything FOR ALL TABLES")
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.pause(1, 'me', '', '1s', '1s')", "SELECT fencepost.resume(1, NULL, 'me', '')",
		"SELECT fencepost.remove(1, true, 'me', '', '1s', '1s')")
}
