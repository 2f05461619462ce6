package failover

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// waiting is a worker that waits to lead, writes one row, and leaves.
type waiting struct {
	done chan error

	mu   sync.Mutex
	told string // the last notice
}

func (h *pair) waits(p *process.Server, resource, worker string) *waiting {
	h.t.Helper()
	w := &waiting{done: make(chan error, 1)}
	cfg, err := pgx.ParseConfig(p.DSN(pgtest.App, h.db, "resource", resource, "worker", worker, "worker_timeout", "0", "campaign", "wait"))
	if err != nil {
		h.t.Fatal(err)
	}
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told = n.Message
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 6*process.Patience)
		defer cancel()
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err == nil {
			defer conn.Close(context.Background())
			_, err = conn.Exec(ctx, "INSERT INTO work VALUES ('"+worker+"')")
		}
		w.done <- err
	}()
	return w
}

func (w *waiting) heard() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told
}

// TestAWorkerIsNotSupersededBeforeItLeads: while the synchronous standby is away, the grants of two
// workers at two proxies are cancelled, so that each gets the lease again after the other. Both go on
// waiting, are told for what, and write when the standby is back.
func TestAWorkerIsNotSupersededBeforeItLeads(t *testing.T) {
	t.Parallel()
	h := newPair(t).synchronous()
	p, q := h.proxy(), h.proxy()
	x := h.join(p, "x")
	h.must(x, "INSERT INTO work VALUES ('x')")
	h.b.Freeze(t)
	if err := x.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	y, z := h.waits(p, "billing", "y"), h.waits(q, "billing", "z")
	process.Eventually(t, 3*process.Patience, "a worker to be recorded twice, before and after the other one", func() bool {
		ask[int](h, h.a, "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%fencepost.grant(%'")
		return ask[int](h, h.a, "SELECT count(*) FROM (SELECT FROM fencepost.grants WHERE worker IN ('y', 'z') GROUP BY worker HAVING count(*) > 1) again") > 0
	})
	process.Eventually(t, process.Patience, "both to be told of the standby", func() bool {
		return strings.Contains(y.heard(), "standby") && strings.Contains(z.heard(), "standby")
	})
	for name, w := range map[string]*waiting{"y": y, "z": z} {
		select {
		case err := <-w.done:
			t.Fatalf("%s does not wait any more: %v", name, err)
		default:
		}
	}
	h.b.Thaw(t)
	for name, w := range map[string]*waiting{"y": y, "z": z} {
		if err := <-w.done; err != nil {
			t.Errorf("%s, after the standby has come back: %v", name, err)
		}
	}
}

// TestAGrantThatSucceedsTooLateSupersedesNobody: a proxy is frozen while its worker is granted an epoch, and
// another worker leads when it goes on. The first one, which has never led, goes on waiting, and leads next.
func TestAGrantThatSucceedsTooLateSupersedesNobody(t *testing.T) {
	t.Parallel()
	h := newPair(t)
	p, q := h.proxy("FENCEPOST_LEASE_GRACE=1m"), h.proxy("FENCEPOST_LEASE_GRACE=1m")
	x := h.join(q, "x")
	h.must(x, "INSERT INTO work VALUES ('x')")
	const grants = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%fencepost.grant(%'"
	blocking := h.a.Connect(t, pgtest.Superuser, h.db)
	for _, sql := range []string{"BEGIN", "SELECT FROM fencepost.fence WHERE resource = 'billing' FOR KEY SHARE"} {
		if _, err := blocking.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	y := h.waits(p, "billing", "y")
	if err := x.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	process.Eventually(t, process.Patience, "the grant to y to wait", func() bool { return ask[int](h, h.a, grants) == 1 })
	p.Freeze(t)
	z := h.waits(q, "billing", "z")
	process.Eventually(t, 2*process.Patience, "the grant to z to wait", func() bool { return ask[int](h, h.a, grants) == 2 })
	if _, err := blocking.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := <-z.done; err != nil {
		t.Errorf("z: %v", err)
	}
	p.Thaw(t)
	if err := <-y.done; err != nil {
		t.Errorf("y, after z has led: %v", err)
	}
	if got, want := ask[string](h, h.a, "SELECT string_agg(worker, ' ' ORDER BY epoch) FROM fencepost.grants"), "x y z y"; got != want {
		t.Errorf("epochs were granted to %s, want %s", got, want)
	}
	if log := p.Log(); strings.Contains(log, `"superseded"`) {
		t.Errorf("y was superseded:\n%s", log)
	}
}

// TestANewResourceWithoutTheSynchronousStandby: its first worker is told what it waits for.
func TestANewResourceWithoutTheSynchronousStandby(t *testing.T) {
	t.Parallel()
	h := newPair(t).synchronous()
	p := h.proxy()
	h.must(h.join(p, "w"), "INSERT INTO work VALUES ('w')")
	h.b.Freeze(t)
	fresh := h.waits(p, "fresh", "x")
	process.Eventually(t, process.Patience, "the worker to be told of the standby", func() bool {
		return strings.Contains(fresh.heard(), "no standby of synchronous_standby_names = 'standby' confirms the grant")
	})
	if _, shown := h.command("status", "--admin", p.Admin); !strings.Contains(shown, "takeover blocked: no standby") {
		t.Errorf("status does not say what the first grant waits for:\n%s", shown)
	}
	h.b.Thaw(t)
	if err := <-fresh.done; err != nil {
		t.Errorf("after the standby has come back: %v", err)
	}
}
