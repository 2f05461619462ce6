package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// trial replaces a tree.
type trial map[string]struct {
	what outcome
	err  error
}

func (t trial) try(_ context.Context, m mutation) (outcome, string, error) {
	return t[m.name].what, "said", t[m.name].err
}

func row(name string) mutation { return mutation{name: name, old: "a", text: "b", tests: "T"} }

func TestAllMustBeCaught(t *testing.T) {
	t.Parallel()
	errAbsent := errors.New("its old text occurs 0 times in it")
	for _, c := range []struct {
		name, said, wrong string
		all               []mutation
		pattern           string
		limit             time.Duration
		trial             trial
	}{
		{name: "caught", said: "all 2 were caught", all: []mutation{row("x"), row("y")}},
		{name: "one survives", said: "SURVIVED", wrong: "1 of 2", all: []mutation{row("x"), row("y")}, trial: trial{"y": {what: survived}}},
		{name: "one does not compile", said: "PROVES NOTHING", wrong: "1 of 1", all: []mutation{row("x")}, trial: trial{"x": {what: unfit}}},
		{name: "one does not apply", said: "DOES NOT APPLY", wrong: "1 of 1", all: []mutation{row("x")}, trial: trial{"x": {err: errAbsent}}},
		{name: "some of them", said: "all 1 were caught", all: []mutation{row("x"), row("y")}, pattern: "x", trial: trial{"y": {what: survived}}},
		{name: "within a limit", said: "all 2 were caught", all: []mutation{row("x"), row("y")}, limit: time.Hour},
		{name: "after the limit", said: "1 of 2 were tried within 1ns, and all", all: []mutation{row("x"), row("y")}, limit: 1},
		{name: "survives after the limit", wrong: "1 of 1", all: []mutation{row("x"), row("y")}, limit: 1, trial: trial{"x": {what: survived}}},
		{name: "none of that name", wrong: "no mutation", all: []mutation{row("x")}, pattern: "z"},
		{name: "a name twice", wrong: "needs a unique name", all: []mutation{row("x"), row("x")}},
		{name: "no change", wrong: "differs", all: []mutation{{name: "x", old: "a", text: "a", tests: "T"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			err := runAll(t.Context(), c.all, regexp.MustCompile(c.pattern), c.limit, []trier{c.trial, c.trial}, &out)
			if (err != nil) != (c.wrong != "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("error %v, want %q", err, c.wrong)
			}
			if !strings.Contains(out.String(), c.said) {
				t.Errorf("it prints %q, want %q", out.String(), c.said)
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	failed := exec.Command("false").Run()
	const rows = "    x_test.go:12: a row was written\n"
	for _, c := range []struct {
		out  string
		err  error
		want outcome
	}{
		{"ok  \tp\t1s\n", nil, survived},
		{"ok  \tp\t1s [no tests to run]\n", nil, unfit},
		{"--- FAIL: TestSafetyX (0.1s)\n" + rows + "FAIL\n", failed, caught},
		{"FAIL\tp [build failed]\n", failed, unfit},
		{"--- FAIL: TestSafetyX\n    x_test.go:12: a row\npanic: test timed out after 5m0s\n", failed, unfit},
		{"signal: killed\n", failed, unfit},
	} {
		if got := verdict(c.out, c.err); got != c.want {
			t.Errorf("%q, %v: verdict %d, want %d", c.out, c.err, got, c.want)
		}
	}
	if got := reason("--- FAIL: TestSafetyX\n" + rows); got != "x_test.go:12: a row was written" {
		t.Errorf("the reason is %q", got)
	}
}

func TestPlant(t *testing.T) {
	t.Parallel()
	x := &tree{t.TempDir()}
	path := filepath.Join(x.dir, "f.go")
	if err := os.WriteFile(path, []byte("one two two"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, old := range []string{"three", "two"} {
		if _, err := x.plant(mutation{file: "f.go", old: old, text: "x"}); err == nil {
			t.Errorf("%q applies", old)
		}
	}
	undo, err := x.plant(mutation{file: "f.go", old: "one", text: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "x two two" {
		t.Errorf("the mutant is %q", got)
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "one two two" {
		t.Errorf("what is left is %q", got)
	}
}

// TestTheTableApplies checks that the table matches the tree.
func TestTheTableApplies(t *testing.T) {
	t.Parallel()
	if err := distinct(table); err != nil {
		t.Error(err)
	}
	for _, m := range table {
		text, err := os.ReadFile(filepath.Join("..", "..", m.file))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), m.old); n != 1 {
			t.Errorf("%s: its old text occurs %d times in %s, want once", m.name, n, m.file)
		}
	}
}
