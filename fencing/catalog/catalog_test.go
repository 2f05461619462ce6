package catalog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/catalog"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// provenDatabase is a database set up by testdata/proven.sql.
type provenDatabase struct {
	t      *testing.T
	server *pgtest.Server
	db     string
	app    *pgx.Conn
}

func newProvenDatabase(t *testing.T, s *pgtest.Server) *provenDatabase {
	t.Helper()
	setup, err := os.ReadFile("testdata/proven.sql")
	if err != nil {
		t.Fatal(err)
	}
	h := &provenDatabase{t: t, server: s, db: s.EmptyDatabase(t)}
	s.Exec(t, pgtest.Superuser, h.db, string(setup))
	h.app = s.Connect(t, pgtest.App, h.db)
	return h
}

// catalog reads the current catalog.
func (h *provenDatabase) catalog() *fencing.Catalog {
	h.t.Helper()
	c, err := catalog.Read(h.t.Context(), h.server.Connect(h.t, pgtest.Control, h.db))
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// writes runs sql in a transaction that is rolled back, with public before pg_catalog
// in the search path, and reports whether it wrote anything. A statement that writes
// gets a transaction id.
func (h *provenDatabase) writes(sql string) (wrote bool, err error) {
	h.t.Helper()
	ctx := context.Background()
	pg := h.app.PgConn()
	defer func() { _, _ = pg.Exec(ctx, "ROLLBACK").ReadAll() }()
	if _, err := pg.Exec(ctx, "BEGIN; SET LOCAL search_path = public, pg_catalog; SAVEPOINT s").ReadAll(); err != nil {
		h.t.Fatalf("begin: %v", err)
	}
	sql = strings.ReplaceAll(sql, "$1", "'1'")
	if strings.HasPrefix(sql, "COPY") {
		_, err = pg.CopyTo(ctx, io.Discard, sql)
	} else {
		_, err = pg.Exec(ctx, sql).ReadAll()
	}
	if err != nil {
		return false, err
	}
	results, err := pg.Exec(ctx, "SELECT pg_catalog.pg_current_xact_id_if_assigned()").ReadAll()
	if err != nil {
		h.t.Fatalf("ask for the transaction id: %v", err)
	}
	return len(results[0].Rows[0][0]) > 0, nil
}

// eachServer runs the test on the default server and on PostgreSQL 18.
func eachServer(t *testing.T, test func(t *testing.T, s *pgtest.Server)) {
	t.Parallel()
	t.Run("default", func(t *testing.T) { test(t, pgtest.Shared(t)) })
	t.Run("18", func(t *testing.T) { test(t, pgtest.Start(t, pgtest.WithBinaries(pgtest.Binaries(t, 18)))) })
}

func lines(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func prove(c *fencing.Catalog, sql string) (bool, string) {
	text := sqltext.Analyze(sql, sqltext.DefaultSettings)
	if !text.Known || len(text.Statements) != 1 {
		return false, "it is not one statement"
	}
	return sqltext.Proven(c, &text.Statements[0])
}

func TestReadsOfApplicationsAreProvenAndWriteNothing(t *testing.T) {
	eachServer(t, func(t *testing.T, s *pgtest.Server) {
		h := newProvenDatabase(t, s)
		c := h.catalog()
		for _, sql := range lines(t, "testdata/proven_reads.txt") {
			if ok, why := prove(c, sql); !ok {
				t.Errorf("not proven: %s: %s", why, sql)
			}
			if wrote, err := h.writes(sql); wrote || err != nil {
				t.Errorf("proven, and run: wrote %v (%v): %s", wrote, err, sql)
			}
		}
	})
}

// TestReadsThatCanWriteAreNotProven also runs the reads marked "writes" on the real
// server, where they must write or be refused. So it notices if one of them is harmless
// after all.
func TestReadsThatCanWriteAreNotProven(t *testing.T) {
	eachServer(t, func(t *testing.T, s *pgtest.Server) {
		h := newProvenDatabase(t, s)
		s.Exec(t, pgtest.Superuser, h.db, "GRANT ALL ON SCHEMA elsewhere TO PUBLIC", "GRANT ALL ON ALL TABLES IN SCHEMA elsewhere TO PUBLIC",
			"CREATE TABLE pg_expandarray (a checked)") // whose array type has the name of a function
		c := h.catalog()
		for _, line := range lines(t, "testdata/unproven_reads.txt") {
			mark, sql, _ := strings.Cut(line, " ")
			sql = strings.TrimSpace(sql)
			ok, why := prove(c, sql)
			if ok || why == "" {
				t.Errorf("proven (%q): %s", why, sql)
			}
			if mark != "writes" {
				continue
			}
			if wrote, err := h.writes(sql); !wrote {
				t.Errorf("does not write (%v), so it is not a trap: %s", err, sql)
			}
		}
	})
}

// TestProvenFunctionsOfTheServerWriteNothing calls every built-in function that needs
// no argument and counts as harmless.
func TestProvenFunctionsOfTheServerWriteNothing(t *testing.T) {
	eachServer(t, func(t *testing.T, s *pgtest.Server) {
		h := newProvenDatabase(t, s)
		c := h.catalog()
		rows, err := h.app.Query(t.Context(), `SELECT DISTINCT quote_ident(proname) FROM pg_proc
			WHERE oid < 16384 AND pronargs - pronargdefaults = 0 AND prokind = 'f' ORDER BY 1`)
		if err != nil {
			t.Fatal(err)
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		ran := 0
		for _, name := range names {
			sql := fmt.Sprintf("SELECT pg_catalog.%s()", name)
			if ok, _ := prove(c, sql); !ok {
				continue
			}
			ran++
			wrote, err := h.writes(sql)
			var pg *pgconn.PgError
			if wrote || err != nil && !errors.As(err, &pg) {
				t.Errorf("%s wrote %v (%v)", sql, wrote, err)
			}
		}
		if ran < 60 {
			t.Errorf("only %d functions were called", ran)
		}
	})
}

// TestWhatCanBeMetEverywhereProvesNothing covers objects that run without being named.
func TestWhatCanBeMetEverywhereProvesNothing(t *testing.T) {
	t.Parallel()
	const plain = "SELECT DISTINCT customer_id FROM orders"
	for _, c := range []struct{ name, sql, read string }{
		{"a cast between built-in types", `CREATE FUNCTION f(bool) RETURNS uuid LANGUAGE sql AS 'SELECT wr()::text::uuid';
			CREATE CAST (bool AS uuid) WITH FUNCTION f(bool)`, plain},
		{"a cast of a relation's rows", `CREATE FUNCTION f(orders) RETURNS int LANGUAGE sql AS 'SELECT wr()';
			CREATE CAST (orders AS int) WITH FUNCTION f(orders)`, plain},
		{"a cast of an enum", `CREATE FUNCTION f(mood) RETURNS json LANGUAGE sql AS 'SELECT wr()::text::json';
			CREATE CAST (mood AS json) WITH FUNCTION f(mood)`, plain},
		{"a default operator class", `CREATE FUNCTION f(json, json) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 0';
			CREATE FUNCTION b(json, json) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT true';
			CREATE OPERATOR === (LEFTARG = json, RIGHTARG = json, FUNCTION = b);
			CREATE OPERATOR CLASS jops DEFAULT FOR TYPE json USING btree AS OPERATOR 3 ===, FUNCTION 1 f(json, json)`, plain},
		{"a member of a built-in operator family", `CREATE FUNCTION f(int, uuid) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 0';
			ALTER OPERATOR FAMILY integer_ops USING btree ADD FUNCTION 1 (int, uuid) f(int, uuid)`, plain},
		{"a built-in operator in a family of a user's", `CREATE FUNCTION f(int, int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM wr(); RETURN $1 OPERATOR(pg_catalog.-) $2; END';
			CREATE OPERATOR CLASS another FOR TYPE int USING btree AS OPERATOR 1 pg_catalog.<, OPERATOR 2 pg_catalog.<=, OPERATOR 3 pg_catalog.=,
				OPERATOR 4 pg_catalog.>=, OPERATOR 5 pg_catalog.>, FUNCTION 1 f(int, int)`, plain},
		{"a check on a built-in domain", "ALTER DOMAIN information_schema.cardinal_number ADD CHECK (wrb()) NOT VALID",
			"SELECT '1'::information_schema.cardinal_number"},
		{"a row policy on a table", "ALTER TABLE orders ENABLE ROW LEVEL SECURITY", plain},
		{"a view of the same name", "CREATE VIEW elsewhere.orders AS SELECT wr() AS customer_id", plain},
		{"a temporary view of the same name", "CREATE TEMP VIEW orders AS SELECT wr() AS customer_id", plain},
		{"a rule", "CREATE RULE r AS ON INSERT TO orders DO ALSO SELECT wr()", plain},
		{"a child", "CREATE FUNCTION x() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE TABLE c (d checked) INHERITS (orders)", plain},
		{"statistics", "CREATE STATISTICS s ON (sneaky(1)), customer_id FROM orders", plain},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newProvenDatabase(t, pgtest.Shared(t))
			admin := h.server.Connect(t, pgtest.Superuser, h.db)
			if ok, why := prove(h.catalog(), c.read); !ok {
				t.Fatalf("not proven before: %s", why)
			}
			if _, err := admin.PgConn().Exec(t.Context(), c.sql).ReadAll(); err != nil {
				t.Fatal(err)
			}
			if ok, _ := prove(h.catalog(), c.read); ok {
				t.Errorf("proven: %s", c.read)
			}
		})
	}
}

// TestTypesOfExtensionsStandApart checks that a base type of an extension, with
// operators of common names, does not keep statements that do not touch it from being
// proven.
func TestTypesOfExtensionsStandApart(t *testing.T) {
	t.Parallel()
	h := newProvenDatabase(t, pgtest.Shared(t))
	h.server.Exec(t, pgtest.Superuser, h.db, `CREATE TYPE span AS RANGE (subtype = int4);
		CREATE FUNCTION same(span, span) RETURNS bool LANGUAGE sql AS 'SELECT wrb()';
		CREATE OPERATOR = (LEFTARG = span, RIGHTARG = span, FUNCTION = same);
		CREATE OPERATOR @> (LEFTARG = span, RIGHTARG = span, FUNCTION = same);
		CREATE FUNCTION spell(span) RETURNS text LANGUAGE sql AS 'SELECT wr()::text'; CREATE CAST (span AS text) WITH FUNCTION spell(span) AS IMPLICIT;
		CREATE TABLE spans (s span)`)
	c := h.catalog()
	for sql, want := range map[string]bool{
		"SELECT * FROM customers WHERE id = 1 AND 'a' = 'b'": true,
		"SELECT * FROM spans":                                false,
		"SELECT '[1,2)'::span":                               false,
		"SELECT doc @> '{}' FROM customers":                  false, // two untyped constants could resolve to spans
		"SELECT name FROM customers ORDER BY name":           true,
	} {
		if ok, why := prove(c, sql); ok != want {
			t.Errorf("%s: proven %v, want %v (%s)", sql, ok, want, why)
		}
	}
}

// newReader returns a Reader of a new database.
func newReader(t *testing.T, s *pgtest.Server, address string) (r *catalog.Reader, db string) {
	t.Helper()
	db = s.EmptyDatabase(t)
	cfg, err := pgxpool.ParseConfig(s.DSN(pgtest.Control, db))
	if err != nil {
		t.Fatal(err)
	}
	if address != "" {
		cfg.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r = catalog.NewReader(pool, pool.Reset, zap.NewNop())
	t.Cleanup(r.Close)
	return r, db
}

// refresh reads the catalog again.
func refresh(t *testing.T, r *catalog.Reader) *fencing.Catalog {
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	r.RefreshCatalog(ctx)
	return r.Catalog()
}

// TestCatalogIsFresh checks that an object that shadows a name is noticed after a
// while, and at once by RefreshCatalog.
func TestCatalogIsFresh(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	r, db := newReader(t, s, "")
	const sql = "SELECT lower(v) FROM notes"
	text := sqltext.Analyze(sql, sqltext.DefaultSettings)
	proven := func() bool { ok, _ := sqltext.Proven(r.Catalog(), &text.Statements[0]); return ok }
	if proven() {
		t.Error("proven before anything was read")
	}
	if refresh(t, r) == nil || proven() {
		t.Fatal("a relation that is not there is proven, or nothing was read")
	}
	s.Exec(t, pgtest.App, db, "CREATE TABLE notes (v text)")
	refreshed := func() bool { refresh(t, r); return proven() } // what was read a while ago proves nothing
	fixture.Eventually(t, "it is proven after the catalog was refreshed", refreshed)
	s.Exec(t, pgtest.App, db, "CREATE FUNCTION lower(text) RETURNS text LANGUAGE sql AS 'SELECT $1'")
	fixture.Eventually(t, "the new function is seen", func() bool { return !proven() })
	s.Exec(t, pgtest.App, db, "DROP FUNCTION public.lower(text)")
	fixture.Eventually(t, "its end is seen", proven)
	want := true
	for _, change := range []string{
		"ALTER TABLE notes ENABLE ROW LEVEL SECURITY", "ALTER TABLE notes DISABLE ROW LEVEL SECURITY",
		"CREATE DOMAIN words AS text", "ALTER TABLE notes ALTER v TYPE words", "ALTER TABLE notes ALTER v TYPE text",
		"ALTER TABLE notes RENAME TO old; CREATE VIEW notes AS SELECT v FROM old", "DROP VIEW notes; ALTER TABLE old RENAME TO notes",
		"CREATE FUNCTION ok(text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT true'; ALTER TABLE notes ADD CONSTRAINT c CHECK (ok('a'))", "ALTER TABLE notes DROP CONSTRAINT c",
		"CREATE INDEX i ON notes (v) WHERE ok('a')", "DROP INDEX i",
		"CREATE RULE r AS ON INSERT TO notes DO ALSO NOTIFY a", "DROP RULE r ON notes",
	} {
		want = strings.HasPrefix(change, "CREATE DOMAIN") || !want
		s.Exec(t, pgtest.App, db, change)
		fixture.Eventually(t, fmt.Sprintf("%s: proven is %v", change, want), func() bool { return refreshed() == want })
	}
}

// TestCatalogIsNotOlderThanItsServer checks that nothing is proven while the server
// is down, and everything is again once it is back.
func TestCatalogIsNotOlderThanItsServer(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	r, _ := newReader(t, s, "")
	if refresh(t, r) == nil {
		t.Fatal("nothing was read")
	}
	s.Crash(t)
	fixture.Eventually(t, "nothing is known", func() bool { return r.Catalog() == nil })
	s.Restart(t)
	fixture.Eventually(t, "the catalog is known again", func() bool { return r.Catalog() != nil })
}

// TestCatalogEndsWhilePostgresIsFrozen closes a Reader that waits for the
// answer to the last statement of its transaction.
func TestCatalogEndsWhilePostgresIsFrozen(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	frozen, thaw := make(chan struct{}), make(chan struct{})
	freeze := sync.OnceFunc(func() { close(frozen) })
	relay := fixture.NewRelay(t, "tcp", s.Addr(), func() fixture.Passing {
		return fixture.Passing{ToServer: func(b []byte) []byte {
			if bytes.Contains(b, []byte("rollback\x00")) {
				freeze()
				<-thaw
			}
			return b
		}}
	})
	defer close(thaw)
	r, _ := newReader(t, s, relay.Addr)
	r.Catalog() // which no one waits for
	select {
	case <-frozen:
	case <-time.After(fixture.Patience):
		t.Fatal("the catalog was not read")
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		r.Close()
	}()
	select {
	case <-closed:
	case <-time.After(fixture.Patience):
		t.Error("it waits for the server")
	}
}
