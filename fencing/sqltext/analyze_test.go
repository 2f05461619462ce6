package sqltext

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestSettingsDecideWhatIsKnown(t *testing.T) {
	t.Parallel()
	off := Settings{SafeEncoding: true}
	unsafe := Settings{StandardConformingStrings: true}
	for _, c := range []struct {
		sql        string
		s          Settings
		known      bool
		statements int
		kind       Kind
	}{
		{`SELECT 'a'; COMMIT`, off, true, 2, Ordinary},
		{`SELECT 'a\'; COMMIT; --'`, off, false, 0, Ordinary},
		{`SELECT 'a\'; COMMIT; --'`, DefaultSettings, true, 2, Ordinary},
		{`SELECT 'a\''; COMMIT`, off, false, 0, Ordinary},
		{`CALL p('\'')`, off, false, 0, Ordinary},
		{`SELECT b'\'; COMMIT; --'`, off, false, 0, Ordinary},
		{`SELECT N'\'; COMMIT; --'`, off, false, 0, Ordinary},
		{"SELECT '\x95\x5c'", unsafe, false, 0, Ordinary},
		{"SELECT '\x95\x5c'; COMMIT", unsafe, false, 0, Ordinary},
		{"SELECT 1; COMMIT", unsafe, true, 2, Ordinary},
		{"/* \x95\x5c */ CALL p()", unsafe, false, 0, Ordinary},
		{"-- \x95\x5c\nCOMMIT", unsafe, false, 0, Ordinary},
		{"-- \x95\x5c", unsafe, false, 0, Ordinary},
		{"; /* \x95\x5c */ SELECT 1", unsafe, false, 0, Ordinary},
		{"SELECT 'na\xefve' AS \xe4; COMMIT", DefaultSettings, true, 2, Ordinary},
		{"SELECT 1\x00; COMMIT", DefaultSettings, false, 0, Ordinary},
	} {
		got := Analyze(c.sql, c.s)
		if got.Known != c.known || len(got.Statements) != c.statements {
			t.Errorf("Analyze(%q, %+v): %s", c.sql, c.s, describe(c.sql, got))
		}
		if len(got.Statements) > 0 && got.Statements[0].Kind != c.kind {
			t.Errorf("Analyze(%q, %+v): %v, want %v", c.sql, c.s, got.Statements[0].Kind, c.kind)
		}
		wellFormed(t, c.sql, got)
	}
}

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

func TestSafeEncoding(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"UTF8", "utf-8", "UNICODE", "LATIN1", "latin_1", "ISO_8859_5", "WIN1252", "EUC_JP", "EUC_JIS_2004", "SQL_ASCII", "KOI8R", "MULE_INTERNAL"} {
		if !SafeEncoding(name) {
			t.Errorf("%s is not classified as safe", name)
		}
	}
	for _, name := range []string{"SJIS", "ShiftJIS", "SHIFT_JIS_2004", "BIG5", "GBK", "UHC", "GB18030", "JOHAB", "win932", "WIN936", "win949", "win950", "mskanji", "", "nonsense"} {
		if SafeEncoding(name) {
			t.Errorf("%s is classified as safe", name)
		}
	}
}

func TestDependence(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]Dependence{"": OnNothing, "select 'a'": OnNothing, "\xe4": OnEncoding, "select '\xe4'": OnEncoding, "select 'a\xe4'": OnEncoding, "select 'ab'\xe4": OnEncoding, "\xe4 '\\'": OnQuoting, "'\\' \xe4": OnQuoting, `'\'`: OnQuoting} {
		if got := DependenceOf([]byte(sql)); got != want {
			t.Errorf("%q: %v, want %v", sql, got, want)
		}
	}
}

func TestCacheKeepsTextsApartBySettings(t *testing.T) {
	t.Parallel()
	c := NewCache(1 << 20)
	sql := `SELECT 'a\'; COMMIT; --'`
	on, off := c.Analyze(sql, DefaultSettings), c.Analyze(sql, Settings{SafeEncoding: true})
	if !on.Known || off.Known {
		t.Errorf("known: %v with standard_conforming_strings, %v without", on.Known, off.Known)
	}
	if c.AnalyzeBytes([]byte(sql), DefaultSettings) != on || c.Analyze(sql, DefaultSettings) != on {
		t.Error("the same text under the same settings was analyzed again")
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	c := NewCache(limit)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				sql := fmt.Sprintf("SELECT %d, 'some text'; SHOW x%d", i, g)
				if got := c.AnalyzeBytes([]byte(sql), DefaultSettings); len(got.Statements) != 2 {
					t.Errorf("%q: %d statements", sql, len(got.Statements))
				}
				if got := c.Analyze("SELECT 1", DefaultSettings); !got.Statements[0].Read {
					t.Error("SELECT 1 is not a read")
				}
			}
		})
	}
	wg.Wait()
	size, entries := 0, 0
	for i := range c.shards {
		mu := &c.shards[i].mu
		for _, generation := range []map[cacheKey]*Text{mu.young, mu.old} {
			for key, text := range generation {
				size += key.size(text)
			}
			entries += len(generation)
		}
	}
	if size > limit || entries == 0 {
		t.Errorf("%d entries of %d bytes, limit %d", entries, size, limit)
	}
	long := "SELECT '" + strings.Repeat("x", cachedTextMax) + "'"
	if c.Analyze(long, DefaultSettings) == c.Analyze(long, DefaultSettings) {
		t.Error("a long text was kept")
	}
}

func TestCacheKeepsWhatIsUsed(t *testing.T) {
	t.Parallel()
	c := NewCache(64 << 10)
	used := c.Analyze("SELECT 1", DefaultSettings)
	unused := c.Analyze("SELECT 2", DefaultSettings)
	for i := range 500 {
		c.Analyze(fmt.Sprintf("SELECT %d, 'some text'", i), DefaultSettings)
		if c.Analyze("SELECT 1", DefaultSettings) != used {
			t.Fatalf("behind %d other texts, one that is always used was analyzed again", i)
		}
	}
	if c.Analyze("SELECT 2", DefaultSettings) == unused {
		t.Error("a text that was not used is still there")
	}
}

func TestCacheHitDoesNotAllocate(t *testing.T) {
	c := NewCache(1 << 20)
	sql := []byte("SELECT abalance FROM pgbench_accounts WHERE aid = $1; SELECT 2")
	c.AnalyzeBytes(sql, DefaultSettings)
	if n := testing.AllocsPerRun(100, func() { c.AnalyzeBytes(sql, DefaultSettings) }); n != 0 {
		t.Errorf("a hit allocates %v times", n)
	}
}
