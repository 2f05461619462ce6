package handover

import (
	"strings"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// ample is how long an offer lasts that must not run out, however loaded the machine is.
const ample = "2m"

// TestTheChosenWorkerLeads, and nobody else, at another proxy than the leader's. What the former leader
// has begun is drained, what it begins is refused.
func TestTheChosenWorkerLeads(t *testing.T) {
	t.Parallel()
	forProviders(t, func(h *cluster, one, two *process.Server) {
		ctx := t.Context()
		a := h.join(one, "a", "campaign", "wait")
		busy := h.join(one, "a")
		h.join(one, "c")
		b := h.join(two, "b")
		h.join(two, "d")
		h.known("b", "c", "d")
		h.order(1, `worker "x" does not campaign for it through any proxy. These could lead: "b", "c", "d"`, "handover", resource, "--to", "x")
		h.order(0, "worker a leads resource billing already: nothing changed", "handover", resource, "--to", "a")

		tx, err := busy.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := insert(ctx, tx.Conn(), "a", 1, 1); err != nil {
			t.Fatal(err)
		}
		said := make(chan string, 1)
		go func() {
			_, out := h.command("handover", resource, "--to", "b", "--for", ample)
			said <- out
		}()
		one.Await(h, "handing over", "to", "b")
		if err := tx.Commit(ctx); err != nil { // within the grace
			t.Errorf("a transaction that had begun: %v", err)
		}
		if out := <-said; !strings.Contains(out, "worker b leads resource billing with epoch 2; before, worker a had epoch 1") {
			t.Errorf("the command said %q", out)
		}
		process.Eventually(h, process.Patience, "the proxies to say how long nobody could write", func() bool {
			return ask[bool](h, "SELECT coalesce(taken > stopped, false) FROM fencepost.offers") // the command waits two seconds for it
		})
		if err := insert(ctx, a, "a", 2, 1); stateOf(err) != fencing.StateSuperseded {
			t.Errorf("the former leader's write: %v", err)
		}
		process.Eventually(h, process.Patience, "b to be the leader", func() bool {
			var role string
			return b.QueryRow(ctx, "SHOW fencepost.role").Scan(&role) == nil && role == "leader"
		})
		if err := insert(ctx, b, "b", 3, 2); err != nil {
			t.Errorf("the chosen worker's write: %v", err)
		}
		if rows := ask[string](h, "SELECT string_agg(worker || seq, ' ' ORDER BY id) FROM entries"); rows != "a1 b3" || h.granted() != "a b" {
			t.Errorf("the rows are %q, and granted were %q", rows, h.granted())
		}
		h.order(0, "worker b leads resource billing already: nothing changed", "handover", resource, "--to", "b", "--for", ample)
		if trail := ask[string](h, "SELECT string_agg(kind || ' ' || worker || ' by ' || asked_by || ' because of ' || reason, ', ') FROM fencepost.orders"); trail != "handover b by ops because of drill" {
			t.Errorf("the orders are %q", trail)
		}
	})
}

// TestAnOfferIsTakenByWhomItNamesAndByAnybodyAfterItRanOut: the chosen worker dies before the leader is
// stopped.
func TestAnOfferIsTakenByWhomItNamesAndByAnybodyAfterItRanOut(t *testing.T) {
	t.Parallel()
	forProviders(t, func(h *cluster, one, two *process.Server) {
		h.join(one, "a", "campaign", "wait")
		b := h.join(two, "b")
		h.join(two, "c")
		h.known("b", "c")
		said := make(chan string, 1)
		one.Freeze(h) // so that it does not stop the leader before b has gone
		go func() {
			_, out := h.command("handover", resource, "--to", "b", "--for", "20s")
			said <- out
		}()
		two.Await(h, "the resource is offered to one worker", "to", "b")
		leave(b)
		one.Thaw(h)
		one.Await(h, "handing over", "to", "b")
		process.Eventually(h, process.Patience, "the offer to run out", func() bool {
			// One statement, because the offer may run out between two.
			const sql = `SELECT CASE WHEN until > clock_timestamp() + interval '100 ms'
				THEN (SELECT string_agg(coalesce(worker, '-'), ' ' ORDER BY epoch) FROM fencepost.grants WHERE resource = $1) ELSE 'over' END FROM fencepost.offers`
			got := ask[string](h, sql, resource)
			if got != "a" && got != "over" {
				h.Fatalf("granted to %q while the resource was offered to another worker", got)
			}
			return got == "over"
		})
		// Which of the two it sees depends on when it looks.
		out := <-said
		if !strings.Contains(out, "the offer to worker b has run out. worker b has not taken the lead, and any worker may now") &&
			!strings.Contains(out, "was not handed over: worker c was granted epoch 2") {
			h.Errorf("the command said %q", out)
		}
		process.Eventually(h, process.Patience, "somebody to lead", func() bool {
			return len(one.Lines("lease reacquired under the same epoch", "worker", "a")) > 0 || h.granted() == "a c"
		})
	})
}

// TestTwoOperatorsAtOnce hand over to different workers. While one of the orders is in force, the other
// is refused, and whoever is said to lead was granted an epoch. A command that looks late sees the next order.
func TestTwoOperatorsAtOnce(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(h *cluster, one, two *process.Server) {
		h.join(one, "a", "campaign", "wait")
		h.join(one, "b")
		h.join(two, "c")
		h.known("b", "c")
		var all sync.WaitGroup
		for _, to := range []string{"b", "c", "b", "c"} {
			all.Go(func() {
				code, out := h.command("handover", resource, "--to", to, "--for", ample)
				leads := code == 0 && strings.Contains(out, "worker "+to+" leads resource billing")
				refused := code == 1 && strings.Contains(out, "it is being handed over to worker") || strings.Contains(out, "does not campaign for it")
				finished := code == 1 && strings.Contains(out, "another hand-over has taken the place of this one")
				if !leads && !refused && !finished {
					h.Errorf("handover --to %s: code %d, %q", to, code, out)
				}
			})
		}
		all.Wait()
		orders := ask[string](h, "SELECT 'a ' || string_agg(worker, ' ' ORDER BY id) FROM fencepost.orders")
		if got := h.granted(); got != orders {
			h.Errorf("granted to %q, and the orders were for %q", got, orders)
		}
	})
}

