package main

import (
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
	one, err := read(out, dir, usage{user: 6 * time.Millisecond, system: 14 * time.Millisecond, switches: 500, peak: 4096})
	if err != nil {
		t.Fatal(err)
	}
	if want := (sample{rate: 1000.5, p50: 1, p99: 11, cpu: 10, switches: 0.25, resident: 4.096}); one != want {
		t.Errorf("read %+v, want %+v", one, want)
	}
	for _, bad := range []string{"", strings.Replace(out, "failed transactions: 0", "failed transactions: 3", 1), strings.Replace(out, "tps", "tpm", 1), strings.Replace(out, "2000", "0", 1)} {
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
	if u, err = usageOf(os.Getpid()); err != nil || u.resident == 0 || u.peak < u.resident || u.switches == 0 {
		t.Errorf("this process has used %+v, %v", u, err)
	}
}
