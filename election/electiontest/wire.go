package electiontest

import (
	"context"
	"errors"

	"github.com/fencepost/fencepost/election/elector"
)

// wireCases need a connection to fail, and not a call: no call of a Provider can arrive at
// the service after its caller has given up, and none can show what the provider's own
// client makes of a response that never comes. They find an Acquire by a text in what the
// provider sends, and are skipped for a service whose requests show none.
var wireCases = []testCase{
	{"an award whose answer was lost on the wire is awarded again, the same", func(w *testEnv) {
		p, link := w.provider("one")
		seed := w.mustAcquire(p, w.bid("seed"))
		w.mustRelease(p, seed, elector.ReasonLeft)
		if !w.service.Multiplexed {
			lost := link.Lose(w.request("a"))
			w.mustAcquireAgain(p)
			await(w.T, "the answer was lost", lost)
			return
		}
		// The wire does not show which answer belongs to which request: none passes until the award is seen.
		muted := link.Mute(w.T, w.request("a"))
		ended := make(chan error, 1)
		go func() { _, err := p.Acquire(within(w.T, patience), w.bid("a")); ended <- err }()
		q, _ := w.provider("two")
		w.see(q, elector.Held)
		muted.Sever()
		w.mustBeUnknown(<-ended)
		w.mustGetWhatIsShown(p)
	}},
	{"an acquire that arrives after its lease was given back takes nothing", func(w *testEnv) {
		p, link := w.provider("one")
		bid := w.bid("late")
		held := link.Hold(w.T, w.request(bid.Worker))
		ctx, cancel := context.WithCancel(within(w.T, patience))
		ended := make(chan error, 1)
		go func() { _, err := p.Acquire(ctx, bid); ended <- err }()
		held.Await()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.Fatalf("the cancelled acquire ended with %v", err)
		}
		held.Sever()
		eventually(w.T, "it is given back", patience, func() bool { // a client may notice late that its connection is gone
			return p.Release(within(w.T, patience), &elector.Lease{AcquireRequest: bid}, elector.ReasonLeft, 0) == nil
		})
		w.arrive(held)
		q, _ := w.provider("two")
		eventually(w.T, "another worker gets the lease", soon, func() bool {
			_, err := q.Acquire(within(w.T, patience), w.bid("b"))
			return err == nil
		})
	}},
	{"an acquire that arrives after its worker has gone takes nothing", func(w *testEnv) {
		p, q := w.proxy("one"), w.proxy("two")
		held := p.link.Hold(w.T, w.request("a"))
		a := p.join("a")
		held.Await()
		a.dies()
		held.Sever()
		eventually(w.T, "the proxy gives up on the request", patience, p.gone)
		w.arrive(held)
		q.join("b").eventuallyLeads(soon)
		w.mustBeGranted("b")
	}},
}

// request returns what an Acquire for the worker shows on the wire, or skips the case.
func (w *testEnv) request(worker string) string {
	w.Helper()
	if w.service.Request == nil {
		w.Skip("the requests of this service cannot be told apart on the wire")
	}
	return w.service.Request(worker)
}

// arrive lets a held request arrive, unless the service no longer accepts it.
func (w *testEnv) arrive(held *Held) {
	w.Helper()
	if w.service.Supersedes {
		held.Discard()
	} else {
		held.Forward()
	}
}
