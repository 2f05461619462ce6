package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/audit/auditlog"
	"github.com/fencepost/fencepost/internal/audit/evidence"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// TestAuditLineHasAllFieldsAndNoLiteral: the names are a contract, and so is the time: it
// is that of the refusal, however late the line is written.
func TestAuditLineHasAllFieldsAndNoLiteral(t *testing.T) {
	t.Parallel()
	log := &servicetest.Buffer{}
	logs, err := service.NewLoggers(config.Log{Level: "error", Format: "console"}, log, log)
	if err != nil {
		t.Fatal(err)
	}
	auditlog.Recorders{auditlog.New(logs.Audit)}.Audit(fencing.Rejection{
		Time: time.Date(2026, 3, 2, 11, 4, 5, 123456789, time.UTC), Proxy: "fence-1", Session: "31", Database: "shop", User: "app",
		Client: "10.0.0.7:51324", Resource: "billing", Worker: "a", Incarnation: "a-1", Announced: 6, Held: 6,
		Finding: fencing.Finding{Epoch: 7, Current: 8, Holder: "b"}, Kind: fencing.KindStale, SQLState: "ZF001", Message: "superseded",
		Statement: "UPDATE invoices SET state = 'secret' WHERE id = $1", Write: true,
	})
	lines := log.Lines(t, "stale write rejected")
	if len(lines) != 1 {
		t.Fatalf("%d lines: %s", len(lines), log.String())
	}
	for key, want := range map[string]any{
		"level": "warn", "logger": "audit", "ts": "2026-03-02T11:04:05.123456789Z", "resource": "billing", "worker": "a", "incarnation": "a-1",
		"epoch": 7.0, "current_epoch": 8.0, "current_worker": "b", "sqlstate": "ZF001", "reason": "superseded",
		"statement": "UPDATE invoices SET state = $2 WHERE id = $1", "database": "shop", "user": "app", "client": "10.0.0.7:51324",
		"session": "31", "proxy": "fence-1",
	} {
		if got := lines[0][key]; got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if text := log.String(); lines[0]["fingerprint"] == "" || !strings.Contains(text, `"tables":["invoices"]`) || strings.Contains(text, "secret") {
		t.Errorf("the line is %s", text)
	}
}

// TestAFollowerInALoopDoesNotFillTheAuditLog: identical refusals have one line and
// summaries that count the rest. What was counted last is written when the proxy ends. The
// metrics count each refusal.
func TestAFollowerInALoopDoesNotFillTheAuditLog(t *testing.T) {
	t.Parallel()
	const loops, refused = 300, "write refused: not the leader"
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE work (n int)")
	r := servicetest.Start(t, s, nil)
	_ = r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=a&fencepost.worker_timeout=0")
	follower := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=b")
	began := time.Now()
	for i := range loops {
		servicetest.WantState(t, servicetest.Exec(t, follower, fmt.Sprintf("INSERT INTO work VALUES (%d)", i)), fencing.StateNotLeader)
	}
	servicetest.Eventually(t, "the metrics to count each refusal", func() bool {
		_, metrics := r.Ask(t, "/metrics")
		return strings.Contains(metrics, fmt.Sprintf(`fencepost_writes_refused_total{database=%q,kind="not_leader",reason="ZF002",resource="billing"} %d`, db, loops))
	})
	most := 2 + int(time.Since(began)/auditlog.Interval)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	lines, counted := r.Log.Lines(t, refused), 0.0
	for i, line := range lines {
		repeated, ok := line["repeated"].(float64)
		if !ok {
			repeated = 1
		}
		if ok == (i == 0) || line["statement"] != "INSERT INTO work VALUES ($1)" || line["worker"] != "b" {
			t.Errorf("line %d is %v", i, line)
		}
		counted += repeated
	}
	if counted != loops || len(lines) < 2 || len(lines) > most {
		t.Errorf("%d lines count %v refusals; want 2 to %d lines that count %d", len(lines), counted, most, loops)
	}
}

// TestTheExampleOfEvidence plays what docs/evidence.md shows, and compares what the command prints,
// but for the times. What was refused is in the database when the proxy has ended.
func TestTheExampleOfEvidence(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "evidence.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```\n$ fencepost audit ")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/evidence.md has no example")
	}
	call, want, _ := strings.Cut(example, "\n")
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE invoices (id int, state text)")
	r := servicetest.Start(t, s, func(c *config.Config) { c.Proxy.ID = "fence-1" })
	join := func(worker string) func(id int) error {
		conn := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker_timeout=0&fencepost.worker="+worker)
		return func(id int) error {
			return servicetest.Exec(t, conn, fmt.Sprintf("UPDATE invoices SET state = 'sent' WHERE id = %d", id))
		}
	}
	leader, follower := join("host-7:4242"), join("host-9:117")
	if now := time.Now(); now.Second() >= 45 { // refusals are counted by the minute
		time.Sleep(time.Until(now.Truncate(time.Minute).Add(time.Minute)))
	}
	for id := range 3 {
		servicetest.WantState(t, follower(id), fencing.StateNotLeader)
	}
	evicted := runCommand(t, nil, "evict", "billing", "--worker", "host-7:4242", "--by", "ops", "--reason", "maintenance", "--for", "1h", "--dsn", s.DSN(pgtest.Control, db))
	if evicted.code != exitOK {
		t.Fatalf("%+v", evicted)
	}
	servicetest.Eventually(t, "the other worker to lead", func() bool {
		return pgtest.Ask[bool](t, s, db, "SELECT EXISTS (SELECT FROM fencepost.takeovers WHERE epoch = 3)") // noted behind the grant
	})
	servicetest.WantState(t, leader(7), fencing.StateSuperseded)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	args := strings.Fields(strings.Replace(call, "postgres://postgres@db/shop", s.DSN(pgtest.Superuser, db), 1))
	out := runCommand(t, nil, append([]string{"audit"}, args...)...)
	if got := timeless(out.stdout); out.code != exitOK || !slices.Equal(got, timeless(want)) {
		t.Errorf("code %d, it prints\n%s%s\nand the page shows\n%s", out.code, out.stdout, out.stderr, want)
	}
}

