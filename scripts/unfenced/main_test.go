package main

import (
	"io"
	"strings"
	"testing"
)

// events builds the output of go test -json for package p.
func events(lines ...string) io.Reader {
	return strings.NewReader(strings.Join(lines, "\n") + "\n")
}

const (
	assertion = `{"Action":"output","Package":"p","Test":"TestSafetyA","Output":"    a_test.go:12: a stale row was committed\n"}`
	failA     = `{"Action":"fail","Package":"p","Test":"TestSafetyA"}`
	passA     = `{"Action":"pass","Package":"p","Test":"TestSafetyA"}`
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, want string
		lines      []string
	}{
		{"a test that passes without the check proves nothing", "PASSES WITHOUT THE CHECK: p.TestSafetyA", []string{passA}},
		{"a test that never ended proves nothing", "DID NOT RUN TO ITS END: p.TestSafetyA", []string{assertion}},
		{"a crash is no assertion", "FAILED, BUT NOT BY AN ASSERTION: p.TestSafetyA", []string{failA}},
		{"a program that refuses to serve proves nothing", "FAILED BECAUSE THE PROGRAM DID NOT SERVE: p.TestSafetyA", []string{
			assertion, strings.ReplaceAll(assertion, "a stale row was committed", refusal), failA,
		}},
		{"a failing subtest alone does not count", "DID NOT RUN TO ITS END", []string{`{"Action":"fail","Package":"p","Test":"TestSafetyA/x"}`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			res := newResults()
			res.expect("p", "TestSafetyA")
			if err := res.read(events(c.lines...), &out); err != nil {
				t.Fatal(err)
			}
			if err := res.verdict(&out); err == nil {
				t.Error("verdict accepted it")
			}
			if !strings.Contains(out.String(), c.want) {
				t.Errorf("output %q does not contain %q", out.String(), c.want)
			}
		})
	}
}

func TestVerdictAcceptsOnlyEnoughFailures(t *testing.T) {
	t.Parallel()
	res := newResults()
	var out strings.Builder
	for i := range atLeast {
		name := "TestSafety" + string(rune('A'+i))
		res.expect("p", name)
		r := strings.NewReplacer("TestSafetyA", name)
		if err := res.read(events(r.Replace(assertion), r.Replace(failA)), &out); err != nil {
			t.Fatal(err)
		}
		err := res.verdict(&out)
		if enough := i+1 >= atLeast; enough != (err == nil) {
			t.Errorf("%d failing tests: verdict %v", i+1, err)
		}
	}
	if !strings.Contains(out.String(), "unfenced: 10 safety tests fail without the check") {
		t.Errorf("no summary in %q", out.String())
	}
}
