package electiontest

import (
	"errors"

	"github.com/fencepost/fencepost/election/elector"
)

// die ends the proxy as SIGKILL does: nothing that it sends arrives any more, and its connections to
// Postgres are closed.
func (p *proxy) die() {
	p.w.Helper()
	p.link.Cut()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, st := range p.stores {
		st.Close()
	}
}

// takes returns a request of the same worker that takes the lease away from a term.
func (w *testEnv) takes(l *elector.Lease, incarnation string) elector.AcquireRequest {
	bid := l.AcquireRequest
	bid.From, bid.Incarnation = bid.Incarnation, incarnation
	return bid
}

// takingCases are about requests that take a lease away from a candidacy of the same worker.
var takingCases = []testCase{
	{"a lease can be taken away from the candidacy that the request names, and from no other", func(w *testEnv) {
		p, _ := w.provider("one")
		q, _ := w.provider("two")
		first := w.mustAcquire(p, w.bid("a"))
		other := w.takes(first, "a-2")
		other.From = "a-9"
		if _, err := w.ask(q, other); !errors.Is(err, elector.ErrHeld) {
			w.Errorf("a request that names another candidacy got %v, want ErrHeld", err)
		}
		if err := p.Renew(within(w.T, patience), first); err != nil {
			w.Fatalf("the holder renews: %v", err)
		}
		second := w.mustAcquire(q, w.takes(first, "a-2"))
		w.mustFollow(first, second)
		for _, late := range []elector.Reason{elector.ReasonUnresponsive, elector.ReasonLeft} {
			if err := p.Renew(within(w.T, patience), first); !errors.Is(err, elector.ErrLost) {
				w.Errorf("the former term renews with %v, want ErrLost", err)
			}
			w.mustRelease(p, first, late)
			if err := q.Renew(within(w.T, patience), second); err != nil {
				w.Errorf("after a late release the holder renews with %v", err)
			}
		}
		if _, err := w.ask(p, w.takes(first, "a-3")); !errors.Is(err, elector.ErrHeld) {
			w.Errorf("a request that names a candidacy whose term is over got %v, want ErrHeld", err)
		}
		w.seeOf(p, elector.Held, "a-2")
		w.mustRelease(q, second, elector.ReasonLeft)
		third := w.acquire(p, w.takes(second, "a-4"))
		w.mustFollow(second, third)
	}},
	{"of many that take a lease away at once one is awarded it", func(w *testEnv) {
		p, _ := w.provider("one")
		first := w.mustAcquire(p, w.bid("a"))
		w.oneOf(6, func(worker string) elector.AcquireRequest { return w.takes(first, worker) })
	}},
	{"a lease that was taken away and whose answer was lost is awarded again, the same", func(w *testEnv) {
		p, _ := w.provider("one")
		q, _ := w.provider("two")
		first := w.mustAcquire(p, w.bid("a"))
		bid := w.takes(first, "a-2")
		q.lose(acquire)
		if _, err := q.Acquire(within(w.T, patience), bid); err == nil || errors.Is(err, elector.ErrHeld) {
			w.Fatalf("an acquire whose response was lost ended with %v", err)
		}
		bid.From = ""
		second := w.mustAcquire(q, bid)
		w.mustFollow(first, second)
		w.seeOf(p, elector.Held, "a-2")
		w.mustRelease(q, second, elector.ReasonLeft)
		w.see(p, elector.Freed)
	}},
}

// ownCases are about a worker that takes its own lease away from another proxy.
var ownCases = []testCase{
	{"a worker takes its own lease away from a proxy that is gone", func(w *testEnv) {
		p, q := w.proxy("one"), w.proxy("two")
		a := p.first("a")
		a.mustLead()
		p.die()
		b := q.first("a", from("192.0.2.2"))
		if epoch := b.eventuallyLeads(patience); epoch != 2 {
			w.Errorf("the epoch is %d", epoch)
		}
		if b.Incarnation() == a.Incarnation() || b.SupersededBefore() {
			w.Errorf("the candidacy is %s after %s, superseded before: %v", b.Incarnation(), a.Incarnation(), b.SupersededBefore())
		}
		w.mustBeGranted("a", "a")
	}},
}
