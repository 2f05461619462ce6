package sqltext

import (
	"strings"
	"testing"
)

func TestBoundariesAreBytesOfTheTextAsGiven(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"SELECT '\u00e4\u65e5\U0001f600'; /* \u00e9; */ SELECT 2;SELECT \u00e4",
		"SELECT '\xe4\xf6'; /* \xe9; */ SELECT 2;SELECT \xe4",             // LATIN1
		"SELECT '\xa4\xa2'; /* \xa4\xa2; */ SELECT 2;SELECT \xa4\xa2",     // EUC_JP
		"SELECT '\xe4\u00e4'; /* \xff;\xff */ SELECT 2;SELECT \xe4\u00e4", // SQL_ASCII, anything
	} {
		got := Analyze(sql, DefaultSettings)
		if !got.Known || len(got.Statements) != 3 {
			t.Errorf("%q: %s", sql, describe(sql, got))
			continue
		}
		second, third := got.Statements[1], got.Statements[2]
		if s := sql[second.Start:second.End]; !strings.HasSuffix(s, "SELECT 2") || !strings.HasPrefix(s, " /*") {
			t.Errorf("%q: the second statement is %q", sql, s)
		}
		if s := sql[third.Start:third.End]; !strings.HasPrefix(s, "SELECT ") || third.End != len(sql) {
			t.Errorf("%q: the third statement is %q", sql, s)
		}
	}
}

func TestLongAndDeepTextsAreNotKnown(t *testing.T) {
	t.Parallel()
	long := "SELECT '" + strings.Repeat("x", parsedTextMax) + "'"
	deep := "SELECT 1" + strings.Repeat("+1", parsedDepthMax)
	for name, sql := range map[string]string{"long": long, "deep": deep} {
		got := Analyze(sql+"; COMMIT", DefaultSettings)
		if got.Known || len(got.Statements) != 0 {
			t.Errorf("%s: known %v, %d statements", name, got.Known, len(got.Statements))
		}
	}
	wide := "INSERT INTO t VALUES " + strings.Repeat("(1, 'x', f(a + 1)), ", 5000) + "(1)"
	if got := Analyze(wide, DefaultSettings); !got.Known {
		t.Errorf("a wide INSERT is not known: %s", got.why)
	}
}

// TestNoTextTakesTheLexerLong covers texts for which the lexer of the grammar takes
// quadratic time, a minute for the first.
func TestNoTextTakesTheLexerLong(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"open comments":   strings.Repeat("/*", 120000),
		"nested comments": strings.Repeat("/*", 60000) + strings.Repeat("*/", 60000) + "SELECT 1",
		"operator":        "SELECT 1 " + strings.Repeat("+", 200000) + "1",
	} {
		if got := Analyze(sql, DefaultSettings); got.Known || got.why != "nested too deep" {
			t.Errorf("%s: known %v, %q", name, got.Known, got.why)
		}
	}
	if got := Analyze("SELECT /* 1 /* 2 /* 3 */ */ */ 1 <-> 2", DefaultSettings); !got.Known {
		t.Errorf("a few nested comments: %s", got.why)
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
