package sqltext

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}

// sessionFixture creates what the texts expect in their session.
const sessionFixture = "PREPARE q AS SELECT 1; PREPARE q2 (int) AS SELECT $1; DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT 1"

// fixtureDatabase is an empty database with what testdata/classify names.
func fixtureDatabase(t *testing.T, s *pgtest.Server) string {
	t.Helper()
	db := s.EmptyDatabase(t)
	fixture, err := os.ReadFile("testdata/classify/fixture.sql")
	if err != nil {
		t.Fatal(err)
	}
	s.Exec(t, pgtest.Superuser, db, string(fixture))
	return db
}

// stateOf runs sql as one simple Query on a separate connection, with the statements
// and the cursor that the texts name, and returns the SQLSTATE.
func stateOf(t *testing.T, s *pgtest.Server, db, sql string) string {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.DSN(pgtest.Superuser, db))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.PgConn().Exec(ctx, sessionFixture).ReadAll(); err != nil {
		t.Fatalf("prepare the session: %v", err)
	}
	_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return "00000"
	case errors.As(err, &pg):
		return pg.Code
	}
	t.Fatalf("run %q: %v", sql, err)
	return ""
}

// TestServerAgreesOnWhereStatementsBegin inserts statements between those of a text, and checks that a real
// server finds them and the text's own statements unchanged.
func TestServerAgreesOnWhereStatementsBegin(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := fixtureDatabase(t, s)
	for _, c := range readCases(t, "testdata/classify/texts.txt") {
		text := Analyze(c.sql, DefaultSettings)
		unlike := func(st Statement) bool { return st.Kind == Refused || st.Kind == ShowFence }
		if !text.Known || len(text.Statements) < 2 || slices.ContainsFunc(text.Statements, unlike) {
			continue
		}
		var b strings.Builder
		last := 0
		for _, st := range text.Statements {
			b.WriteString(c.sql[last:st.Start] + "SELECT 1 AS put_in_front;")
			last = st.Start
		}
		b.WriteString(c.sql[last:])
		const undo = "DELETE FROM t WHERE a > 2; DROP RULE IF EXISTS r ON v; DROP FUNCTION IF EXISTS g()"
		plain := stateOf(t, s, db, c.sql)
		s.Exec(t, pgtest.Superuser, db, undo)
		put := stateOf(t, s, db, b.String())
		s.Exec(t, pgtest.Superuser, db, undo)
		if plain != put {
			t.Errorf("%q alone: %s; with a statement in front of each: %s\n%s", c.sql, plain, put, b.String())
		}
		if again := Analyze(b.String(), DefaultSettings); len(again.Statements) != 2*len(text.Statements) {
			t.Errorf("%q: %d statements, want %d", b.String(), len(again.Statements), 2*len(text.Statements))
		}
	}
}

// TestServerContinuesStringsBehindComments: scanner does so too, but the library does
// not, so that such a text is not known.
func TestServerContinuesStringsBehindComments(t *testing.T) {
	t.Parallel()
	conn := pgtest.Shared(t).Connect(t, pgtest.Superuser, "postgres")
	const sql = "SELECT E'a' -- ;\n '\\'; COMMIT; --'"
	var got string
	if err := conn.QueryRow(context.Background(), sql, pgx.QueryExecModeSimpleProtocol).Scan(&got); err != nil || got != "a'; COMMIT; --" {
		t.Errorf("the server read %q (%v)", got, err)
	}
	if text := Analyze(sql, DefaultSettings); text.Known {
		t.Errorf("%q: %s", sql, describe(sql, text))
	}
}

// TestVolatileFunctionsOfTheServerAreJudged checks that each volatile function of the
// server is listed as an evader of read-only mode, or in testdata/harmless.txt. A
// function that is new in some version must be reviewed.
func TestVolatileFunctionsOfTheServerAreJudged(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/harmless.txt")
	if err != nil {
		t.Fatal(err)
	}
	harmless := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if name, _, _ := strings.Cut(line, "#"); strings.TrimSpace(name) != "" {
			harmless[strings.TrimSpace(name)] = true
		}
	}
	for name, s := range map[string]*pgtest.Server{"default": pgtest.Shared(t), "18": pgtest.SharedMajor(t, 18)} {
		t.Run(name, func(t *testing.T) { judgedFunctions(t, s, harmless) })
	}
}

func judgedFunctions(t *testing.T, s *pgtest.Server, harmless map[string]bool) {
	t.Helper()
	conn := s.Connect(t, pgtest.Superuser, "postgres")
	rows, err := conn.Query(context.Background(), `SELECT DISTINCT proname::text FROM pg_proc
		WHERE provolatile = 'v' AND pronamespace = 'pg_catalog'::regnamespace
		AND prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype, 'internal'::regtype, 'language_handler'::regtype,
			'index_am_handler'::regtype, 'table_am_handler'::regtype, 'tsm_handler'::regtype)`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) < 150 {
		t.Fatalf("%d volatile functions (%v)", len(names), err)
	}
	for _, name := range names {
		_, listed := evadesReadOnly(name)
		if name == "set_config" {
			continue // judged by its argument
		}
		if listed == harmless[name] {
			t.Errorf("%s: listed as an evader: %v, as harmless: %v", name, listed, harmless[name])
		}
	}
}
