package sqltext

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestShape(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"SELECT 4711":                                       "SELECT 1",
		"select abalance from t where aid=4711;":            "select abalance from t where aid=1;",
		"SELECT a1, b.c2 FROM t3 WHERE a IN (12,-3,+4)":     "SELECT a1, b.c2 FROM t3 WHERE a IN (1,-1,+1)",
		"VALUES (12), (999999999), (1000000000)":            "VALUES (1), (1), (1000000000)",
		"SELECT 1.5, .25, 3., 1e5, 0x1F, 1_000, 7a":         "SELECT 1.5, .25, 3., 1e5, 0x1F, 1_000, 7a",
		"SELECT a[3], a[4:5] FROM t LIMIT 10":               "SELECT a[1], a[1:1] FROM t LIMIT 1",
		`SELECT 'a ''5', "b 6", 7, '--8' || N'/* 9', x'10'`: `SELECT 'a ''5', "b 6", 1, '--8' || N'/* 9', x'10'`,
	} {
		if got := string(Shape(nil, []byte(sql))); got != want {
			t.Errorf("%s: %s, want %s", sql, got, want)
		}
	}
	for _, sql := range []string{
		"SET transaction_read_only = 0", "UPDATE t SET a = 5", "SELECT 5, 'a", `SELECT 5, "a`, "SELECT 5, '\\'", "SELECT $$ 5 $$", "SELECT $5", "SELECT 5 -- 5", "SELECT /* 5 */ 5",
		`SELECT \ 5`, "SELECT 5 AS \u00e9", "SELECT a::float(5) FROM t", "SELECT CAST(a AS Float (5)) FROM t", "SELECT 5" + strings.Repeat(" ", MaxShape),
	} {
		if got := string(Shape(nil, []byte(sql))); got != sql {
			t.Errorf("%s has the shape %s", sql, got)
		}
	}
}

// FuzzShape: what a proof depends on is the same for a text and for its shape.
func FuzzShape(f *testing.F) {
	for _, file := range dataFiles(f) {
		for _, c := range readCases(f, file) {
			f.Add(c.sql)
		}
	}
	f.Add("SELECT a FROM t WHERE b = 4711 AND c IN (2, 3) ORDER BY 2 LIMIT 10")
	f.Fuzz(func(t *testing.T, sql string) {
		shape := string(Shape(nil, []byte(sql)))
		if shape == sql {
			return
		}
		if again := string(Shape(nil, []byte(shape))); again != shape {
			t.Errorf("%q has the shape %q, and that %q", sql, shape, again)
		}
		a, b := Analyze(sql, DefaultSettings), Analyze(shape, DefaultSettings)
		if a.Known != b.Known || len(a.Statements) != len(b.Statements) {
			t.Fatalf("%q: known %v, %d statements; its shape %q: %v, %d", sql, a.Known, len(a.Statements), shape, b.Known, len(b.Statements))
		}
		for i := range a.Statements {
			x, y := &a.Statements[i], &b.Statements[i]
			if x.Read != y.Read || x.Kind != y.Kind || x.reason != y.reason || !sameDependencies(x.dependencies, y.dependencies) {
				t.Errorf("%q and its shape %q need different proofs", sql, shape)
			}
		}
	})
}

func sameDependencies(a, b *dependencies) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.never == b.never && slices.Equal(a.names, b.names) && reflect.TypeFor[dependencies]().NumField() == 3
}

func BenchmarkShape(b *testing.B) {
	sql := []byte("SELECT abalance FROM pgbench_accounts WHERE aid = 4711;")
	var room [MaxShape]byte
	b.ReportAllocs()
	for b.Loop() {
		Shape(room[:0], sql)
	}
}
