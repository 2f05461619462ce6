package sqltext

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
)

// smallFacts are the facts of a database with the table t, the view v, and little else.
func smallFacts() fencing.Facts {
	return fencing.Facts{
		Relations:     map[string]string{"t": "", "u": "", "v": "is a view"},
		UserRelations: map[string]bool{"t": true, "u": true, "v": true},
		Functions:     map[string]string{"count": "", "lower": "", "now": "", "random": "", "nextval": "", "pg_notify": "", "table_to_xml": "", "f": "is not built in", "t": "", "d": ""},
		Volatile:      map[string]bool{"random": true, "nextval": true, "pg_notify": true},
		Attributes:    map[string]bool{"f": true},
		Operators:     map[string]string{"=": "", "<": "", "<=": "", ">": "", ">=": "", "~~": "", "+": "is also an operator that is not built in"},
		Types:         map[string]string{"int4": "", "text": "", "d": "is a domain"},
	}
}

func TestProvenByNames(t *testing.T) {
	t.Parallel()
	c := fencing.NewCatalog(smallFacts())
	for _, x := range []struct{ sql, why string }{
		{"SELECT 1", ""},
		{"SELECT a, t.b FROM t WHERE a = $1", ""},
		{"SELECT count(*), now(), random() FROM public.t JOIN u USING (a)", ""},
		{"EXPLAIN SELECT 1", ""}, {"DECLARE c CURSOR FOR TABLE t", ""}, {"COPY t TO STDOUT", ""}, {"FETCH ALL FROM c", ""},
		{"SELECT * FROM v", "relation v is a view"},
		{"SELECT * FROM elsewhere.v", "relation v is a view"},
		{"SELECT * FROM w", "relation w is not known"},
		{"SELECT (SELECT a FROM v)", "relation v is a view"},
		{"COPY v TO STDOUT", "relation v is a view"},
		{"SELECT f(1)", "function f is not built in"},
		{"SELECT a FROM t ORDER BY f(a)", "function f is not built in"},
		{"SELECT count(*) FILTER (WHERE f(1) = 1) OVER (PARTITION BY a) FROM t", "function f is not built in"},
		{"SELECT g(1)", "function g is not known"},
		{"SELECT nextval('s')", "function nextval is volatile"},
		{"SELECT pg_notify('a', 'b')", "pg_notify: it sends a message or a notification"},
		{"SELECT table_to_xml('t')", "function table_to_xml: it reads relations that are not named in the text"},
		{"SELECT t('x')", ""},
		{"SELECT d('x')", "function d has the name of a type: is a domain"},
		{"SELECT t.f FROM t", ".f may be a function or a domain that is not built in"},
		{"SELECT (t).f FROM t", ".f may be a function or a domain that is not built in"},
		{"SELECT f FROM t", ""},
		{"SELECT a + 1 FROM t", "operator + is also an operator that is not built in"},
		{"SELECT a OPERATOR(x.+) 1 FROM t", "operator + is also an operator that is not built in"},
		{"SELECT a - 1 FROM t", "operator - is not known"},
		{"SELECT 'x'::d", "type d is a domain"},
		{"SELECT '{x}'::d[]", "type d is a domain"},
		{"SELECT NULL::t", "type t is the row type of a relation"},
		{"SELECT * FROM lower('x') AS x(a d)", "type d is a domain"},
		{"WITH v AS (SELECT 1) SELECT * FROM v", ""},
		{"WITH v AS (SELECT 1) SELECT * FROM public.v", "relation v is a view"},
		{"WITH v AS (SELECT * FROM v) SELECT * FROM v", "relation v is a view"},
		{"WITH a AS (SELECT * FROM v), v AS (SELECT 1) SELECT * FROM a", "relation v is a view"},
		{"WITH v AS (SELECT 1), a AS (SELECT * FROM v) SELECT * FROM a", ""},
		{"WITH RECURSIVE a AS (SELECT * FROM v), v AS (SELECT 1) SELECT * FROM a", ""},
		{"SELECT (WITH v AS (SELECT 1) SELECT count(*) FROM v) FROM v", "relation v is a view"},
		{"SELECT * FROM (WITH v AS (SELECT 1) SELECT * FROM v) x UNION SELECT * FROM v", "relation v is a view"},
		{"WITH v AS (SELECT 1) SELECT * FROM v UNION SELECT * FROM v ORDER BY 1", ""},
		{"SELECT * FROM \"t\u00e4ble\"", "not ASCII"},
		{"SELECT \"n\u00e4me\", t.\"n\u00e4me\", 'n\u00e4me' FROM t", ""},
		{"SELECT " + strings.Repeat("x", 63) + "(1)", "long enough to be cut"},
		{"SELECT * FROM t TABLESAMPLE system (1)", "never proven: RangeTableSample"},
		{"SELECT xmlelement(name a)", "never proven: XmlExpr"},
		{"SELECT current_user, CASE a WHEN 1 THEN 2 END, ARRAY[1], (ARRAY[1])[1], ROW(1, 2) FROM t", ""},
		{"SHOW work_mem", "command of the session"},
		{"PREPARE p AS SELECT 1", "not a plain query"},
		{"INSERT INTO t VALUES (1)", "it modifies rows"},
		{"SELECT * FROM t FOR UPDATE", "locks rows"},
		{"SELECT 1; SELECT 2", "not one statement"},
		{"", "not one statement"},
		{"SELEC", "syntax error"},
	} {
		proven, why := provenText(c, Analyze(x.sql, DefaultSettings))
		if proven != (x.why == "") || !strings.Contains(why, x.why) {
			t.Errorf("%s: proven %v, %q; want %q", x.sql, proven, why, x.why)
		}
	}
}

