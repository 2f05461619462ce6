package oracle

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
)

// TestChecksAreRecognized checks that the oracle recognises the proxy's texts as
// checks, and nothing that differs from them.
func TestChecksAreRecognized(t *testing.T) {
	t.Parallel()
	one, two := fencing.Subject{Fence: 7, Incarnation: "in", Told: 3, Held: 3}, fencing.Subject{Fence: 10, Incarnation: "x", Told: 3, Claims: true}
	chosen := fencing.ChosenCheckSQL("it's \\ w", "b, \u00e9", []fencing.Subject{one, two})
	full, front := fencing.CheckSQL(7, "it's \\ w", "i'n#1", false), fencing.FrontCheckSQL(7, "w", "in", false, 3)
	for _, c := range []struct {
		sql  string
		want kind
	}{
		{fencing.CheckSQL(7, "w", "in", true), check}, {fencing.FrontCheckSQL(7, "w", "in", true, 3), check}, {fencing.InlineCheckSQL(7, "w", "in", true, 3, 3), check},
		{full, check}, {front, check}, {fencing.InlineCheckSQL(7, "w", "in", false, 3, 3), check}, {fencing.ReadOnlySQL, readOnly},
		{fencing.RefuseSQL(7, "w", "in", 3, 0, true), fails},
		{fencing.CheckSQL(7, "\"\u00e9\U0001f600\\", "in", false), check}, {fencing.FrontCheckSQL(7, "w", "\u00e9\\'", false, 3), check},
		{full + " OR true", query}, {full + "\u00a0", query}, {strings.Replace(front, "'w'", "'\u00e9'", 1), query},
		{strings.Replace(front, "3::pg_catalog.int8)) IS", "4::pg_catalog.int8)) IS", 1), query},
		{strings.Replace(front, "epoch_7", "epoch_8", 1), query}, {strings.Replace(full, "fencepost.current", "public.current", 1), query},
		{strings.Replace(full, "int8, $2", "int8, $1", 1), query}, {strings.Replace(full, "committed", "uncommitted", 1), query},
		{strings.Replace(fencing.CheckSQL(7, "w", "in", true), "claim_7", "claim_8", 1), query},
		{strings.Replace(fencing.CheckSQL(7, "w", "in", true), "$1::pg_catalog.int8::", "$2::pg_catalog.int8::", 1), query},
		{fencing.ClaimSQL(7, 3), claim}, {strings.Replace(fencing.ClaimSQL(7, 3), "fencepost.claim", "work.mem", 1), query},
		{strings.Replace(fencing.ClaimSQL(7, 3), "'3'", "f()", 1), query}, {fencing.ClaimSQL(7, 3) + ", f()", query},
		{"SELECT fencepost.refuse(7, 3, 'w', 'in', 3, false) WHERE false", query},
		{chosen, check}, {chosen + " UNION ALL SELECT f()", query}, {strings.Replace(chosen, " UNION ALL ", " UNION ", 1), query},
		{fencing.ChosenCheckSQL("w", "b", []fencing.Subject{two, one}), query}, {fencing.ChosenCheckSQL("w", "b", nil), query},
		{strings.Replace(chosen, "'fencepost.resource'", "'work.mem'", 1), query}, {strings.Replace(chosen, "IS NOT TRUE", "IS TRUE", 1), query},
	} {
		got := read([]byte(c.sql), standard, true)
		if len(got) != 1 || got[0].kind != c.want {
			t.Errorf("%s: read as %+v, want %s", c.sql, got, kindNames[c.want])
		}
	}
}

// TestPrepareIsRead checks that a PREPARE whose constants cannot be read is known to be
// one of a query, by its first words.
func TestPrepareIsRead(t *testing.T) {
	t.Parallel()
	for sql, name := range map[string]string{
		`prepare Q as select E'\n'`: "q", `PREPARE q(int) AS select '\'`: "q", `prepare transaction 'a\'`: "", `prepare "q" as select '\'`: "q",
		`prepare "ä" as select 1`: "ä", `prepare"a""b"as select '\'`: `a"b`, `prepare U&"q" as select '\'`: "",
		`prepare q`: "", `prepare qé as select '\'`: "", `prepare q as select '\'; commit`: "",
	} {
		got := read([]byte(sql), unknown, false)
		if len(got) != 1 || got[0].runs != name || got[0].prepares != (name != "") || (got[0].kind == query) != (name != "") {
			t.Errorf("%s: read as %+v, want PREPARE %q", sql, got, name)
		}
	}
}

// TestCommentsInFront checks that a text is read from its first statement on.
func TestCommentsInFront(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"/*/ x */ select": "select", "/**/select": "select", "/*/": "/*/", "/* x": "/* x", "/* /* x */": "/* /* x */",
		"-- x\n ;": ";", "-- x": "", " \t": "",
	} {
		if got := string(uncommented([]byte(sql))); got != want {
			t.Errorf("%q begins with %q, want %q", sql, got, want)
		}
	}
}
