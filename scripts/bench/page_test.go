package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// theOrigin is where the tests' cells come from.
var theOrigin = origin{date: "2026-01-02", commit: "abc", seconds: 3, machine: "a machine"}

// halved is a cell in which Fencepost has half the throughput of PgBouncer.
func halved() *results {
	c := &cell{load: loads[0], mode: "simple", clients: 8, from: theOrigin, names: []string{none, base, "fenced"}, runs: map[string][]sample{
		none:     {{rate: 400, p50: 1}, {rate: 100, p50: 1}, {rate: 300, p50: 1}},
		base:     {{rate: 200, cpu: 10, switches: 1}, {rate: 300, cpu: 20, switches: 1}},
		"fenced": {{rate: 125, cpu: 30, switches: 2, resident: 40}},
	}}
	return &results{cells: []*cell{c}}
}

// single is a cell with one run of each contender.
func single(load, mode string, clients int, runs map[string]sample) *cell {
	c := &cell{load: loadNamed(load), mode: mode, clients: clients, runs: map[string][]sample{}, from: theOrigin}
	for _, name := range []string{none, "haproxy", base, "own fence", "unfenced", "fenced"} {
		if one, found := runs[name]; found {
			c.add(name, one)
		}
	}
	return c
}

// TestReplace: a cell that is measured again replaces the one before and no other, and the order stays.
func TestReplace(t *testing.T) {
	one := func(load, mode string, clients int, v float64) *cell {
		return single(load, mode, clients, map[string]sample{base: {rate: v}})
	}
	all := &results{cells: []*cell{one("select", "simple", 8, 1), one("select", "prepared", 8, 2), one("update", "simple", 8, 3)}}
	newer := one("select", "simple", 8, 10)
	newer.from.commit = "def"
	all.replace(&results{cells: []*cell{one("rows", "1000000 rows", 1, 5), newer, one("select", "simple", 1, 6)}})
	var got []string
	for _, c := range all.cells {
		got = append(got, c.name()+" "+amount(c.median(base, rate)))
	}
	const want = "select, simple, 1 client 6.0; select, simple, 8 clients 10.0; select, prepared, 8 clients 2.0; update, simple, 8 clients 3.0; rows, 1000000 rows 5.0"
	if strings.Join(got, "; ") != want {
		t.Errorf("the cells are %q, want %s", got, want)
	}
	text := measured(all.of(loadNamed("select")))
	if !strings.Contains(text, "simple, 1 client; prepared, 8 clients: 1 round of 3 s, on 2026-01-02, commit abc") ||
		!strings.Contains(text, "simple, 8 clients: 1 round of 3 s, on 2026-01-02, commit def") {
		t.Errorf("the page says %s", text)
	}
}

// TestTheRawFile: what is written is read again, and what is none of it is an error.
func TestTheRawFile(t *testing.T) {
	all := halved()
	seeded := single("idle", "9 connections", 9, map[string]sample{base: {rate: 4.5, medianOf: 3}})
	all.cells = append(all.cells, seeded)
	raw, err := all.csv()
	if err != nil {
		t.Fatal(err)
	}
	again, err := readCSV(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.sections(), all.sections(); got != want || again.tables() != all.tables() {
		t.Errorf("read again, the page is %s, and was %s, or the tables differ", got, want)
	}
	if written, err := again.csv(); err != nil || !bytes.Equal(written, raw) {
		t.Errorf("written again, the file is %s, %v, and was %s", written, err, raw)
	}
	if !strings.Contains(again.tables(), "3 rounds of 3 s, of which only the medians were kept") {
		t.Errorf("medians are not said to be medians: %s", again.tables())
	}
	head, row, _ := strings.Cut(string(raw), "\n")
	for _, bad := range []string{
		"", "load\n", head + "\n" + strings.Replace(row, "select", "none", 1), head + "\n" + strings.Replace(row, "400", "many", 1),
		head + "\n" + strings.Replace(row, ",8,", ",x,", 1), head + "\nselect\n",
	} {
		if _, err := readCSV(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// TestTheCommittedPage: pages and picture are what the committed file yields.
func TestTheCommittedPage(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	all, err := readCSV(strings.NewReader(read(rawFile)))
	if err != nil {
		t.Fatal(err)
	}
	is := read(page)
	if want, err := insert(is, all.sections()); err != nil || is != want {
		t.Errorf("%s is not made of %s, %v: run make bench ARGS=-page", page, rawFile, err)
	}
	for _, l := range all.loads() {
		if read(l.page()) != all.figures(l) {
			t.Errorf("%s is not made of %s: run make bench ARGS=-page", l.page(), rawFile)
		}
	}
	if read(drawing) != all.picture() {
		t.Errorf("%s is not made of %s: run make bench ARGS=-page", drawing, rawFile)
	}
}
