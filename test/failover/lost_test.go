package failover

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestALostEpochThatAStandbyConfirmedIsNoticed: of two standbys, the one is promoted that has not
// received the newest grant, which the other one has confirmed. The proxy that was granted it
// notices, and so does one that has only read it.
func TestALostEpochThatAStandbyConfirmedIsNoticed(t *testing.T) {
	t.Parallel()
	h := newPair(t)
	h.c = h.a.Standby(t)
	h.synchronous()
	p, q := h.proxy(), h.proxy()
	first := h.join(p, "first")
	h.must(first, "INSERT INTO work VALUES ('first')")
	h.observe(q)
	process.Eventually(t, process.Patience, "the standby to catch up", func() bool { return h.works() == "first" })
	h.cut(1)
	if err := first.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	h.must(h.join(p, "lost"), "INSERT INTO work VALUES ('lost')")
	process.Eventually(t, process.Patience, "the other proxy to know that the grant is confirmed", func() bool {
		return slices.ContainsFunc(q.Lines("the newest grant"), func(l process.LogLine) bool { return l.Number("epoch") == 2 && l["unconfirmed"] == false })
	})

	h.fail(h.a.Crash)
	if got := ask[int](h, h.b, "SELECT max(epoch) FROM fencepost.grants"); got != 1 {
		t.Fatalf("the promoted standby has epoch %d, so the test proves nothing", got)
	}
	h.refused(p, "next")
	h.refused(q, "next")
	if code, out := h.command("generation", "bump", "--database", h.db, "--above", "2", "--at", h.b.Addr()); code != 0 || !strings.Contains(out, "epoch 3") {
		t.Fatalf("generation bump: code %d: %s", code, out)
	}
	h.must(h.join(q, "next"), "INSERT INTO work VALUES ('next')")
	if got := h.works(); got != "first next" {
		t.Errorf("the table contains %q", got)
	}
}

// TestALostEpochThatWasNotAnnouncedIsNotMissed: the synchronous standby is lost first, and the
// primary next. A grant that was recorded at the primary alone is known to both proxies, and to no
// worker. The standby that is promoted does not have it, and workers lead there.
func TestALostEpochThatWasNotAnnouncedIsNotMissed(t *testing.T) {
	t.Parallel()
	h := newPair(t).synchronous()
	p, q := h.proxy(), h.proxy()
	first := h.join(p, "first")
	h.must(first, "INSERT INTO work VALUES ('first')")
	h.observe(q)
	h.cut(0)
	if err := first.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	untold := make(chan error, 1)
	go func() {
		_, err := h.tryJoin(p, "untold")
		untold <- err
	}()
	process.Eventually(t, process.Patience, "the grant to wait for the standby, and to be cancelled", func() bool {
		return ask[int](h, h.a, `SELECT count(*) FROM (SELECT pg_cancel_backend(pid) FROM pg_stat_activity
			WHERE wait_event = 'SyncRep' AND query LIKE '%fencepost.grant(%') c`) == 1
	})
	for _, proxy := range []*process.Server{p, q} {
		process.Eventually(t, process.Patience, "a proxy to read the epoch", func() bool {
			_, body := proxy.Get(t, "/v1/resources")
			return strings.Contains(body, `"epoch": 2`)
		})
	}

	h.fail(h.a.Crash)
	if err := <-untold; err == nil {
		t.Error("a worker leads under an epoch that no standby has confirmed")
	}
	if got := ask[int](h, h.b, "SELECT max(epoch) FROM fencepost.grants"); got != 1 {
		t.Fatalf("the promoted standby has epoch %d, so the test proves nothing", got)
	}
	next := h.join(q, "next")
	h.must(next, "INSERT INTO work VALUES ('next')")
	if err := next.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	h.must(h.join(p, "last"), "INSERT INTO work VALUES ('last')")
	if got := h.works(); got != "first next last" {
		t.Errorf("the table contains %q", got)
	}
	if got := ask[int](h, h.b, "SELECT max(epoch) FROM fencepost.grants"); got != 3 {
		t.Errorf("the last worker has epoch %d", got)
	}
}

// cut keeps b from receiving anything more, and waits until only the others stream.
func (h *pair) cut(others int) {
	h.t.Helper()
	h.b.Exec(h.t, pgtest.Superuser, "postgres", "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
	process.Eventually(h.t, process.Patience, "the replication to end", func() bool {
		return ask[int](h, h.a, "SELECT count(*) FROM pg_stat_replication") == others
	})
}

// observe connects a worker that does not campaign, so that the proxy follows the resource.
func (h *pair) observe(p *process.Server) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.DSN(pgtest.App, h.db, "resource", "billing", "worker", "observer", "campaign", "off"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close(context.Background()) }) // its server may be gone, as the case intends
}

// refused waits until a worker is refused because a grant is lost, and fails the test if it leads.
func (h *pair) refused(p *process.Server, worker string) {
	h.t.Helper()
	process.Eventually(h.t, process.Patience, "an error that says what to run", func() bool {
		conn, err := h.tryJoin(p, worker)
		if err == nil {
			h.t.Fatalf("%s leads: %v", worker, exec(conn, "INSERT INTO work VALUES ('wrong')"))
		}
		e := errorOf(err)
		return e.Code == fencing.StateNoFence && strings.Contains(e.Message, "restored") && strings.Contains(e.Hint, "fencepost generation bump")
	})
}

// TestALostOrderIsNoticed: the standby has not received a pause when it is promoted. The proxy that
// knew of it says so until another order is given. The pause made no epoch, because nobody led, so
// nothing else tells that it is lost.
func TestALostOrderIsNoticed(t *testing.T) {
	t.Parallel()
	h := newPair(t)
	p := h.proxy()
	first := h.join(p, "first")
	h.must(first, "INSERT INTO work VALUES ('first')")
	h.observe(p)
	if code, out := h.command("evict", "billing", "--database", h.db, "--at", h.a.Addr()); code != 0 {
		t.Fatalf("evict: code %d: %s", code, out)
	}
	p.Await(t, "an operator gave an order", "kind", "evict")
	if err := first.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	process.Eventually(t, process.Patience, "the standby to catch up", func() bool { return ask[int](h, h.b, "SELECT count(*) FROM fencepost.orders") == 1 })
	h.cut(0)
	if code, out := h.command("pause", "billing", "--database", h.db, "--by", "ops", "--at", h.a.Addr()); code != 0 {
		t.Fatalf("pause: code %d: %s", code, out)
	}
	p.Await(t, "an operator gave an order", "kind", "pause")

	h.fail(h.a.Crash)
	h.must(h.join(p, "next"), "SELECT 1")
	p.Await(t, "an operator's order is not in the database any more, after a failover or a restore: give it again if it still counts",
		"kind", "pause", "resource", "billing", "asked_by", "ops")
	lost := func() bool {
		_, shown := h.command("status", "--admin", p.Admin)
		return strings.Contains(shown, `the pause by order of "ops"`) && strings.Contains(shown, "is lost")
	}
	process.Eventually(t, process.Patience, "status to say that the pause is lost", lost)
	if n := len(p.Lines("an operator's order is not in the database any more, after a failover or a restore: give it again if it still counts")); n != 1 {
		t.Errorf("%d lines, want one: the eviction is not lost", n)
	}
	if code, out := h.command("pause", "billing", "--database", h.db, "--at", h.b.Addr()); code != 0 {
		t.Fatalf("pause: code %d: %s", code, out)
	}
	process.Eventually(t, process.Patience, "the lost order not to be shown any more", func() bool { return !lost() })
}
