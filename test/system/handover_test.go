package system

import (
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// ample is how long an offer lasts that must not run out, however loaded the machine is.
const ample = "2m"

// newOffers returns a cluster in which no lease expires, and no case waits for the grace, with two proxies.
func newOffers(t *testing.T, provider string, opts ...option) (h *cluster, one, two *process.Server) {
	t.Helper()
	h = newCluster(t, provider, append([]option{with("LEASE_TTL=60s", "LEASE_GRACE=60s")}, opts...)...)
	return h, h.proxy(), h.proxy()
}

// forProviders runs a case over the leases of the database, and over etcd, which is reached through election/kv as all
// others are.
func forProviders(t *testing.T, test func(h *cluster, one, two *process.Server)) {
	for _, provider := range []string{"postgres", "etcd"} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			test(newOffers(t, provider))
		})
	}
}

// known waits until workers that wait are recorded, so that they can be chosen. For up to a second after
// a takeover, the incarnation that led is recorded as well, which never leads again.
func (h *cluster) known(workers ...string) {
	h.t.Helper()
	for _, w := range workers {
		process.Eventually(h.t, process.Patience, w+" to be recorded", func() bool {
			return ask[bool](h, `SELECT $1 = ANY (s.waiting) AND EXISTS (SELECT FROM fencepost.campaigning(s.resource) c WHERE c.worker = $1
				AND NOT EXISTS (SELECT FROM fencepost.grants g WHERE g.resource = c.resource AND g.incarnation = c.incarnation))
				FROM fencepost.status s WHERE s.resource = $2`, w, resource)
		})
	}
}

// TestTheChosenWorkerLeads, and nobody else, at another proxy than the leader's. What the former leader
// has begun is drained, what it begins is refused.
func TestTheChosenWorkerLeads(t *testing.T) {
	t.Parallel()
	forProviders(t, func(h *cluster, one, two *process.Server) {
		a := h.join(one, "a", "campaign", "wait")
		busy := h.join(one, "a")
		h.join(one, "c")
		b := h.join(two, "b")
		h.join(two, "d")
		h.known("b", "c", "d")
		h.refuses(`worker "x" does not campaign for it through any proxy. These could lead: "b", "c", "d"`, "handover", resource, "--to", "x")
		h.order("worker a leads resource billing already: nothing changed", "handover", resource, "--to", "a")

		busy.must("BEGIN", "INSERT INTO work VALUES ('a1')")
		said := make(chan string, 1)
		go func() {
			_, out := h.operate("handover", resource, "--to", "b", "--for", ample)
			said <- out
		}()
		one.Await(h.t, "handing over", "to", "b")
		busy.must("COMMIT") // within the grace
		if out := <-said; !strings.Contains(out, "worker b leads resource billing with epoch 2; before, worker a had epoch 1") {
			h.t.Errorf("the command said %q", out)
		}
		process.Eventually(h.t, process.Patience, "the proxies to say how long nobody could write", func() bool {
			return ask[bool](h, "SELECT coalesce(taken > stopped, false) FROM fencepost.offers") // the command waits two seconds for it
		})
		if err := a.exec("INSERT INTO work VALUES ('a2')"); stateOf(err) != fencing.StateSuperseded {
			h.t.Errorf("the former leader's write: %v", err)
		}
		process.Eventually(h.t, process.Patience, "b to be the leader", func() bool { return b.show("role") == "leader" })
		b.must("INSERT INTO work VALUES ('b3')")
		if rows := h.works(); !slices.Equal(rows, []string{"a1", "b3"}) || h.granted() != "a b" {
			h.t.Errorf("the rows are %q, and granted were %q", rows, h.granted())
		}
		h.order("worker b leads resource billing already: nothing changed", "handover", resource, "--to", "b", "--for", ample)
		if trail := ask[string](h, "SELECT string_agg(kind || ' ' || worker || ' by ' || asked_by || ' because of ' || reason, ', ') FROM fencepost.orders"); trail != "handover b by ops because of drill" {
			h.t.Errorf("the orders are %q", trail)
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
		one.Freeze(h.t) // so that it does not stop the leader before b has gone
		go func() {
			_, out := h.operate("handover", resource, "--to", "b", "--for", "20s")
			said <- out
		}()
		two.Await(h.t, "the resource is offered to one worker", "to", "b")
		b.leave()
		one.Thaw(h.t)
		one.Await(h.t, "handing over", "to", "b")
		process.Eventually(h.t, process.Patience, "the offer to run out", func() bool {
			// One statement, because the offer may run out between two.
			const sql = `SELECT CASE WHEN until > clock_timestamp() + interval '100 ms'
				THEN (SELECT string_agg(coalesce(worker, '-'), ' ' ORDER BY epoch) FROM fencepost.grants WHERE resource = $1) ELSE 'over' END FROM fencepost.offers`
			got := ask[string](h, sql, resource)
			if got != "a" && got != "over" {
				h.t.Fatalf("granted to %q while the resource was offered to another worker", got)
			}
			return got == "over"
		})
		// Which of the two it sees depends on when it looks.
		out := <-said
		if !strings.Contains(out, "the offer to worker b has run out. worker b has not taken the lead, and any worker may now") &&
			!strings.Contains(out, "was not handed over: worker c was granted epoch 2") {
			h.t.Errorf("the command said %q", out)
		}
		process.Eventually(h.t, process.Patience, "somebody to lead", func() bool {
			return len(one.Lines("lease reacquired under the same epoch", "worker", "a")) > 0 || h.granted() == "a c"
		})
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
			_, out := h.operate("handover", resource, "--to", "b", "--for", "45s")
			said <- out
		}()
		two.Await(h.t, "the resource is offered to one worker") // so that a is kept from taking its own lease
		one.Kill(h.t)
		h.join(two, "a")
		if out := <-said; !strings.Contains(out, "worker b leads resource billing with epoch 2; before, worker a had epoch 1") {
			h.t.Errorf("the command said %q", out)
		}
		if got := h.granted(); got != "a b" {
			h.t.Errorf("granted to %q", got)
		}
		if lines := two.Lines("another live proxy holds the lease under the same worker id", "worker", "b"); len(lines) > 0 {
			h.t.Errorf("the log says of b that another process has its id: %v", lines)
		}
	})
}

