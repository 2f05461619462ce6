package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// searchers are the packages that can search for one text in another.
var searchers = []string{"strings", "bytes", "regexp"}

// harmless are their functions and types that do not search.
var harmless = []string{"Builder", "Buffer", "Clone", "Join", "Repeat", "NewReader"}

// searches lists the functions and variables of the proxy that may search in a text, with the kind of
// that text. None of them is SQL: only fencing/sqltext analyses SQL, with different
// types for parsed and guessed text.
var searches = map[string]string{
	"guardLines":     "the context of an error",
	"followRelayed":  "the name of a prepared statement",
	"Unparsable":     "the end of a text that Fencepost has made",
	"isRefusedWord":  "the message of an error",
	"ownSyntaxError": "the message of an error",
	"followMessage":  "the status of a ReadyForQuery",
}

// beforeSQL are the prefixes of the names of files whose code runs before a session's
// first statement.
var beforeSQL = []string{"config", "dial", "startup", "handshake", "tls"}

// TestOnlyTheAnalysisLooksIntoSQL checks that the proxy has no word lists of its own.
func TestOnlyTheAnalysisLooksIntoSQL(t *testing.T) {
	t.Parallel()
	unseen := maps.Clone(searches)
	for _, p := range list(t) {
		if where := name(p.ImportPath); where != "proxy" && where != "proxy/protocol" && where != "proxy/gate" {
			continue
		}
		for _, file := range p.GoFiles {
			if slices.ContainsFunc(beforeSQL, func(begin string) bool { return strings.HasPrefix(file, begin) }) {
				continue
			}
			for _, s := range searchesIn(t, filepath.Join(p.Dir, file), nil) {
				delete(unseen, s.function)
				if searches[s.function] == "" {
					t.Errorf("%s: %s calls %s. If it searches in SQL, move it to fencing/sqltext; otherwise add it to searches with the kind of text", file, s.function, s.call)
				}
			}
		}
	}
	for function := range unseen {
		t.Errorf("%s is listed in searches but does not search", function)
	}
}

func TestSearchesAreFound(t *testing.T) {
	t.Parallel()
	const source = `package p
		var early = strings.ToLower("X")
		func (s *session) probe(sql string) bool { return strings.EqualFold(sql[:6], "select") }
		func build() string { var b strings.Builder; return b.String() + strings.Repeat("x", 2) }
		func (s *session) by(sql []byte) { _ = bytes.IndexByte(sql, ';') }`
	want := []search{{"early", "strings.ToLower"}, {"probe", "strings.EqualFold"}, {"by", "bytes.IndexByte"}}
	if got := searchesIn(t, "p.go", source); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

// search is a function or a variable that searches in a text, and the call by which it does.
type search struct{ function, call string }

// searchesIn returns the searches in a Go file, or in source if that is not nil.
func searchesIn(t *testing.T, file string, source any) []search {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("parse: %v", err)
	}
	var found []search
	for _, d := range f.Decls {
		function := ""
		switch d := d.(type) {
		case *ast.FuncDecl:
			function = d.Name.Name
		case *ast.GenDecl:
			if v, ok := d.Specs[0].(*ast.ValueSpec); ok {
				function = v.Names[0].Name
			}
		}
		ast.Inspect(d, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && slices.Contains(searchers, x.Name) && !slices.Contains(harmless, s.Sel.Name) {
					found = append(found, search{function, x.Name + "." + s.Sel.Name})
				}
			}
			return true
		})
	}
	return found
}
