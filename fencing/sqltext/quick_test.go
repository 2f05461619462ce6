package sqltext

import (
	"strings"
	"testing"
)

func TestQuickTakesTheCommonestTexts(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]Kind{
		"SELECT 1": Ordinary, "select": Ordinary, " \n\t\r\fSelect a from t ; \n;": Ordinary, "select(1)": Ordinary, "SELECT*FROM t": Ordinary,
		"SELECT'x'": Ordinary, "INSERT INTO t VALUES ($1, $2)": Ordinary, "update t set a=1": Ordinary, "DELETE FROM t": Ordinary,
		"VALUES (1)": Ordinary, "WITH x AS (SELECT 1) SELECT 1": Ordinary, "TABLE t": Ordinary, "MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE": Ordinary,
		"SELECT '--' -- x": Ordinary, "SELECT current_user, pg_class.oid, a_b & c, 'u&' FROM pg_class": Ordinary, "SELECT 'ä;'"[:10]: Ordinary,
		"BEGIN": Begin, "begin ;": Begin, "START TRANSACTION": Begin, "start \n transaction;": Begin,
		"COMMIT": Commit, "\nEnd;": Commit, "ROLLBACK": Rollback, "rollback;; ": Rollback,
	} {
		got, ok := Quick([]byte(sql))
		if !ok || got.Kind != want {
			t.Errorf("Quick(%q) = %v, %v; want %v", sql, got.Kind, ok, want)
		}
		if ok && strings.Trim(sql[got.End:], "; \t\n\r\f") != "" {
			t.Errorf("Quick(%q) ends at %d", sql, got.End)
		}
		if want == Ordinary && got.Read {
			t.Errorf("Quick(%q) calls it a read, which only the grammar can tell", sql)
		}
	}
}

func TestQuickLeavesTheRestToTheGrammar(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"", " ", ";", "SELECT 1; SELECT 2", "SELECT ';'", "SELECT 1\x00", "-- x\nSELECT 1", "/* x */ SELECT 1", "SELECTED", "select_1", "SELECT$1",
		"SELECT1", "SELECT\xe4", "BEGIN READ ONLY", "BEGIN; COMMIT", "BEGINS", "COMMIT AND CHAIN", "COMMIT PREPARED 'x'", "COMMIT -- x", "ROLLBACK TO x", "END x",
		"START", "START TRANSACTION READ ONLY", "START/**/TRANSACTION", "STARTTRANSACTION", "EXPLAIN SELECT 1", "CREATE TABLE x ()", "CALL p()",
		"DO ''", "SHOW x", "SET x = 1", "(SELECT 1)", "SELECT\v1", "\vSELECT 1",
	} {
		got, ok := Quick([]byte(sql))
		if sql == "SELECT\v1" {
			continue // one statement in any version: 16 treats it as space, 15 as an error
		}
		if ok {
			t.Errorf("Quick(%q) = %v", sql, describeStatement(&got))
		}
	}
}

func TestQuickDoesNotAllocate(t *testing.T) {
	sqls := [][]byte{
		[]byte("UPDATE pgbench_accounts SET abalance = abalance + $1 WHERE aid = $2;"),
		[]byte("BEGIN"), []byte("SELECT 1; SELECT 2"), []byte("SELECT * FROM pg_stat_activity"), []byte("CALL p()"),
	}
	if n := testing.AllocsPerRun(100, func() {
		for _, sql := range sqls {
			Quick(sql)
		}
	}); n != 0 {
		t.Errorf("Quick allocates %v times", n)
	}
}

// FuzzQuick checks that Quick never claims more than the grammar, and that no text
// crashes under any settings.
func FuzzQuick(f *testing.F) {
	for _, file := range dataFiles(f) {
		for _, c := range readCases(f, file) {
			f.Add(c.sql)
		}
	}
	f.Fuzz(func(t *testing.T, sql string) {
		for _, s := range []Settings{DefaultSettings, {StandardConformingStrings: true}, {SafeEncoding: true}} {
			full := Analyze(sql, s)
			agreeWithQuick(t, sql, full)
			wellFormed(t, sql, full)
		}
		AuditOf(sql)
	})
}

// wellFormed fails t unless the statements of full are in order within sql.
func wellFormed(t *testing.T, sql string, full *Text) {
	t.Helper()
	last := 0
	for _, st := range full.Statements {
		if st.Start < last || st.End < st.Start || st.End > len(sql) {
			t.Errorf("%q: statement at %d to %d, after %d", sql, st.Start, st.End, last)
			return
		}
		if st.Start > 0 && sql[st.Start-1] != ';' {
			t.Errorf("%q: statement at %d, not after a semicolon", sql, st.Start)
		}
		if st.End < len(sql) && sql[st.End] != ';' {
			t.Errorf("%q: statement to %d, not to a semicolon", sql, st.End)
		}
		last = st.End
	}
	if !full.Known && len(full.Statements) > 0 {
		t.Errorf("%q: %d statements of a text that was not parsed", sql, len(full.Statements))
	}
}

func BenchmarkQuickUpdate(b *testing.B) {
	sql := []byte("UPDATE pgbench_accounts SET abalance = abalance + 4711 WHERE aid = 4711;")
	b.ReportAllocs()
	for b.Loop() {
		Quick(sql)
	}
}

func BenchmarkQuickBegin(b *testing.B) {
	sql := []byte("BEGIN")
	b.ReportAllocs()
	for b.Loop() {
		Quick(sql)
	}
}

func BenchmarkAnalyze(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Analyze("SELECT abalance FROM pgbench_accounts WHERE aid = 4711", DefaultSettings)
	}
}

func BenchmarkCachedAnalyze(b *testing.B) {
	c := NewCache(1 << 20)
	sql := []byte("SELECT abalance FROM pgbench_accounts WHERE aid = $1")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c.AnalyzeBytes(sql, DefaultSettings)
		}
	})
}
