package imports

import (
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
)

// fileImports reports whether a Go file imports library or a package below it.
func fileImports(t *testing.T, file, library string) bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatalf("parse: %v", err)
	}
	for _, imp := range f.Imports {
		path, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			t.Fatalf("unquote %s: %v", imp.Path.Value, err)
		}
		if path == library || strings.HasPrefix(path, library+"/") {
			return true
		}
	}
	return false
}
