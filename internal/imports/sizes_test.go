package imports

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The sizes above which code is hard to keep in mind.
const (
	maxFields        = 20 // of a struct in a package of statefulPackages
	maxBools         = 4  // of them
	maxFunctionLines = 60 // outside tests
	maxFiles         = 40 // Go files in a directory
)

// root is the root of the repository.
var root = filepath.Join("..", "..")

// statefulPackages are where a struct holds the state of a session or a candidacy.
var statefulPackages = []string{"proxy", "election"}

// large lists what may exceed a limit, with the reason.
var large = map[string]string{}

// TestSizes checks the sizes of structs, functions and directories.
func TestSizes(t *testing.T) {
	t.Parallel()
	files, found := map[string]int{}, map[string]string{}
	for _, file := range goFiles(t) {
		dir := filepath.Dir(file)
		files[dir]++
		if n := files[dir]; n > maxFiles {
			found[dir] = fmt.Sprintf("has %d files, more than %d", n, maxFiles)
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for name, excess := range excesses(t, dir, file) {
			found[name] = excess
		}
	}
	if len(files) == 0 {
		t.Fatal("there is no Go file")
	}
	for name, excess := range found {
		if large[name] == "" {
			t.Errorf("%s %s", name, excess)
		}
	}
	for name := range large {
		if found[name] == "" {
			t.Errorf("%s is within the limits: remove it from the list of exceptions", name)
		}
	}
}

// goFiles lists the Go files of the repository, relative to its root.
func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(path, ".go"):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("list the Go files: %v", err)
	}
	return files
}

// excesses returns what in a file exceeds a limit: its name, and how much.
func excesses(t *testing.T, dir, file string) map[string]string {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, filepath.Join(root, file), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("parse: %v", err)
	}
	found := map[string]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			lines := set.Position(n.End()).Line - set.Position(n.Pos()).Line + 1
			if lines > maxFunctionLines {
				found[dir+"."+n.Name.Name] = fmt.Sprintf("has %d lines, more than %d", lines, maxFunctionLines)
			}
		case *ast.FuncLit: // one outside a function; inside one, its lines are those of the function too
			lines := set.Position(n.End()).Line - set.Position(n.Pos()).Line + 1
			if lines > maxFunctionLines {
				found[fmt.Sprintf("%s:%d: a function literal", file, set.Position(n.Pos()).Line)] = fmt.Sprintf("has %d lines, more than %d", lines, maxFunctionLines)
			}
		case *ast.TypeSpec:
			s, ok := n.Type.(*ast.StructType)
			if !ok || !holdsState(dir) {
				break
			}
			if fields, bools := count(s); fields > maxFields || bools > maxBools {
				found[dir+"."+n.Name.Name] = fmt.Sprintf("has %d fields and %d booleans, more than %d or %d", fields, bools, maxFields, maxBools)
			}
		}
		return true
	})
	return found
}

func holdsState(dir string) bool {
	for _, p := range statefulPackages {
		if dir == p || strings.HasPrefix(dir, p+"/") {
			return true
		}
	}
	return false
}

// count counts the fields of a struct, and how many of them are booleans. In the place of a
// field whose type is a struct without a name, the fields of that struct count.
func count(s *ast.StructType) (fields, bools int) {
	for _, f := range s.Fields.List {
		n, b := 1, 0
		switch t := f.Type.(type) {
		case *ast.Ident:
			if t.Name == "bool" {
				b = 1
			}
		case *ast.StructType:
			n, b = count(t)
		}
		names := max(1, len(f.Names))
		fields, bools = fields+n*names, bools+b*names
	}
	return fields, bools
}