// timeless returns the lines of a table without its times, the lengths of its gaps, and its padding.
func timeless(text string) (lines []string) {
	text = regexp.MustCompile(`\b\d+\.\ds\b`).ReplaceAllString(text, "GAP")
	text = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC`).ReplaceAllString(text, "TIME")
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

// TestAuditCommand runs the command on a database in which nothing is wrong (0), then something cannot
// be verified (3), then a row was written past the guard (1).
func TestAuditCommand(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t) // open transactions of other tests would make rows unclear, also those of other databases
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE public.invoices (id int)")
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.generation('test', 'm')",
		"SELECT fencepost.grant(1, 'w-1', 'i-1', 'test', 'm', 1, 0, 0, '5 s', '5 s')")
	dsn := s.DSN(pgtest.Superuser, db)
	run := func(code int, want string, args ...string) string {
		t.Helper()
		out := runCommand(t, nil, append(args, "--dsn", dsn)...)
		if text := strings.Join(strings.Fields(out.stdout+out.stderr), " "); out.code != code || !strings.Contains(text, want) {
			t.Errorf("%v: code %d, want %d, and %q; it prints %q", args, out.code, code, want, text)
		}
		return out.stdout
	}
	run(exitUnsure, "no table is guarded with a stamp", "audit", "--verify")
	run(exitOK, "guarded", "guard", "add", "--resource", "billing", "--table", "public.invoices", "--stamp", "fence_epoch")
	run(exitOK, "public.invoices billing 0", "audit", "--verify")
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.admit('app')")
	s.Exec(t, pgtest.App, db, "SELECT fencepost.claim('billing', 1)", "INSERT INTO public.invoices VALUES (1)")
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.grant(1, 'w-2', 'i-2', 'test', 'm', 2, 0, 0, '5 s', '5 s')",
		`INSERT INTO fencepost.rejections SELECT date_trunc('minute', at), 'elsewhere', 'billing', worker, 'stale', true, 'ZF001', 'f', n, at, at, 1, 2, 'w-2', 'app', 'c', 'p', E'DELETE \x1b'
			FROM (VALUES ('w-1', 2, now()), ('w-1', 3, now() - interval '2 hours'), ('w-9', 4, now() - interval '3 hours')) v (worker, n, at)`)

	run(exitOK, `"w-1" "app" 1 2 stale write in "elsewhere" ZF001 DELETE ?`, "audit")
	run(exitOK, `the ledger has no such term no such refusal is recorded`, "audit", "--worker", "w-7")
	run(exitFailure, `this database has no resource "bills": it has billing`, "audit", "--resource", "bills")
	var history evidence.History
	for _, c := range []struct {
		args   string
		counts []int64 // of the refusals, the oldest first
		terms  int
	}{{"", []int64{4, 5}, 2}, {"--since 1h", []int64{2}, 2}, {"--worker w-1", []int64{5}, 1}, {"--resource billing --worker w-9", []int64{4}, 0}} {
		if err := json.Unmarshal([]byte(run(exitOK, "", append([]string{"audit", "--json"}, strings.Fields(c.args)...)...)), &history); err != nil {
			t.Fatal(err)
		}
		var counts []int64
		for _, r := range history.Refusals {
			counts = append(counts, r.Count)
		}
		if !slices.Equal(counts, c.counts) || len(history.Terms) != c.terms {
			t.Errorf("%s: %d terms, refusals that count %v; want %d and %v", c.args, len(history.Terms), counts, c.terms, c.counts)
		}
	}

	verify := func(code int, want string) (report evidence.Report) {
		t.Helper()
		run(code, want, "audit", "--verify", "--resource", "billing", "--table", "public.invoices")
		if err := json.Unmarshal([]byte(run(code, "", "audit", "--verify", "--json")), &report); err != nil {
			t.Fatal(err)
		}
		return report
	}
	if r := verify(exitOK, "public.invoices billing 1 1 0 0 0 0 0"); len(r.Findings) != 0 || len(r.Tables) != 1 || r.Tables[0].Verified != 1 {
		t.Errorf("the report is %+v", r)
	}
	s.Exec(t, pgtest.App, db, `ALTER TABLE public.invoices DISABLE TRIGGER "~fencepost"`)
	if r := verify(exitUnsure, "nothing was found, but 1 tables could not be verified completely: public.invoices"); len(r.Tables[0].Problems) != 1 {
		t.Errorf("the report is %+v", r)
	}
	s.Exec(t, pgtest.App, db, "UPDATE public.invoices SET id = 2", `ALTER TABLE public.invoices ENABLE ALWAYS TRIGGER "~fencepost"`)
	if r := verify(exitFailure, "1 transactions wrote rows under epochs that were not theirs"); len(r.Findings) != 1 || r.Findings[0].Epoch != 1 || r.Findings[0].Next != 2 {
		t.Errorf("the report is %+v", r)
	}
}