// TestTheLeadersProxyDies after the order, before it stops the leader. The chosen worker takes the lease of a
// proxy that is gone, long before it expires, while the former leader, at another proxy, has to leave it.
func TestTheLeadersProxyDies(t *testing.T) {
	t.Parallel()
	forProviders(t, func(h *cluster, one, two *process.Server) {
		h.join(one, "a", "campaign", "wait")
		h.join(two, "b")
		h.join(two, "c")
		h.known("b", "c")
		said := make(chan string, 1)
		go func() {
			_, out := h.command("handover", resource, "--to", "b", "--for", "45s")
			said <- out
		}()
		two.Await(h, "the resource is offered to one worker") // so that a is kept from taking its own lease
		one.Kill(h)
		h.join(two, "a")
		if out := <-said; !strings.Contains(out, "worker b leads resource billing with epoch 2; before, worker a had epoch 1") {
			h.Errorf("the command said %q", out)
		}
		if got := h.granted(); got != "a b" {
			h.Errorf("granted to %q", got)
		}
		if lines := two.Lines("another live proxy holds the lease under the same worker id", "worker", "b"); len(lines) > 0 {
			h.Errorf("the log says of b that another process has its id: %v", lines)
		}
	})
}

// TestTheLeadersProxyHangs before it knows of the order. The chosen worker leads when the
// lease has expired, because the offer lasts longer.
func TestTheLeadersProxyHangs(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", "LEASE_TTL=10s")
	one, two := h.proxy(), h.proxy()
	h.join(one, "a", "campaign", "wait")
	h.join(two, "b")
	h.join(two, "c")
	h.known("b", "c")
	one.Freeze(h)
	h.order(0, "worker b leads resource billing with epoch 2", "handover", resource, "--to", "b", "--for", ample, "--timeout", ample)
	if got := h.granted(); got != "a b" {
		h.Errorf("granted to %q", got)
	}
}

