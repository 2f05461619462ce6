package playground

import (
	"io"
	"slices"
	"testing"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

func TestLogIsReadLineByLine(t *testing.T) {
	t.Parallel()
	var got []string
	p := &proxyLog{proxy: "p", line: func(_ string, l scratch.LogLine) { got = append(got, describe(l)) }}
	for _, text := range []string{
		`{"msg":"granted","worker":"worker-a:x","epoch":1}` + "\n" + `{"msg":"takeover","worker":"worker-b:y",`,
		`"epoch":2,"from":"worker-a:x"}` + "\ngoroutine 1 [running]:\n",
		`{"msg":"released","worker":"worker-b:y","reason":"silence"}` + "\n" + `{"msg":"released","worker":"worker-b:y","reason":"left"}` + "\n",
		`{"msg":"something else"}` + "\n" + `{"msg":"not complete"}`,
	} {
		if _, err := io.WriteString(p, text); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"worker-a is granted epoch 1", "worker-b is granted epoch 2, and takes over from worker-a",
		"worker-b gives no sign of life: its lease is released", "the lease of worker-b is released", "",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLogIsShownForTheSceneOnly: what a proxy logs of an earlier scene is not shown.
func TestLogIsShownForTheSceneOnly(t *testing.T) {
	t.Parallel()
	l := newLab(nil)
	l.mu.scene.resource = "pause-2"
	for _, resource := range []string{"pause-1", "", "pause-2"} {
		l.logged("proxy", scratch.LogLine{Msg: "granted", Worker: "worker-a:x", Resource: resource, Epoch: 1})
		l.logged("proxy", scratch.LogLine{Logger: "audit", Msg: "stale write rejected", Worker: "worker-b:y", Resource: resource, SQLState: "ZF001"})
	}
	s := l.State()
	if len(s.Lines) != 1 || len(s.Audit) != 1 || s.Audit[0].SQLState != "ZF001" {
		t.Errorf("shown: %+v, %+v", s.Lines, s.Audit)
	}
	for range 10 * shownLines {
		l.logged("proxy", scratch.LogLine{Msg: "granted", Worker: "worker-a:x", Resource: "pause-2"})
	}
	if n, kept := len(l.State().Lines), len(l.mu.lines); n != shownLines || kept > 2*shownLines {
		t.Errorf("%d lines are shown, %d kept, of at most %d", n, kept, shownLines)
	}
}
