package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// listed is what go list says of a package.
type listed struct {
	Dir, ImportPath, Export string
	GoFiles                 []string
}

// TestMutantsCompile checks the types of the package that each mutation of Go code changes: a run with a limit
// plants only some of them.
func TestMutantsCompile(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	mutations := map[string][]mutation{} // by directory
	for _, m := range table {
		if filepath.Ext(m.file) == ".go" {
			dir := filepath.Join(root, filepath.Dir(m.file))
			mutations[dir] = append(mutations[dir], m)
		}
	}
	packages := list(t, slices.Collect(maps.Keys(mutations)))
	exports := map[string]string{}
	for _, p := range packages {
		exports[p.ImportPath] = p.Export
	}
	var all sync.WaitGroup
	for _, p := range packages {
		if planted := mutations[p.Dir]; len(planted) > 0 {
			all.Go(func() { p.check(t, planted, exports) })
		}
	}
	all.Wait()
}

// list returns the packages in these directories and what they import.
func list(t *testing.T, dirs []string) []listed {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-export", "-json=Dir,ImportPath,Export,GoFiles"}, dirs...)...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages
		case err != nil:
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// check checks the types of p with each of these mutations planted. What is imported, and the other files, are
// read once.
func (p *listed) check(t *testing.T, mutations []mutation, exports map[string]string) {
	set := token.NewFileSet()
	texts, files := make([]string, len(p.GoFiles)), make([]*ast.File, len(p.GoFiles))
	for i, name := range p.GoFiles {
		text, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err == nil {
			texts[i] = string(text)
			files[i], err = parser.ParseFile(set, name, text, parser.SkipObjectResolution)
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
	imported := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, m := range mutations {
		planted, i := slices.Clone(files), slices.Index(p.GoFiles, filepath.Base(m.file))
		var err error
		if planted[i], err = parser.ParseFile(set, m.file, strings.Replace(texts[i], m.old, m.text, 1), parser.SkipObjectResolution); err == nil {
			_, err = (&types.Config{Importer: imported}).Check(p.ImportPath, set, planted, nil)
		}
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
