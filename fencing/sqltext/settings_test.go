package sqltext

import "testing"

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

func TestDependsOnSettings(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{"": false, "select 'a'": false, "\xe4": true, "select '\xe4'": true, "select 'ab'\xe4": true, "select 12345678\xe4": true, "\xe4 '\\'": true, `'\'`: true, `select '12345678\'`: true} {
		if got := DependsOnSettings([]byte(sql)); got != want {
			t.Errorf("%q: %t, want %t", sql, got, want)
		}
	}
}
