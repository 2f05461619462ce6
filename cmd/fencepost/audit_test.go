package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost/auditlog"
	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAuditLineHasAllFieldsAndNoLiteral: the names are a contract, and so is the time: it
// is that of the refusal, however late the line is written.
func TestAuditLineHasAllFieldsAndNoLiteral(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	logs, err := newLogger(config.Log{Level: "error", Format: "console"}, log)
	if err != nil {
		t.Fatal(err)
	}
	auditlog.New(logs.audit).Audit(fencing.Rejection{
		Time: time.Date(2026, 3, 2, 11, 4, 5, 123456789, time.UTC), Proxy: "fence-1", Session: "31", Database: "shop", User: "app",
		Client: "10.0.0.7:51324", Resource: "billing", Worker: "a", Incarnation: "a-1", Announced: 6, Held: 6,
		Finding: fencing.Finding{Epoch: 7, Current: 8, Holder: "b"}, Kind: fencing.KindStale, SQLState: "ZF001", Message: "superseded",
		Statement: "UPDATE invoices SET state = 'secret' WHERE id = $1", Write: true,
	})
	lines := log.lines(t, "stale write rejected")
	if len(lines) != 1 {
		t.Fatalf("%d lines: %s", len(lines), log.mu.text.String())
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
	if text := log.mu.text.String(); lines[0]["fingerprint"] == "" || !strings.Contains(text, `"tables":["invoices"]`) || strings.Contains(text, "secret") {
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
	r := startServing(t, s, nil)
	_ = r.connect(t, db, "fencepost.resource=billing&fencepost.worker=a")
	follower := r.connect(t, db, "fencepost.resource=billing&fencepost.worker=b")
	began := time.Now()
	for i := range loops {
		wantState(t, execSQL(t, follower, fmt.Sprintf("INSERT INTO work VALUES (%d)", i)), fencing.StateNotLeader)
	}
	eventually(t, "the metrics to count each refusal", func() bool {
		_, metrics := r.ask(t, "/metrics")
		return strings.Contains(metrics, fmt.Sprintf(`fencepost_writes_refused_total{database=%q,kind="not_leader",reason="ZF002",resource="billing"} %d`, db, loops))
	})
	most := 2 + int(time.Since(began)/auditlog.Interval)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	lines, counted := r.log.lines(t, refused), 0.0
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
