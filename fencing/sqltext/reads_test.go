package sqltext

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	pgquery "github.com/pganalyze/pg_query_go/v6"

	"github.com/fencepost/fencepost/fencing"
)

// oddSeeds are texts that are harmless under one reading but not under another.
var oddSeeds = []string{
	`select 'a\', ', pg_notify($$a$$, $$b$$) --'`, "select E'\x95\x5c'', ', pg_notify($$a$$, $$b$$) --'", "select 'a'\n'\\', ' ; commit; --'",
	`select U&"pg!005fnotify" uescape '!' ('a', 'b')`, `select pg_catalog."pg_notify"('a', 'b')`, "select /* ; */ pg_notify('a', 'b') -- x", "select 1 */* ; */ 2",
	"select 1 into x", "with x as (delete from t returning a) select * from x", "select * from (select * from t for update) x", "explain (analyze off) insert into t values (1)",
	"explain (analyze, analyze off) insert into t values (1)", "copy (update t set a = 1 returning a) to stdout", "copy t to program 'x'", "declare c cursor for select lo_create(1)",
	"prepare p as select pg_switch_wal()", "select 1 as pg_notify", "select x.pg_notify from x as pg_notify(a)", "select set_config('transaction_read_only'::varchar(21), null, true)",
	"begin; select 1; prepare transaction 'x'", "\ufeffselect 1", "select\v1", "select 1\\; commit", "select '\x00'; commit", "select $a$;$a$; commit", "set transaction_read_only to default",
}

// FuzzReads checks that no text is classified as a read, or proven, if its tokens show
// otherwise or its meaning is uncertain, and that none takes long.
func FuzzReads(f *testing.F) {
	for _, file := range dataFiles(f) {
		for _, c := range readCases(f, file) {
			f.Add(c.sql)
		}
	}
	for _, sql := range oddSeeds {
		f.Add(sql)
	}
	names := fencing.NewCatalog(smallFacts())
	f.Fuzz(func(t *testing.T, sql string) {
		began := time.Now()
		for _, s := range []Settings{DefaultSettings, {StandardConformingStrings: true}, {SafeEncoding: true}, {}} {
			full := Analyze(sql, s)
			for i := range full.Statements {
				if st := &full.Statements[i]; st.Read {
					noReadSays(t, sql, st, s)
				}
			}
			if proven, _ := provenText(names, full); proven && (len(full.Statements) != 1 || !full.Statements[0].Read) {
				t.Errorf("%q: proven, but no read", sql)
			}
			sameWithMore(t, sql, full, s)
		}
		if d := time.Since(began); d > 20*time.Second {
			t.Errorf("%.100q: took %s", sql, d)
		}
	})
}

// noReadSays fails t if a text that was classified as a read cannot be one.
func noReadSays(t *testing.T, sql string, st *Statement, s Settings) {
	t.Helper()
	text := sql[st.Start:st.End]
	switch {
	case strings.IndexByte(sql, 0) >= 0:
		t.Errorf("%q: a read with a NUL byte", sql)
	case !s.StandardConformingStrings && strings.IndexByte(sql, '\\') >= 0 && st.Kind == Ordinary:
		t.Errorf("%q: a read with a backslash that may escape", sql)
	case !s.SafeEncoding && !isASCII([]byte(sql)) && st.Kind == Ordinary:
		t.Errorf("%q: a read with bytes that may be others", sql)
	}
	if !utf8.ValidString(text) {
		return
	}
	scan, err := pgquery.Scan(text)
	if err != nil {
		t.Errorf("%q: a read that the lexer refuses: %v", text, err)
		return
	}
	tokens := scan.Tokens
	word := func(i int) string {
		if i < 0 || i >= len(tokens) {
			return ""
		}
		return strings.ToLower(text[tokens[i].Start:tokens[i].End])
	}
	explain := false
	for i := range tokens {
		explain = explain || tokens[i].Token == pgquery.Token_EXPLAIN
		if tokens[i].Token == pgquery.Token_INTO && !explain {
			t.Errorf("%q: a read with INTO", text)
		}
		if _, evades := evadesReadOnly(word(i)); evades && word(i+1) == "(" && !namesAlias(tokens, i) {
			t.Errorf("%q: a read that calls %s", text, word(i))
		}
	}
}

// namesAlias reports whether the name at i may be an alias, like pg_notify in x AS
// pg_notify(a) and in x pg_notify(a).
func namesAlias(tokens []*pgquery.ScanToken, i int) bool {
	if i == 0 {
		return false
	}
	switch before := tokens[i-1]; before.Token {
	case pgquery.Token_AS, pgquery.Token_IDENT, pgquery.Token_ASCII_41, pgquery.Token_SCONST, pgquery.Token_ICONST:
		return true
	default:
		return before.KeywordKind != pgquery.KeywordKind_NO_KEYWORD && before.KeywordKind != pgquery.KeywordKind_RESERVED_KEYWORD
	}
}

// sameWithMore fails t unless a text has the same meaning with space and semicolons
// around it.
func sameWithMore(t *testing.T, sql string, full *Text, s Settings) {
	t.Helper()
	if !full.Known {
		return
	}
	for _, more := range []string{" \n" + sql, sql + "\n;", "/* a */" + sql + "\n;;"} {
		again := Analyze(more, s)
		if len(more) > parsedTextMax || len(again.Statements) != len(full.Statements) {
			if again.Known {
				t.Errorf("%q: %d statements, %q: %d", sql, len(full.Statements), more, len(again.Statements))
			}
			continue
		}
		for i := range again.Statements {
			a, b := &again.Statements[i], &full.Statements[i]
			if a.Kind != b.Kind || a.Read != b.Read || a.effects != b.effects {
				t.Errorf("%q: %s, %q: %s", sql, describeStatement(b), more, describeStatement(a))
			}
		}
	}
}
