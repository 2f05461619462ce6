package sqltext

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestAuditShowsNoLiteral(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ sql, want, tables string }{
		{"INSERT INTO t VALUES (42, 'secret')", "INSERT INTO t VALUES ($1, $2)", "t"},
		{"UPDATE s.t  SET b = 'secret' /* secret */ WHERE a = $1 -- secret\n AND c = 1.5e3", "UPDATE s.t SET b = $2 WHERE a = $1 AND c = $3", "s.t"},
		{"SELECT E'sec\\'ret', B'01', x'ff', N'secret', U&'secret', $$secret$$, $a$secret$a$, .5, 0xff", "SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9", ""},
		{"ALTER ROLE r PASSWORD 'secret'", "ALTER ROLE r PASSWORD $1", ""},
		{"WITH x AS (DELETE FROM \"T\" RETURNING a) INSERT INTO u SELECT a FROM x, other.v", `WITH x AS (DELETE FROM "T" RETURNING a) INSERT INTO u SELECT a FROM x, other.v`, "T u other.v"},
		{"DROP TABLE t, s.u; TRUNCATE t, v", "DROP TABLE t, s.u; TRUNCATE t, v", "t s.u v"},
		{"DO $$ BEGIN PERFORM 'secret'; END $$", "DO $1", ""},
		{"NOTIFY ch, 'secret'", "NOTIFY ch, $1", ""},
		{"SELECT 'a'\n'secret'", "SELECT $1", ""},
		{"SELECT -42", "SELECT -$1", ""},
		{"INSERT INTO \u00e4 VALUES ('\u65e5')", "INSERT INTO \u00e4 VALUES ($1)", "\u00e4"},
		{"INSERT INTO t\xe4 VALUES ('\xe4')", "INSERT INTO t? VALUES ($1)", "t\u00e4"},
	} {
		got := AuditOf(c.sql)
		if got.Statement != c.want || strings.Join(got.Tables, " ") != c.tables || got.Unparsable || got.Fingerprint == "" {
			t.Errorf("AuditOf(%q) = %+v", c.sql, got)
		}
	}
}

func TestAuditShowsNothingOfWhatItCannotRead(t *testing.T) {
	t.Parallel()
	if got := AuditOf(FunctionCall); got.Statement != FunctionCall || got.Unparsable {
		t.Errorf("a fast path call is %+v", got)
	}
	for _, sql := range []string{
		"SELEC 'secret'", "INSERT INTO t VALUES ('secret", `INSERT INTO t VALUES ('a\', secret, \'b')`, `INSERT INTO t VALUES (N'a\' || 'secret')`,
		"INSERT INTO t VALUES ($$secret)", "/* secret", "SELECT 1\x00", "SELECT " + strings.Repeat("(", 100000), "INSERT INTO t VALUES ('" + strings.Repeat("x", parsedTextMax) + "')",
	} {
		got := AuditOf(sql)
		if !got.Unparsable || got.Statement != "" || got.Fingerprint != "" || got.Tables != nil {
			t.Errorf("AuditOf(%.60q) = %+v", sql, got)
		}
	}
}

func TestAuditIsBoundedAndValid(t *testing.T) {
	t.Parallel()
	got := AuditOf("SELECT " + strings.Repeat("\u65e5\u672c, ", 3000) + "1 FROM " + strings.Repeat("t, ", 100) + "u")
	if len(got.Statement) > auditTextMax || !utf8.ValidString(got.Statement) || !strings.HasSuffix(got.Statement, " ...") {
		t.Errorf("%d bytes, ends in %q", len(got.Statement), got.Statement[len(got.Statement)-10:])
	}
	if !slices.Equal(got.Tables, []string{"t", "u"}) {
		t.Errorf("tables %v", got.Tables)
	}
	var names []string
	for i := range 500 {
		names = append(names, "t"+strings.Repeat("x", i%50)+string(rune('a'+i%26))+string(rune('a'+i/26)))
	}
	if got := AuditOf("SELECT 1 FROM " + strings.Join(names, ", ")); len(got.Tables) != auditTablesMax {
		t.Errorf("%d tables", len(got.Tables))
	}
}

func TestFingerprintsDifferByMoreThanLiterals(t *testing.T) {
	t.Parallel()
	a, b := AuditOf("UPDATE t SET b = 'x' WHERE a = 1"), AuditOf("update t  set b = 'y' where a = 2")
	if c := AuditOf("UPDATE u SET b = 'x' WHERE a = 1"); a.Fingerprint != b.Fingerprint || a.Fingerprint == c.Fingerprint {
		t.Errorf("fingerprints %s, %s, %s", a.Fingerprint, b.Fingerprint, c.Fingerprint)
	}
}
