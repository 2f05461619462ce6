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

const (
	stateDivision      = "22012" // of SELECT 1/0: everything before it ran
	stateActiveTx      = "25001"
	stateTxTermination = "2D000"
)

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

// behind returns sql after another statement in one Query, followed by an error that
// undoes it.
func behind(sql string, st *Statement) string {
	front := "SELECT 1; "
	if st.Savepoint || st.Chain {
		front = "BEGIN; SAVEPOINT sp; "
	}
	return front + sql + "\n; SELECT 1/0"
}

// TestServerAgrees is a single test because its parts change what databases share.
func TestServerAgrees(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := fixtureDatabase(t, s)
	t.Run("on what must be alone", func(t *testing.T) { agreesOnAlone(t, s, db) })
	t.Run("on where statements begin", func(t *testing.T) { agreesOnStatements(t, s, db) })
	t.Run("on what ends the transaction", func(t *testing.T) { agreesOnTransactions(t, s, db) })
}

// agreesOnAlone checks that a real server refuses exactly the NonTransactional
// statements after another statement.
func agreesOnAlone(t *testing.T, s *pgtest.Server, db string) {
	const with = " CONNECTION 'dbname=nowhere' PUBLICATION pub WITH (connect = false, slot_name = "
	s.Exec(t, pgtest.Superuser, db, "CREATE SUBSCRIPTION sub"+with+"NONE)", "CREATE SUBSCRIPTION slotted"+with+"x)")
	t.Cleanup(func() {
		s.Exec(t, pgtest.Superuser, db, "ALTER SUBSCRIPTION slotted SET (slot_name = NONE)",
			"DROP SUBSCRIPTION slotted", "DROP SUBSCRIPTION sub")
	})
	ran := 0
	for _, file := range dataFiles(t) {
		for _, c := range readCases(t, file) {
			text := Analyze(c.sql, DefaultSettings)
			if c.notRun() != "" || len(text.Statements) != 1 ||
				text.Statements[0].Kind == Refused || text.Statements[0].Kind == ShowFence {
				continue
			}
			st := &text.Statements[0]
			got := stateOf(t, s, db, behind(c.sql, st))
			if want := expectedStates(c, st); !slices.Contains(want, got) {
				t.Errorf("%s:%d: behind another statement, %s: SQLSTATE %s, want one of %v\n%s",
					c.file, c.line, describeStatement(st), got, want, c.sql)
			}
			ran++
		}
	}
	if ran < 300 {
		t.Errorf("only %d texts were run, want at least 300", ran)
	}
}

// agreesOnTransactions checks that after a statement of an extended pipeline, like the
// check, only NonTransactional statements and Begin, Commit and Rollback end the
// transaction that the check is in.
func agreesOnTransactions(t *testing.T, s *pgtest.Server, db string) {
	kept := 0
	for _, file := range dataFiles(t) {
		for _, c := range readCases(t, file) {
			text := Analyze(c.sql, DefaultSettings)
			if c.notRun() != "" || len(text.Statements) != 1 || strings.Contains(c.sql, "TO STDOUT") {
				continue
			}
			switch text.Statements[0].Kind {
			case NonTransactional, Begin, Commit, Rollback, Refused, ShowFence:
				continue
			}
			switch before, after := transactionsAround(t, s, db, c.sql); {
			case after == "": // it failed, and the transaction with it
			case before != after:
				t.Errorf("%s:%d: transaction %s before, %s behind\n%s", c.file, c.line, before, after, c.sql)
			default:
				kept++
			}
		}
	}
	if kept < 250 {
		t.Errorf("only %d texts kept their transaction, want at least 250", kept)
	}
}

// transactionsAround runs sql in a pipeline that finally fails, and returns the
// transaction ids before and after it, "" if that point was not reached.
func transactionsAround(t *testing.T, s *pgtest.Server, db, sql string) (before, after string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgconn.Connect(ctx, s.DSN(pgtest.Superuser, db))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sessionFixture).ReadAll(); err != nil {
		t.Fatalf("prepare the session: %v", err)
	}
	b := &pgconn.Batch{}
	for _, q := range []string{"SELECT pg_current_xact_id()", sql, "SELECT pg_current_xact_id()", "SELECT 1/0"} {
		b.ExecParams(q, nil, nil, nil, nil)
	}
	results, err := conn.ExecBatch(ctx, b).ReadAll()
	if err == nil {
		t.Fatalf("%q: the pipeline did not fail", sql)
	}
	id := func(i int) string {
		if len(results) <= i || len(results[i].Rows) == 0 {
			return ""
		}
		return string(results[i].Rows[0][0])
	}
	return id(0), id(2)
}

// expectedStates returns how a server may respond to c after another statement.
func expectedStates(c *textCase, st *Statement) []string {
	for _, l := range c.comment {
		if code, ok := strings.CutPrefix(l, "# or: "); ok { // in newer versions
			return []string{stateDivision, code}
		}
	}
	inTx := slices.ContainsFunc(c.comment, func(l string) bool { return strings.HasPrefix(l, "# runs in a transaction") })
	switch {
	case st.Kind == NonTransactional && !inTx:
		return []string{stateActiveTx, stateTxTermination}
	case st.Kind == Discard && st.Name == "all":
		return []string{stateActiveTx}
	case st.Kind == Session, st.Kind == Begin: // it may set what must precede the first query
		return []string{stateActiveTx, stateDivision}
	default:
		return []string{stateDivision}
	}
}

// agreesOnStatements inserts statements between those of a text, and checks that a real
// server finds them and the text's own statements unchanged.
func agreesOnStatements(t *testing.T, s *pgtest.Server, db string) {
	for _, c := range readCases(t, "testdata/classify/texts.txt") {
		text := Analyze(c.sql, DefaultSettings)
		unlike := func(st Statement) bool { return st.Kind == Refused || st.Kind == ShowFence }
		if c.notRun() != "" || !text.Known || len(text.Statements) < 2 || slices.ContainsFunc(text.Statements, unlike) {
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
