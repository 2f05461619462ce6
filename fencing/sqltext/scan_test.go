package sqltext

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	pgquery "github.com/pganalyze/pg_query_go/v6"
)

// ownTokens returns the bounds of sql's tokens according to scanner, with operators
// split into single characters; false if it gave up.
func ownTokens(sql string) (string, bool) {
	var b strings.Builder
	for s := (scanner{sql: sql}); ; {
		t := s.next()
		switch t.kind {
		case tokenEnd:
			return b.String(), true
		case tokenBad, tokenJunk:
			return "", false
		case tokenQuoted:
			if sql[t.start]|0x20 == 'n' {
				t.start++ // a separate token there
			}
			fmt.Fprintf(&b, "%d-%d ", t.start, t.end)
		case tokenSemicolon, tokenOpen, tokenClose, tokenComma:
			fmt.Fprintf(&b, "%d-%d ", t.start, t.end)
		}
	}
}

// theirTokens returns the bounds of the strings, quoted names, brackets, commas and
// semicolons of sql according to the scanner of Postgres.
func theirTokens(sql string) (string, bool) {
	r, err := pgquery.Scan(sql)
	if err != nil {
		return "", false
	}
	var b strings.Builder
	afterString := false
	for _, t := range r.Tokens {
		text := sql[t.Start:t.End]
		if afterString && t.Token == pgquery.Token_SQL_COMMENT {
			return "", false // unlike the server, the library does not continue a string after a comment
		}
		afterString = text[len(text)-1] == '\''
		switch t.Token {
		case pgquery.Token_SCONST, pgquery.Token_USCONST, pgquery.Token_BCONST, pgquery.Token_XCONST, pgquery.Token_UIDENT,
			pgquery.Token_ASCII_40, pgquery.Token_ASCII_41, pgquery.Token_ASCII_44, pgquery.Token_ASCII_59,
			pgquery.Token_ASCII_91, pgquery.Token_ASCII_93:
		case pgquery.Token_IDENT:
			if text[0] != '"' {
				continue
			}
		default:
			continue
		}
		fmt.Fprintf(&b, "%d-%d ", t.Start, t.End)
	}
	return b.String(), true
}

var scanSeeds = []string{
	"SELECT 'a''b', E'a\\'b', e'\\\\', B'01', x'1f', N'it''s', U&'d\\0061', \"a\"\"b\", U&\"x\", $$a;b$$, $t$ $$ $t$ x$1$2",
	"SELECT 'a'\n  'b', E'a' \n '\\'b', 'a' /* c */ 'b', b'0'\n'1'", "a--b\n;c/*d/*e*/f*/g", "*/*x*/ +--\n-", "$1 $ $a $a$ $a$ $$ $b$ $$",
	"a$b$c", "1.5e10 .5 1..2 1e+5 1. x.y", "SELECT (a[1:2], (b)); ", "u&x u & 'x' e 'x' \u00e4'x' \u00e4$$ $\u00e4$ ; $\u00e4$", "'a'\r\n'b'\f\n\n'c'", "'a'; --x\n;'b'",
}

func TestScannerAgreesWithPostgres(t *testing.T) {
	t.Parallel()
	for _, sql := range scanSeeds {
		own, ok := ownTokens(sql)
		their, theirOK := theirTokens(sql)
		if !ok || !theirOK || own != their {
			t.Errorf("%q: our scanner says %q (%v), that of Postgres %q (%v)", sql, own, ok, their, theirOK)
		}
	}
}

// FuzzScanner checks that where both scanners accept the text, they agree on strings,
// brackets and semicolons.
func FuzzScanner(f *testing.F) {
	for _, s := range scanSeeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		if strings.IndexByte(sql, 0) >= 0 || !utf8.ValidString(sql) {
			return
		}
		own, ok := ownTokens(sql)
		their, theirOK := theirTokens(sql)
		if ok && theirOK && own != their {
			t.Errorf("%q: our scanner says %q, that of Postgres %q", sql, own, their)
		}
	})
}

