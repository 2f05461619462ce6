package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

const output = `goos: linux
BenchmarkTakeover/etcd/closed-2     20   0 ns/op   40 ms/max   20 ms/median
BenchmarkTakeover/etcd/frozen-2     20   0 ns/op   900 ms/max   800 ms/median
BenchmarkTakeover/etcd/killed-2     20   0 ns/op   2500 ms/max   2400 ms/median
BenchmarkTakeover/etcd/lost-2     20   0 ns/op   1900 ms/max   1700 ms/median
BenchmarkTakeover/postgres/closed-2     20   0 ns/op   90.5 ms/max   70.25 ms/median
BenchmarkTakeover/postgres/frozen-2     20   0 ns/op   1100 ms/max   900 ms/median
BenchmarkTakeover/postgres/killed-2     20   0 ns/op   2300 ms/max   2100 ms/median
PASS
`

// TestThePage: the table has what was measured, and the page stays as it was around it.
func TestThePage(t *testing.T) {
	all, err := parse(output)
	if err != nil {
		t.Fatal(err)
	}
	page, err := insert("before\n"+begin+"old\n"+end+"after\n", all.table())
	if err != nil {
		t.Fatal(err)
	}
	const rows = "| `etcd` | 20 ms | 40 ms | 800 ms | 900 ms | 2.40 s | 2.50 s | 1.70 s | 1.90 s |\n" +
		"| `postgres` | 70 ms | 90 ms | 900 ms | 1.10 s | 2.10 s | 2.30 s | – | – |\n"
	if !strings.HasPrefix(page, "before\n"+begin) || !strings.HasSuffix(page, rows+end+"after\n") || strings.Contains(page, "old") || all.times != 20 {
		t.Errorf("%d times, %s", all.times, page)
	}
	if _, err := insert("no marks", ""); err == nil {
		t.Error("a page without marks was written")
	}
	picture := all.picture()
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture: %v\n%s", err, picture)
		}
	}
	for _, part := range []string{">postgres</text>", ">70 ms</text>", ">2.10 s</text>", ">1.70 s</text>"} {
		if !strings.Contains(picture, part) {
			t.Errorf("the picture does not show %q", part)
		}
	}
}

// TestWhatIsMissingIsAnError, so that no table is written of half of a benchmark.
func TestWhatIsMissingIsAnError(t *testing.T) {
	for _, text := range []string{"", strings.Replace(output, "killed", "other", 1), strings.Replace(output, "90.5 ms/max", "", 1), strings.Replace(output, "     20 ", " many ", 1)} {
		if all, err := parse(text); err == nil {
			t.Errorf("%q is read as %+v", text, all)
		}
	}
}
