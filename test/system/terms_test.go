package system

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/audit/evidence"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestTheLedgerSaysHowTermsEnded: through which proxy each worker led, what ended that, and whether it is known how long nobody
// led at its end.
func TestTheLedgerSaysHowTermsEnded(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with("LEASE_TTL=3s"))
	one, two, three := h.proxy(), h.proxy(), h.proxy()

	a := h.join(one, "a", "campaign", "wait")
	follower := h.join(two, "b")
	a.leave() // left
	mustLead(t, follower, "b")
	follower.leave()

	h.join(two, "c", "campaign", "wait")
	process.Eventually(t, process.Patience, "c's proxy to follow the orders", func() bool {
		return ask[bool](h, "SELECT EXISTS (SELECT FROM fencepost.candidates WHERE worker = 'c')")
	})
	h.order("worker c does not lead resource billing any more", "evict", resource, "--worker", "c")

	h.join(one, "d", "campaign", "wait")
	h.join(two, "e")
	process.Eventually(t, process.Patience, "e to campaign", func() bool {
		return ask[bool](h, "SELECT EXISTS (SELECT FROM fencepost.candidates WHERE worker = 'e')")
	})
	h.order("worker e leads resource billing", "handover", resource, "--to", "e", "--for", process.Patience.String())
	h.order("nobody leads it until", "pause", resource)
	h.order("", "resume", resource)

	for _, at := range []struct {
		worker      string
		proxy, next *process.Server
	}{{"r", two, two}, {"s", two, one}, {"t", one, two}} {
		h.join(at.proxy, at.worker, "campaign", "wait", "worker_timeout", "5s")
		h.awaitState("led", at.worker, at.next) // a proxy that has not seen a leader does not know how its term ended
		process.Eventually(t, process.Patience, "the silent worker's lease to be released", func() bool { return released(at.proxy, at.worker) })
	}
	h.join(two, "f", "campaign", "wait").must("INSERT INTO work VALUES ('f')") // on demand

	two.Kill(t)
	h.join(three, "g", "campaign", "wait").must("INSERT INTO work VALUES ('g')") // when the lease has expired
	three.Kill(t)
	h.join(one, "g", "campaign", "wait").must("INSERT INTO work VALUES ('g')") // its own lease, at once

	want := []string{
		"a one left gap", "b two left gap", "c two evict by ops: drill", "nobody", "d one handover by ops: drill gap", "e two pause by ops: drill", "nobody",
		"r two silence gap", "s two silence gap", "t one silence gap", "f two expired gap", "g three gone", "g one current",
	}
	names := map[string]string{one.ID: "one", two.ID: "two", three.ID: "three"}
	var got []string
	defer func() {
		if t.Failed() {
			t.Logf("it has %q", got)
		}
	}()
	process.Eventually(t, process.Patience, fmt.Sprintf("the audit to have %q", want), func() bool { // the proxies note it behind the grant
		var terms []evidence.Term
		terms, got = h.terms(), nil
		for _, term := range terms {
			got = append(got, termText(term, names))
		}
		return slices.Equal(got, want)
	})
	wantFailure(t, "a follower's write", h.join(one, "z").exec("INSERT INTO work VALUES ('z')"), fencing.StateNotLeader)
	process.Eventually(t, process.Patience, "the refused write to be counted", func() bool {
		terms := h.terms()
		first, last := terms[0].Refused, terms[len(terms)-1].Refused
		return first != nil && last != nil && *first == 0 && *last == 1
	})
}

// terms returns what fencepost audit says of the resource's terms.
func (h *cluster) terms() []evidence.Term {
	h.t.Helper()
	code, out := h.command("audit", "--json", "--resource", resource, "--since", "24h", "--dsn", h.pg.DSN(pgtest.Superuser, h.db))
	var history evidence.History
	if err := json.Unmarshal([]byte(out), &history); err != nil || code != 0 {
		h.t.Fatalf("code %d, %v: %s", code, err, out)
	}
	return history.Terms
}

// termText is a term in one line.
func termText(term evidence.Term, proxies map[string]string) string {
	if term.Worker == "" {
		return "nobody"
	}
	text := term.Worker + " " + proxies[term.Proxy] + " " + term.Ended
	if term.To == nil {
		text += "current"
	}
	if term.EndedBy != "" {
		text += " by " + term.EndedBy + ": " + term.Reason
	}
	if term.Gap != nil && *term.Gap > 0 && *term.Gap < process.Patience.Seconds() {
		text += " gap"
	}
	return text
}
