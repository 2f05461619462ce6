package shadow

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAFrozenLeadersLateWriteIsRecorded runs the program: a leader that was silent for too long
// writes late, which is logged, counted and executed. After a reload with enforce: on, new
// connections are fenced and its own is not.
func TestAFrozenLeadersLateWriteIsRecorded(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	db := pg.Database(t)
	pg.Exec(t, pgtest.App, db, "create table work (what text)")
	config := filepath.Join(t.TempDir(), "fencepost.yml")
	enforce := func(mode string) {
		if err := os.WriteFile(config, []byte("resources: {billing: {enforce: "+mode+", worker_timeout: 300ms}}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	enforce("shadow")
	p := process.ServeOn(t, pg, "FENCEPOST_CONFIG="+config, "FENCEPOST_LEASE_GRACE=200ms")
	connect := func(worker, campaign string) *pgx.Conn {
		t.Helper()
		return p.Connect(t, pgtest.App, db, "resource", "billing", "worker", worker, "campaign", campaign)
	}
	write := func(conn *pgx.Conn) error {
		_, err := conn.Exec(t.Context(), "insert into work values ('late')")
		return err
	}
	frozen := connect("a", "wait")
	if err := write(frozen); err != nil {
		t.Fatal(err)
	}
	connect("b", "wait") // leads when a has been silent for too long
	process.Eventually(t, process.Patience, "the proxy to show that a is superseded", func() bool {
		_, shown := p.Get(t, "/v1/resources")
		return strings.Contains(shown, `"superseded"`) && strings.Contains(shown, `"enforce": "shadow"`)
	})
	if err := write(frozen); err != nil {
		t.Fatalf("the late write: %v", err)
	}
	line := p.Await(t, "stale write would be rejected", "worker", "a", "sqlstate", "ZF001")
	if line.Text("statement") != "insert into work values ($1)" || line.Text("current_worker") != "b" {
		t.Errorf("the audit line is %v", line)
	}
	if _, metrics := p.Get(t, "/metrics"); !strings.Contains(metrics, `fencepost_would_reject_total{database="`+db+`",reason="ZF001",resource="billing"} 1`) ||
		!strings.Contains(metrics, "fencepost_longest_silence_seconds{") {
		t.Errorf("the metrics are\n%s", metrics)
	}

	enforce("on")
	p.Signal(t, syscall.SIGHUP)
	p.Await(t, "configuration reloaded")
	if err := write(frozen); err != nil {
		t.Errorf("a connection from before the reload: %v", err)
	}
	var refused *pgconn.PgError
	if err := write(connect("c", "off")); !errors.As(err, &refused) || refused.Code != "ZF002" {
		t.Errorf("a connection from after the reload: %v, want ZF002", err)
	}
}
