package main

import (
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/fencing"
)

// TestAuditLineHasAllFieldsAndNoLiteral: the names are a contract, and so is the time: it
// is that of the refusal, however late the line is written.
func TestAuditLineHasAllFieldsAndNoLiteral(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	_, audit, err := newLogger(config.Log{Level: "error", Format: "console"}, log)
	if err != nil {
		t.Fatal(err)
	}
	logAuditor{audit}.Audit(fencing.Rejection{
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
