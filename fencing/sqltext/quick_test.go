package sqltext

import (
	"strings"
	"testing"
)

func TestQuickTakesWhatModifies(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]Command{
		"INSERT INTO t VALUES ($1, $2)": Insert, " \n\t\r\fInsert into t values (1) ; \n;": Insert, "update t set a=1": Update, "DELETE FROM t": Delete, "delete from t;": Delete,
		"MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE": Merge, "update\"t\" set a = '--' -- x": Update,
	} {
		got, ok := Quick([]byte(sql))
		full := Analyze(sql, DefaultSettings)
		if !ok || got.Command != want || got.Read || len(full.Statements) != 1 || full.Statements[0].Command != want || strings.Trim(sql[got.End:], "; \n") != "" {
			t.Errorf("Quick(%q) = %+v, %v; want %s; the grammar says %s", sql, got, ok, want, describe(sql, full))
		}
	}
}

func TestQuickLeavesTheRestToTheGrammar(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"", " ", ";", "DELETE FROM t; DELETE FROM u", "DELETE FROM t WHERE b = ';'", "DELETE FROM t\x00", "-- x\nDELETE FROM t", "/* x */ DELETE FROM t",
		"INSERTED", "insert_1", "UPDATE$1", "UPDATE1", "UPDATE\xe4", "SELECT 1", "WITH x AS (SELECT 1) INSERT INTO t SELECT 1", "BEGIN", "EXPLAIN DELETE FROM t", "CALL p()",
	} {
		if got, ok := Quick([]byte(sql)); ok {
			t.Errorf("Quick(%q) = %v", sql, describeStatement(&got))
		}
	}
}

// FuzzAnalyze checks that Quick never claims more than the grammar, and that no text
// crashes under any settings.
func FuzzAnalyze(f *testing.F) {
	for _, file := range dataFiles(f) {
		for _, c := range readCases(f, file) {
			f.Add(c.sql)
		}
	}
	f.Fuzz(func(t *testing.T, sql string) {
		for _, s := range []Settings{DefaultSettings, {StandardConformingStrings: true}, {SafeEncoding: true}} {
			full := Analyze(sql, s)
			if quick, ok := Quick([]byte(sql)); ok && full.Known && (len(full.Statements) != 1 || full.Statements[0].Command != quick.Command) {
				t.Errorf("Quick said %s of %q, the grammar says %s", quick.Command, sql, describe(sql, full))
			}
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
