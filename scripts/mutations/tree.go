package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// tree is a copy of the working tree.
type tree struct{ dir string }

// copyTree copies the files that git tracks or does not ignore. It links .cache, which
// contains the test servers.
func copyTree(ctx context.Context) (*tree, error) {
	list := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of the tree: %w", err)
	}
	dir, err := os.MkdirTemp("", "fencepost-mutations-")
	if err != nil {
		return nil, fmt.Errorf("create a directory: %w", err)
	}
	t := &tree{dir}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if name == ".cache" {
			continue
		}
		if err := t.copyFile(name); err != nil {
			t.remove()
			return nil, err
		}
	}
	if cache, err := filepath.Abs(".cache"); err == nil {
		if err := os.Symlink(cache, filepath.Join(dir, ".cache")); err != nil {
			t.remove()
			return nil, fmt.Errorf("link .cache: %w", err)
		}
	}
	return t, nil
}

func (t *tree) copyFile(name string) error {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, os.ErrNotExist): // deleted but not committed
		return nil
	case err != nil:
		return fmt.Errorf("copy the tree: %w", err)
	case info.IsDir():
		return nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("copy the tree: %w", err)
	}
	to := filepath.Join(t.dir, name)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("copy the tree: %w", err)
	}
	if err := os.WriteFile(to, text, info.Mode().Perm()); err != nil {
		return fmt.Errorf("copy the tree: %w", err)
	}
	return nil
}

func (t *tree) remove() { _ = os.RemoveAll(t.dir) }

// plant applies a mutation, and returns a function that reverts it.
func (t *tree) plant(m mutation) (undo func() error, err error) {
	path := filepath.Join(t.dir, m.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return nil, fmt.Errorf("its old text occurs %d times in %s, want once", n, m.file)
	}
	mutant := strings.Replace(string(text), m.old, m.text, 1)
	if err := os.WriteFile(path, []byte(mutant), 0o644); err != nil {
		return nil, err
	}
	return func() error { return os.WriteFile(path, text, 0o644) }, nil
}

// testTimeout bounds the tests of one mutation, which may make them hang.
const testTimeout = 5 * time.Minute

// assertion matches a failure that a test or its fixture reports, with its file and line.
var assertion = regexp.MustCompile(`(?m)^\s+\w+\.go:\d+: .*`)

// safetyTests are the tests of a mutation that names no others.
const safetyTests = "./test/safety"

// build builds the tests of a package. They are not optimised, because building them takes longer
// than running them. The paths are left out, so that all trees share what is compiled.
func (t *tree) build(ctx context.Context, in string) (binary string, out []byte, err error) {
	binary = filepath.Join(t.dir, "mutant.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-trimpath", "-gcflags=-N -l", "-ldflags=-s -w", "-o", binary, in)
	build.Dir = t.dir
	out, err = build.CombinedOutput()
	return binary, out, err
}

// try plants m and runs its tests, with a test binary that is built once.
func (t *tree) try(ctx context.Context, m mutation) (what outcome, said string, err error) {
	undo, err := t.plant(m)
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, undo()) }()
	in := cmp.Or(m.in, safetyTests)
	binary, out, err := t.build(ctx, in)
	if err != nil {
		return unfit, "the mutant does not compile:\n" + string(out), nil
	}
	test := exec.CommandContext(ctx, binary, "-test.timeout="+testTimeout.String(), "-test.failfast", "-test.run="+m.tests)
	test.Dir = filepath.Join(t.dir, in)
	out, err = test.CombinedOutput()
	return verdict(string(out), err), reason(string(out)), nil
}

// verdict interprets the output and the error of go test. Only a test's own assertion
// shows that the fault was noticed.
func verdict(out string, err error) outcome {
	var exit *exec.ExitError
	switch {
	case err == nil && strings.Contains(out, "no tests to run"):
		return unfit
	case err == nil:
		return survived
	case !errors.As(err, &exit), strings.Contains(out, "panic: "), strings.Contains(out, "[build failed]"), !assertion.MatchString(out):
		return unfit
	default:
		return caught
	}
}

// reason returns the first assertion that failed, or the end of the output.
func reason(out string) string {
	if line := assertion.FindString(out); line != "" {
		return shorten(strings.TrimSpace(line), 200)
	}
	return shorten(out[max(0, len(out)-2000):], 2000)
}

func shorten(s string, most int) string {
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
