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

// searchers are the packages by which one text is looked for in another.
var searchers = []string{"strings", "bytes", "regexp"}

// harmless are their functions and types that look for nothing.
var harmless = []string{"Builder", "Buffer", "Clone", "Join", "Repeat", "NewReader"}

// searches are the functions of the proxy that may look into a text, with what kind of
// text that is. None of them is SQL: what a text of SQL says is for fencing/sqltext to
// tell, where what was parsed and what was guessed are two types.
var searches = map[string]string{
	"client":       "the type of a message",
	"awaitsEnd":    "the type of a message",
	"intruded":     "the message of an error",
	"failure":      "the message of an error",
	"ofCopyData":   "the context of an error",
	"theirs":       "the message of an error",
	"unknownCheck": "the message of an error",
	"checkError":   "the code of an error",
	"newNonce":     "random characters",
}

// beforeSQL are the files, by how their names begin, for what comes before a session's
// first statement.
var beforeSQL = []string{"config", "startup", "handshake", "tls"}

// TestOnlyTheAnalysisLooksIntoSQL: the proxy has no word lists of its own.
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
					t.Errorf("%s: %s calls %s. If it looks into SQL, that belongs into fencing/sqltext; if not, say in searches what it looks into", file, s.function, s.call)
				}
			}
		}
	}
	for function := range unseen {
		t.Errorf("%s is listed in searches, and looks into nothing", function)
	}
}

func TestSearchesAreFound(t *testing.T) {
	t.Parallel()
	const source = `package p
		var early = strings.ToLower("X")
		func (m *machine) probe(sql string) bool { return strings.EqualFold(sql[:6], "select") }
		func build() string { var b strings.Builder; return b.String() + strings.Repeat("x", 2) }
		func (m *machine) by(sql []byte) { _ = bytes.IndexByte(sql, ';') }`
	want := []search{{"", "strings.ToLower"}, {"probe", "strings.EqualFold"}, {"by", "bytes.IndexByte"}}
	if got := searchesIn(t, "p.go", source); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

// search is a function that looks into a text, and what it calls for that.
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
		if fn, ok := d.(*ast.FuncDecl); ok {
			function = fn.Name.Name
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