// nests are shapes of text whose tree grows with each repetition.
var nests = []func(n int) string{
	func(n int) string { return "select " + strings.Repeat("(", n) + "1" + strings.Repeat(")", n) },
	func(n int) string { return "select 1" + strings.Repeat("+1", n) },
	func(n int) string { return "select 1" + strings.Repeat("+f(1,2)", n) },
	func(n int) string { return "select " + strings.Repeat("- ", n) + "a" },
	func(n int) string { return "select " + strings.Repeat("not ", n) + "a" },
	func(n int) string { return "select 1,2" + strings.Repeat(" union select 1,2", n) },
	func(n int) string { return "select 1" + strings.Repeat(" union (select 1", n) + strings.Repeat(")", n) },
	func(n int) string { return "select 1" + strings.Repeat("::a", n) },
	func(n int) string { return "select " + strings.Repeat("(select ", n) + "1" + strings.Repeat(")", n) },
	func(n int) string { return "select 1 from a" + strings.Repeat(" cross join b", n) },
	func(n int) string {
		return "select " + strings.Repeat("case when a then ", n) + "1" + strings.Repeat(" end", n)
	},
	func(n int) string { return "select " + strings.Repeat("f(1,", n) + "1" + strings.Repeat(")", n) },
	func(n int) string { return "select " + strings.Repeat("array[", n) + "1" + strings.Repeat("]", n) },
	func(n int) string { return "select a" + strings.Repeat(" isnull", n) },
	func(n int) string { return "select a" + strings.Repeat(" collate c", n) },
	func(n int) string {
		return strings.Repeat("with a as (", n) + "select 1" + strings.Repeat(") select 1", n)
	},
	func(n int) string { return "select 1" + strings.Repeat(" = any(select 1", n) + strings.Repeat(")", n) },
	func(n int) string {
		return "select * from " + strings.Repeat("(select * from ", n) + "t" + strings.Repeat(") x", n)
	},
	func(n int) string { return "select a" + strings.Repeat("[a", n) + strings.Repeat("]", n) },
	func(n int) string { return "select a" + strings.Repeat("||(1)", n) },
	func(n int) string { return "select " + strings.Repeat("interval '1' - ", n) + "a" },
	func(n int) string { return "select a" + strings.Repeat(" at time zone 'x'", n) },
	func(n int) string { return "select a" + strings.Repeat(" is true", n) },
	func(n int) string { return "select a" + strings.Repeat(" @@ b", n) },
	func(n int) string {
		return "select a" + strings.Repeat(" between 1 and (2", n) + strings.Repeat(")", n)
	},
	func(n int) string {
		return "select * from a" + strings.Repeat(" join (b", n) + strings.Repeat(") on true", n)
	},
	func(n int) string {
		return "create rule r as on insert to t do (" + strings.Repeat("select 1 union ", n) + "select 1; select 1)"
	},
}

// TestNoTextOverflowsTheStack runs this test again in a process whose threads have the
// smallest stack on any platform, 2 MiB, because a stack overflow in C kills the
// process.
func TestNoTextOverflowsTheStack(t *testing.T) {
	if os.Getenv("FENCEPOST_TEST_SMALL_STACK") == "" {
		t.Parallel()
		cmd := exec.Command("sh", "-c", `ulimit -s 2048 && exec "$0" -test.run '^TestNoTextOverflowsTheStack$'`, os.Args[0])
		cmd.Env = append(os.Environ(), "FENCEPOST_TEST_SMALL_STACK=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("with a stack of 2 MiB: %v\n%s", err, out[:min(len(out), 2000)])
		}
		return
	}
	known, deep := 0, 0
	for _, nest := range nests {
		for _, n := range []int{10, 400, 660, 1990, 20000} {
			sql := nest(n)
			if Analyze(sql, DefaultSettings).Known {
				known++
			} else {
				deep++
			}
			AuditOf(sql)
		}
	}
	if known < 50 || deep < 50 {
		t.Errorf("%d texts were known, %d not: all depths were on one side of the bound", known, deep)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		sql := nests[random.IntN(len(nests))](random.IntN(700))
		inner := "(" + nests[random.IntN(len(nests))](random.IntN(700)) + ")"
		Analyze(strings.Replace(sql, "a", inner, 1), DefaultSettings)
		Analyze(strings.Replace(sql, "1", inner, 3), DefaultSettings)
	}
}

// TestDepthBoundHolds checks that no tree is deeper than tooDeep promises.
func TestDepthBoundHolds(t *testing.T) {
	t.Parallel()
	for i, nest := range nests {
		sql := nest(300)
		if tooDeep(sql, 1<<30) {
			t.Errorf("nest %d is too deep for any limit", i)
		}
		if !tooDeep(sql, 299) {
			t.Errorf("nest %d of depth 300 is not found deeper than 299", i)
		}
		if tooDeep(nest(10), 200) {
			t.Errorf("nest %d of depth 10 is found deeper than 200", i)
		}
	}
}
