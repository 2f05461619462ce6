package main

import (
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

// TestWhoTakesPart: an application's own fence and a guarded table are there for writes only, and
// what differs in reads is not compared by writes.
func TestWhoTakesPart(t *testing.T) {
	for _, c := range []struct {
		load string
		by   contender
		want bool
	}{
		{"update", contender{own: true}, true}, {"select", contender{own: true}, false}, {"tpcb", contender{guarded: true}, false},
		{"pipeline", contender{}, true},
		{"select-tls", contender{}, false}, {"select-tls", contender{over: route{name: "tls"}}, true}, {"select", contender{over: route{name: "tls"}}, false},
		{"rows", contender{own: true}, false},
	} {
		if got := loadNamed(c.load).suits(&c.by); got != c.want {
			t.Errorf("%s, %+v: takes part is %v", c.load, c.by, got)
		}
	}
	guarded := loadNamed("update").scriptFor(&contender{guarded: true})
	if !strings.Contains(guarded, "UPDATE guarded") || strings.Contains(guarded, "counters") {
		t.Errorf("the guarded table is written by %s", guarded)
	}
}

// TestCells: a load is measured in the modes and with the numbers of clients that it has, or once.
func TestCells(t *testing.T) {
	p := &plan{modes: []string{"simple", "prepared"}, clients: []int{1, 8}, size: 10, connections: 20}
	for load, want := range map[string]string{
		"select":     "simple, 1 client; simple, 8 clients; prepared, 1 client; prepared, 8 clients",
		"pipeline":   "prepared, 1 client; prepared, 8 clients",
		"update-tls": "simple, 8 clients; prepared, 8 clients",
		"copy-in":    "10 MB",
		"rows":       "1000000 rows",
		"idle":       "20 connections",
	} {
		var got []string
		for _, c := range loadNamed(load).cells(p) {
			got = append(got, c.setting())
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%s is measured with %q, want %q", load, got, want)
		}
	}
}

// TestRoutes: only those are started that a load takes, and TLS or a socket is on both sides of a proxy.
func TestRoutes(t *testing.T) {
	p := &plan{loads: []string{"update-tls", "select-tls", "select-socket"}}
	all := p.routes()
	if len(all) != 2 || all[0].name != "tls" || all[1].name != "socket" {
		t.Fatalf("the routes are %+v", all)
	}
	s := &servers{dir: "/bench", pgPort: "1"}
	for _, c := range []struct {
		text string
		want []string
	}{
		{s.pgbouncerConfig(all[0], place{loopback, "2"}, "users", 9), []string{"\nclient_tls_sslmode = require\n", "\nserver_tls_sslmode = require\n", "host=127.0.0.1 port=1\n", "\nmax_client_conn = 9\n"}},
		{s.pgbouncerConfig(all[1], place{"/bench", "2"}, "users", 9), []string{"host=/bench port=1\n", "\nunix_socket_dir = /bench\n"}},
		{s.fencepostConfig(all[0], place{loopback, "2"}, "3", "r", 9), []string{"\ntls:\n  mode: require\n", "\n  tls:\n    mode: require\n", "listen: 127.0.0.1:2\n", "max_connections: 9\n"}},
		{s.fencepostConfig(all[1], place{"/bench", "2"}, "3", "r", 9), []string{"listen: /bench/.s.PGSQL.2\n", "  address: /bench/.s.PGSQL.1\n"}},
	} {
		for _, want := range c.want {
			if !strings.Contains(c.text, want) {
				t.Errorf("the configuration lacks %q:\n%s", want, c.text)
			}
		}
	}
	if dsn := (&contender{over: all[0], at: place{loopback, "2"}, options: "-c a=b"}).dsn(); !strings.Contains(dsn, "sslmode=require") || !strings.Contains(dsn, "options='-c a=b'") {
		t.Errorf("a client connects with %s", dsn)
	}
	if dsn := (&contender{at: place{loopback, "2"}}).dsn(); !strings.Contains(dsn, "sslmode=disable") || strings.Contains(dsn, "options") {
		t.Errorf("a client connects with %s", dsn)
	}
}

// TestRepeated: a COPY gets as many bytes as it asks for, in whole lines.
func TestRepeated(t *testing.T) {
	got, err := io.ReadAll(&repeated{block: []byte("one\ntwo\n"), left: 20})
	if err != nil || string(got) != "one\ntwo\none\ntwo\none\n" {
		t.Errorf("read %q, %v", got, err)
	}
}

// TestTheCommandLine: what cannot be measured is an error before anything is started.
func TestTheCommandLine(t *testing.T) {
	p, err := parseArgs([]string{"-clients", "1 8", "-loads", "update", "-program", "before=old,new=bin/fencepost"})
	if err != nil || len(p.clients) != 2 || len(p.programs) != 2 || p.programs[0] != (program{"before", "old"}) {
		t.Errorf("read %+v, %v", p, err)
	}
	for _, args := range [][]string{
		{"-clients", "0"}, {"-clients", "many"}, {"-loads", "none"}, {"-rounds", "0"}, {"-modes", ""}, {"-clients", ""},
		{"-size", "0"}, {"-connections", "0"}, {"-loads", "select-tls", "-clients", "1"}, {"-loads", "pipeline", "-modes", "simple"},
		{"-write", "-only", "fenced"}, {"-write", "-quick"}, {"-write", "-program", "before=old"}, {"-write", "-program", "a,b"},
	} {
		if p, err := parseArgs(args); err == nil {
			t.Errorf("%v is read as %+v", args, p)
		}
	}
	if p, err := parseArgs([]string{"-quick"}); err != nil || p.rounds != 2 || p.size >= 1000 {
		t.Errorf("-quick is %+v, %v", p, err)
	}
	if p, err := parseArgs(nil); err != nil || len(p.loads) != len(loads) || p.write {
		t.Errorf("without arguments, %+v, %v", p, err)
	}
}
