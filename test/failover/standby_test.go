package failover

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestTheSynchronousStandbyIsAway: the leader leaves, and nobody can take over. Everybody is told
// what the grant waits for, also while the wait begins anew, and nobody is said to lead.
func TestTheSynchronousStandbyIsAway(t *testing.T) {
	t.Parallel()
	h := newPair(t).synchronous()
	p := h.proxy()
	w := h.join(p, "w")
	h.must(w, "INSERT INTO work VALUES ('before')")
	h.b.Freeze(t)
	if err := w.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	var told struct {
		sync.Mutex
		text strings.Builder
	}
	cfg, err := pgx.ParseConfig(p.DSN(pgtest.App, h.db, "resource", "billing", "worker", "x", "worker_timeout", "0", "campaign", "wait"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		told.Lock()
		defer told.Unlock()
		told.text.WriteString(n.Message + "\n")
	}
	led := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*process.Patience)
		defer cancel()
		x, err := pgx.ConnectConfig(ctx, cfg)
		if err == nil {
			defer x.Close(context.Background())
			_, err = x.Exec(ctx, "INSERT INTO work VALUES ('x')")
		}
		led <- err
	}()
	const says = "no standby of synchronous_standby_names = 'standby' confirms the grant"
	reported := func() bool {
		_, out := h.command("status", "--admin", p.Admin)
		return strings.Contains(out, "blocked") && strings.Contains(out, "takeover blocked: "+says)
	}
	process.Eventually(t, process.Patience, "status to say what the takeover waits for", reported)
	if _, metrics := p.Get(t, "/metrics"); !strings.Contains(metrics, `fencepost_grant_blocked{database="`+h.db+`",resource="billing"} 1`) {
		t.Error("the metric does not show the grant that waits")
	}
	p.Await(t, "takeover waits for a synchronous standby", "resource", "billing")
	process.Eventually(t, process.Patience, "a notice that says so", func() bool {
		told.Lock()
		defer told.Unlock()
		return strings.Contains(told.text.String(), says)
	})

	process.Eventually(t, process.Patience, "a grant to wait for the standby, and to be cancelled", func() bool { // it may just begin anew
		return ask[int](h, h.a, `SELECT count(*) FROM (SELECT pg_cancel_backend(pid) FROM pg_stat_activity
			WHERE wait_event = 'SyncRep' AND query LIKE '%fencepost.grant(%') c`) == 1
	})
	process.Eventually(t, process.Patience, "the epoch that was not granted to be recorded", func() bool {
		return ask[int](h, h.a, "SELECT max(epoch) FROM fencepost.grants") == 2
	})
	process.Always(t, 3*time.Second, "blocked, and the reason", reported)

	h.b.Thaw(t)
	if err := <-led; err != nil {
		t.Errorf("after the standby has come back: %v", err)
	}
	process.Eventually(t, process.Patience, "the report to end", func() bool {
		_, out := h.command("status", "--admin", p.Admin)
		return !strings.Contains(out, "takeover blocked")
	})
}