// TestTheLeadersProxyHangs before it knows of the order. The chosen worker leads when the
// lease has expired, because the offer lasts longer.
func TestTheLeadersProxyHangs(t *testing.T) {
	t.Parallel()
	h, one, two := newOffers(t, "postgres", with("LEASE_TTL=10s"))
	h.join(one, "a", "campaign", "wait")
	h.join(two, "b")
	h.join(two, "c")
	h.known("b", "c")
	one.Freeze(h.t)
	h.order("worker b leads resource billing with epoch 2", "handover", resource, "--to", "b", "--for", ample, "--timeout", ample)
	if got := h.granted(); got != "a b" {
		h.t.Errorf("granted to %q", got)
	}
}

// TestAHandoverOfWhatNoOneLeads offers a lease that is free.
func TestAHandoverOfWhatNoOneLeads(t *testing.T) {
	t.Parallel()
	h, one, two := newOffers(t, "postgres")
	a := h.join(one, "a", "campaign", "wait", "worker_timeout", "300ms")
	lively := h.join(one, "a", "campaign", "wait") // it may be silent for as long as it likes
	h.join(two, "b")
	h.known("b")
	lively.leave()
	one.Await(h.t, "released", "reason", "silence") // others take it on demand only
	h.order("worker b leads resource billing with epoch 2", "handover", resource, "--to", "b", "--for", ample)
	h.order("nobody holds epoch 3", "evict", resource, "--for", "10m")
	a.leave()
	h.refuses("it may not campaign until", "handover", resource, "--to", "b", "--for", ample)
	h.order("is paused", "pause", resource)
	h.refuses(`was not handed over: "ops" paused the resource`, "handover", resource, "--to", "b", "--for", ample)
}

// TestAHandoverThatIsNotAwaited goes on when the command has given up, and running it again awaits it.
func TestAHandoverThatIsNotAwaited(t *testing.T) {
	t.Parallel()
	h, one, two := newOffers(t, "postgres")
	h.join(one, "a", "campaign", "wait")
	h.join(two, "b")
	h.known("b")
	one.Freeze(h.t)
	h.refuses("it has not been handed over yet after 100ms: worker b may take the lead until", "handover", resource, "--to", "b", "--for", ample, "--timeout", "100ms")
	one.Thaw(h.t)
	h.order("worker b leads resource billing ", "handover", resource, "--to", "b", "--for", ample) // perhaps already
	if n := ask[int64](h, "SELECT count(*) FROM fencepost.orders"); n != 1 || h.granted() != "a b" {
		h.t.Errorf("%d orders, granted to %q", n, h.granted())
	}
}

// TestTheDatabaseFailsDuringAHandover, which goes on when it is back, and the command awaits that.
func TestTheDatabaseFailsDuringAHandover(t *testing.T) {
	t.Parallel()
	h, one, two := newOffers(t, "postgres", onServer(pgtest.Start(t)))
	a := h.join(one, "a", "campaign", "wait")
	h.join(two, "b")
	h.known("b")
	a.must("BEGIN", "INSERT INTO work VALUES ('a1')")
	type result struct {
		code int
		out  string
	}
	ended := make(chan result, 1)
	go func() {
		code, out := h.operate("handover", resource, "--to", "b", "--for", ample, "--timeout", ample)
		ended <- result{code, out}
	}()
	one.Await(h.t, "handing over", "to", "b") // the transaction, which has written, keeps the grant waiting
	h.pg.Restart(h.t)
	h.join(two, "b", "campaign", "wait")
	if r := <-ended; r.code != 0 || !strings.Contains(r.out, "worker b leads resource billing with epoch 2") {
		t.Errorf("code %d, %q", r.code, r.out)
	}
}

// TestTheResourceIsRemovedDuringAHandover.
func TestTheResourceIsRemovedDuringAHandover(t *testing.T) {
	t.Parallel()
	h, one, two := newOffers(t, "postgres")
	h.join(one, "a", "campaign", "wait")
	h.join(two, "b")
	h.known("b")
	ended := make(chan string, 1)
	one.Freeze(h.t) // so that it does not stop the leader before the other one is frozen
	go func() {
		_, out := h.operate("handover", resource, "--to", "b", "--for", ample)
		ended <- out
	}()
	two.Await(h.t, "the resource is offered to one worker", "to", "b")
	two.Freeze(h.t) // so that b does not take the lease
	one.Thaw(h.t)
	h.order("removed", "resource", "rm", resource, "--force")
	if out := <-ended; !strings.Contains(out, "resource billing was not handed over: the resource was removed") {
		t.Errorf("the command said %q", out)
	}
	two.Thaw(h.t)
}
