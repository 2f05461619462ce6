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
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// listed is what go list says of a package.
type listed struct {
	Dir, ImportPath, Export string
	GoFiles                 []string
}

// TestMutantsCompile checks the types of the package that each mutation changes: a run with a limit
// plants only some of them.
func TestMutantsCompile(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	packages := list(t, root)
	exports := map[string]string{}
	dirs := map[string]listed{}
	for _, p := range packages {
		exports[p.ImportPath], dirs[p.Dir] = p.Export, p
	}
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for _, m := range table {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			p := dirs[filepath.Join(root, filepath.Dir(m.file))]
			if err := p.check(m, exports); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		})
	}
	all.Wait()
}

// list returns the packages that the table changes and what they import.
func list(t *testing.T, root string) []listed {
	t.Helper()
	args := []string{"list", "-deps", "-export", "-json=Dir,ImportPath,Export,GoFiles"}
	for _, m := range table {
		args = append(args, "./"+filepath.Dir(m.file))
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	out, err := cmd.Output()
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

// check checks the types of p with m planted.
func (p *listed) check(m mutation, exports map[string]string) error {
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		text, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			return err
		}
		if name == filepath.Base(m.file) {
			text = []byte(strings.Replace(string(text), m.old, m.text, 1))
		}
		file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	compiled := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	_, err := (&types.Config{Importer: compiled}).Check(p.ImportPath, set, files, nil)
	return err
}