// TestAHandoverOfWhatNoOneLeads offers a lease that is free.
func TestAHandoverOfWhatNoOneLeads(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(h *cluster, one, two *process.Server) {
		a := h.join(one, "a", "campaign", "wait", "worker_timeout", "300ms")
		lively := h.join(one, "a", "campaign", "wait") // it may be silent for as long as it likes
		h.join(two, "b")
		h.known("b")
		leave(lively)
		one.Await(h, "released", "reason", "silence") // others take it on demand only
		h.order(0, "worker b leads resource billing with epoch 2", "handover", resource, "--to", "b", "--for", ample)
		h.order(0, "nobody holds epoch 3", "evict", resource, "--for", "10m")
		leave(a)
		h.order(1, "it may not campaign until", "handover", resource, "--to", "b", "--for", ample)
		h.order(0, "is paused", "pause", resource)
		h.order(1, `was not handed over: "ops" paused the resource`, "handover", resource, "--to", "b", "--for", ample)
	})
}

// TestAHandoverThatIsNotAwaited goes on when the command has given up, and running it again awaits it.
func TestAHandoverThatIsNotAwaited(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	one, two := h.proxy(), h.proxy()
	h.join(one, "a", "campaign", "wait")
	h.join(two, "b")
	h.known("b")
	one.Freeze(h)
	h.order(1, "it has not been handed over yet after 100ms: worker b may take the lead until", "handover", resource, "--to", "b", "--for", ample, "--timeout", "100ms")
	one.Thaw(h)
	h.order(0, "worker b leads resource billing ", "handover", resource, "--to", "b", "--for", ample) // perhaps already
	if n := ask[int64](h, "SELECT count(*) FROM fencepost.orders"); n != 1 || h.granted() != "a b" {
		h.Errorf("%d orders, granted to %q", n, h.granted())
	}
}

// TestTheDatabaseFailsDuringAHandover, which goes on when it is back, and the command awaits that.
func TestTheDatabaseFailsDuringAHandover(t *testing.T) {
	t.Parallel()
	h := newClusterOn(t, pgtest.Start(t), "postgres", "LEASE_GRACE=60s")
	one, two := h.proxy(), h.proxy()
	a := h.join(one, "a", "campaign", "wait")
	h.join(two, "b")
	h.known("b")
	tx, err := a.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := insert(t.Context(), tx.Conn(), "a", 1, 1); err != nil {
		t.Fatal(err)
	}
	type result struct {
		code int
		out  string
	}
	ended := make(chan result, 1)
	go func() {
		code, out := h.command("handover", resource, "--to", "b", "--for", ample, "--timeout", ample)
		ended <- result{code, out}
	}()
	one.Await(h, "handing over", "to", "b") // the transaction, which has written, keeps the grant waiting
	h.pg.Restart(t)
	h.join(two, "b", "campaign", "wait")
	if r := <-ended; r.code != 0 || !strings.Contains(r.out, "worker b leads resource billing with epoch 2") {
		t.Errorf("code %d, %q", r.code, r.out)
	}
}

// TestTheResourceIsRemovedDuringAHandover.
func TestTheResourceIsRemovedDuringAHandover(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", "LEASE_GRACE=60s")
	one, two := h.proxy(), h.proxy()
	h.join(one, "a", "campaign", "wait")
	h.join(two, "b")
	h.known("b")
	ended := make(chan string, 1)
	one.Freeze(h) // so that it does not stop the leader before the other one is frozen
	go func() {
		_, out := h.command("handover", resource, "--to", "b", "--for", ample)
		ended <- out
	}()
	two.Await(h, "the resource is offered to one worker", "to", "b")
	two.Freeze(h) // so that b does not take the lease
	one.Thaw(h)
	h.order(0, "removed", "resource", "rm", resource, "--force")
	if out := <-ended; !strings.Contains(out, "resource billing was not handed over: the resource was removed") {
		t.Errorf("the command said %q", out)
	}
	two.Thaw(h)
}
