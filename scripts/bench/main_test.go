package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestWhatPgbenchSays: the figures of a run come from its output, its log and /proc.
func TestWhatPgbenchSays(t *testing.T) {
	const out = "number of transactions actually processed: 2000\nnumber of failed transactions: 0 (0.000%)\ntps = 1000.5 (without initial connection time)\n"
	dir := t.TempDir()
	var log strings.Builder
	for i := range 100 {
		log.WriteString("0 1 " + strings.Repeat("1", 1+i/99) + "000 0 1700000000 1\n") // 99 times 1 ms, and 11 ms
	}
	if err := os.WriteFile(filepath.Join(dir, "log.1"), []byte(log.String()+"0 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	one, err := read(out, dir, usage{user: 6 * time.Millisecond, system: 14 * time.Millisecond, switches: 500, resident: 4096})
	if err != nil {
		t.Fatal(err)
	}
	if want := (sample{tps: 1000.5, p50: 1, p99: 11, cpu: 10, switches: 0.25, resident: 4096}); one != want {
		t.Errorf("read %+v, want %+v", one, want)
	}
	for _, bad := range []string{"", strings.Replace(out, "failed transactions: 0", "failed transactions: 3", 1), strings.Replace(out, "tps", "tpm", 1)} {
		if one, err := read(bad, dir, usage{}); err == nil {
			t.Errorf("%q is read as %+v", bad, one)
		}
	}
	if one, err := read(out, t.TempDir(), usage{}); err == nil {
		t.Errorf("without a log, %+v", one)
	}
}

// TestUsage: what this process has used is there, and a name with spaces and parentheses is no field.
func TestUsage(t *testing.T) {
	u, err := parseStat("42 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0")
	if err != nil || u.user != 2500*time.Millisecond || u.system != 500*time.Millisecond {
		t.Errorf("read %+v, %v", u, err)
	}
	if _, err := parseStat("42 (cat) S 1"); err == nil {
		t.Error("half a line was read")
	}
	if u, err = usageOf(os.Getpid()); err != nil || u.resident == 0 || u.switches == 0 {
		t.Errorf("this process has used %+v, %v", u, err)
	}
}

// measured is a cell in which Fencepost has half the throughput of PgBouncer.
func measured() *results {
	c := &cell{load: loads[0], mode: "simple", clients: 8, names: []string{"direct", base, "fenced"}, runs: map[string][]sample{
		"direct": {{tps: 400, p50: 1}, {tps: 100, p50: 1}, {tps: 300, p50: 1}},
		base:     {{tps: 200, cpu: 10, switches: 1}, {tps: 300, cpu: 20, switches: 1}},
		"fenced": {{tps: 125, cpu: 30, switches: 2}},
	}}
	return &results{plan: &plan{rounds: 3, duration: time.Second}, cells: []*cell{c}}
}

// TestThePage: the table has medians and ratios, and the page stays as it was around it.
func TestThePage(t *testing.T) {
	all := measured()
	page, err := insert("before\n"+begin+"old\n"+end+"after\n", all.table())
	if err != nil {
		t.Fatal(err)
	}
	const rows = "| select, simple, 8 clients | direct | 300 | 1.20 | 1.00 | 0.00 | – | – |\n" +
		"|  | pgbouncer | 250 | 1.00 | 0.00 | 0.00 | 15.0 | 1.00 |\n" +
		"|  | fenced | 125 | 0.50 | 0.00 | 0.00 | 30.0 | 2.00 |\n"
	if !strings.HasPrefix(page, "before\n"+begin) || !strings.HasSuffix(page, rows+end+"after\n") || strings.Contains(page, "old") {
		t.Errorf("the page is %s", page)
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
	if !strings.Contains(picture, ">0.50</text>") || !strings.Contains(picture, "select, simple, 8 clients") {
		t.Errorf("the picture does not show the ratio: %s", picture)
	}
}

// TestWhoTakesPart: an application's own fence and a guarded table are there for writes only, and
// what differs in reads is not compared by writes.
func TestWhoTakesPart(t *testing.T) {
	for _, c := range []struct {
		load string
		by   contender
		want bool
	}{
		{"update", contender{own: true}, true}, {"select", contender{own: true}, false}, {"tpcb", contender{guarded: true}, false},
		{"select", contender{reads: true}, true}, {"update", contender{reads: true}, false}, {"pipeline", contender{}, true},
	} {
		if got := loadNamed(c.load).suits(&c.by); got != c.want {
			t.Errorf("%s, %+v: takes part is %v", c.load, c.by, got)
		}
	}
	guarded := loadNamed("update").scriptFor(&contender{guarded: true})
	if !strings.Contains(guarded, "UPDATE guarded") || strings.Contains(guarded, "counters") {
		t.Errorf("the guarded table is written by %s", guarded)
	}
	if in := loadNamed("pipeline").in([]string{"simple", "prepared"}); len(in) != 1 || in[0] != "prepared" {
		t.Errorf("a pipeline runs in %v", in)
	}
}

// TestTheCommandLine: what cannot be measured is an error before anything is started.
func TestTheCommandLine(t *testing.T) {
	p, err := parseArgs([]string{"-clients", "1 8", "-loads", "update", "-program", "before=old,new=bin/fencepost"})
	if err != nil || len(p.clients) != 2 || len(p.programs) != 2 || p.programs[0] != (program{"before", "old"}) {
		t.Errorf("read %+v, %v", p, err)
	}
	for _, args := range [][]string{{"-clients", "0"}, {"-clients", "many"}, {"-loads", "none"}, {"-rounds", "0"}, {"-modes", ""}, {"-clients", ""}} {
		if p, err := parseArgs(args); err == nil {
			t.Errorf("%v is read as %+v", args, p)
		}
	}
}
