package imports

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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

// programs returns the texts of all Go files but tests, by path.
func programs(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, file := range goFiles(t) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		texts[file] = string(text)
	}
	return texts
}

// TestOnlyTestsFalsifyVerdicts: no program sets election.Config.Falsify.
func TestOnlyTestsFalsifyVerdicts(t *testing.T) {
	t.Parallel()
	seen := false
	for file, text := range programs(t) {
		if !strings.Contains(text, "Falsify") {
			continue
		}
		if filepath.Dir(file) != "election" {
			t.Errorf("%s mentions Falsify, which is only for tests", file)
		}
		seen = true
	}
	if !seen {
		t.Error("package election has no Falsify: remove this test")
	}
}

// TestRollbacksDoNotWaitForever: a rollback whose context cannot end waits for as long as Postgres does not
// answer. With a context that has ended, pgx closes the connection, and the server rolls back.
func TestRollbacksDoNotWaitForever(t *testing.T) {
	t.Parallel()
	rollbacks := 0
	for file, text := range programs(t) {
		rollbacks += strings.Count(text, ".Rollback(")
		if strings.Contains(text, ".Rollback(context.") {
			t.Errorf("%s rolls back with a context that cannot end: use that of the transaction, or one with a timeout", file)
		}
	}
	if rollbacks == 0 {
		t.Error("no rollback was found")
	}
}

// TestTheImageHasWhatTheProgramIsBuiltFrom: .dockerignore keeps everything from the build of the
// image but what it names.
func TestTheImageHasWhatTheProgramIsBuiltFrom(t *testing.T) {
	t.Parallel()
	ignored, err := os.ReadFile(filepath.Join("..", "..", ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	named := strings.Split(string(ignored), "\n")
	for _, dep := range depsOf(t, "./cmd/fencepost") {
		inside, ours := strings.CutPrefix(dep, module+"/")
		folder, _, _ := strings.Cut(inside, "/")
		if ours && !slices.Contains(named, "!"+folder) {
			t.Errorf("cmd/fencepost imports %s, and .dockerignore has no line !%s", dep, folder)
		}
	}
}

// root is the root of the repository.
var root = filepath.Join("..", "..")

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