func TestOperatorsOfWordsAreNamed(t *testing.T) {
	t.Parallel()
	for sql, operator := range map[string]string{
		"SELECT a BETWEEN 1 AND 2 FROM t":              "<=",
		"SELECT CASE a WHEN 1 THEN 1 END FROM t":       "=",
		"SELECT * FROM t JOIN u USING (a)":             "=",
		"SELECT * FROM t NATURAL JOIN u":               "=",
		"SELECT a IN (SELECT a FROM u) FROM t":         "=",
		"SELECT a IN (1, 2) FROM t":                    "=",
		"SELECT NULLIF(a, 1) FROM t":                   "=",
		"SELECT a IS DISTINCT FROM 1 FROM t":           "=",
		"SELECT a LIKE 'x' FROM t":                     "~~",
		"SELECT a < ANY (SELECT 1) FROM t":             "<",
		"SELECT a FROM t ORDER BY a USING >":           ">",
		"SELECT (a, 1) = (SELECT 1, 2) FROM t":         "=",
		"SELECT a = ANY ('{1}'::int[]) FROM t":         "=",
		"SELECT a >= ALL (ARRAY[1]) FROM t GROUP BY a": ">=",
	} {
		text := Analyze(sql, DefaultSettings)
		if ok, why := provenText(fencing.NewCatalog(smallFacts()), text); !ok {
			t.Errorf("%s: %s", sql, why)
		}
		f := smallFacts()
		f.Operators[operator] = "is also an operator that is not built in"
		if ok, why := provenText(fencing.NewCatalog(f), text); ok || !strings.Contains(why, "operator "+operator+" ") {
			t.Errorf("%s with another %s: proven %v (%s)", sql, operator, ok, why)
		}
	}
}

func TestNoCatalogProvesNothing(t *testing.T) {
	t.Parallel()
	var none *fencing.Catalog
	text := Analyze("SELECT 1", DefaultSettings)
	if ok, why := provenText(none, text); ok || why == "" {
		t.Errorf("proven %v (%q)", ok, why)
	}
	if ok, _ := Proven(fencing.NewCatalog(fencing.Facts{}), &Statement{Read: true}); ok {
		t.Error("a statement whose names were not collected is proven")
	}
	if ok, why := provenText(fencing.NewCatalog(fencing.Facts{Nothing: "there is a cast"}), text); ok || why != "there is a cast" {
		t.Errorf("proven %v (%q)", ok, why)
	}
	wide := smallFacts()
	wide.Attributes["\u00e4"] = true
	if ok, _ := provenText(fencing.NewCatalog(wide), Analyze("SELECT t.\"\u00f6\" FROM t", DefaultSettings)); ok {
		t.Error("a name that could be a function's in another encoding is proven")
	}
}

// TestVerdictIsOfTheCatalogAsked checks that results for several catalogs are not
// mixed up.
func TestVerdictIsOfTheCatalogAsked(t *testing.T) {
	t.Parallel()
	text := Analyze("SELECT lower(a) FROM t", DefaultSettings)
	good := fencing.NewCatalog(smallFacts())
	f := smallFacts()
	f.Functions["lower"] = "is not built in"
	bad := fencing.NewCatalog(f)
	for range 3 {
		if ok, _ := provenText(good, text); !ok {
			t.Fatal("not proven")
		}
		if ok, _ := provenText(bad, text); ok {
			t.Fatal("proven")
		}
	}
}

// provenText is Proven for a text, which must be one statement.
func provenText(c *fencing.Catalog, t *Text) (proven bool, why string) {
	switch {
	case !t.Known:
		return false, t.why
	case len(t.Statements) != 1:
		return false, "it is not one statement"
	}
	return Proven(c, &t.Statements[0])
}
