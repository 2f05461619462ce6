package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestJudge(t *testing.T) {
	t.Parallel()
	good := [2]result{{invoices: 8, chargedTwice: 1}, {invoices: 8, refused: 1}}
	if err := judge(good[0], good[1]); err != nil {
		t.Errorf("the expected result was rejected: %v", err)
	}
	for name, c := range map[string]struct {
		unfenced, fenced result
		want             string
	}{
		"the fence leaked":         {good[0], result{invoices: 8, chargedTwice: 1, refused: 1}, "despite the fence"},
		"nothing was refused":      {good[0], result{invoices: 8}, "refused nothing"},
		"the problem did not show": {result{invoices: 8}, good[1], "did not show the problem"},
		"invoices are missing":     {good[0], result{invoices: 7, refused: 1}, "8 and 7 invoices|7 and 8 invoices"},
		"there were no invoices":   {result{chargedTwice: 1}, result{refused: 1}, "0 and 0 invoices"},
	} {
		err := judge(c.unfenced, c.fenced)
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		var found bool
		for _, want := range strings.Split(c.want, "|") {
			found = found || strings.Contains(err.Error(), want)
		}
		if !found {
			t.Errorf("%s: error %v does not contain %q", name, err, c.want)
		}
	}
}

func TestResultLinesAreTheLastTwo(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	newReporter(&out, false).results(result{invoices: 8, chargedTwice: 1}, result{invoices: 8, refused: 2})
	want := "\nRESULT unfenced: invoices=8 charged_twice=1\nRESULT fenced:   invoices=8 charged_twice=0 refused=2\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestColoursOnlyOnATerminal(t *testing.T) {
	t.Parallel()
	for _, color := range []bool{false, true} {
		var out strings.Builder
		report := newReporter(&out, color)
		report.title("t")
		report.event(event{Worker: "worker-a", Kind: eventRefused, SQLState: "ZF001", Step: "UPDATE"})
		report.verdict(true, "v")
		if got := strings.Contains(out.String(), "\x1b["); got != color {
			t.Errorf("colour %v: escapes %v in %q", color, got, out.String())
		}
	}
}

func TestFenceLogReadsWholeLinesOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	write := func(text string) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	log := &fenceLog{path: path}
	read := func() []scratch.LogLine {
		lines, err := log.next()
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	write("goroutine 1 [running]:\n" + `{"logger":"audit","msg":"stale write rejected","sqlstate":"ZF001"}` + "\n" + `{"msg":"take`)
	if got := read(); len(got) != 1 || !refused(got[0]) || got[0].SQLState != "ZF001" {
		t.Errorf("first read: %+v", got)
	}
	write(`over","epoch":2}` + "\n")
	if got := read(); len(got) != 1 || refused(got[0]) || got[0].Epoch != 2 {
		t.Errorf("second read: %+v", got)
	}
	if got := read(); len(got) != 0 {
		t.Errorf("third read: %+v", got)
	}
}
