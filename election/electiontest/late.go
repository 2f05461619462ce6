package electiontest

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/fencepost/fencepost/election"
)

// long is a TTL longer than any wait of a case: a lease that nobody releases is held
// until its case has failed.
const long = 30 * time.Second

// expiring gives leases that nobody renews a short TTL.
func (w *world) expiring(s *election.Settings) { s.TTL = w.service.TTL }

// follows fails the test unless a worker that joins now leads at once.
func (w *world) follows(p *proxy, worker string) {
	w.Helper()
	began := time.Now()
	p.join(worker).eventuallyLeads(soon)
	w.Logf("%s leads after %v", worker, time.Since(began))
}

// gone reports whether the proxy has no candidacy any more.
func (p *proxy) gone() bool {
	for _, r := range p.Resources() {
		if len(r.Candidacies) > 0 {
			return false
		}
	}
	return true
}

// lateCases are about requests whose outcome is not known in time, and about leases
// that must be released nevertheless.
var lateCases = []testCase{
	{"an acquire that arrives after its lease was given back takes nothing", func(w *world) {
		p, link := w.provider("one")
		bid := w.bid("late")
		bid.TTL = long
		held := link.Hold(w.T, w.service.Request(bid.Worker))
		ctx, cancel := context.WithCancel(within(w.T, patience))
		ended := make(chan error, 1)
		go func() { _, err := p.Acquire(ctx, bid); ended <- err }()
		held.Await()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.Fatalf("the cancelled acquire ended with %v", err)
		}
		w.mustRelease(p, &election.Lease{AcquireRequest: bid}, election.ReasonLeft)
		held.Forward()
		q, _ := w.provider("two")
		eventually(w.T, "another worker gets the lease", soon, func() bool {
			_, err := q.Acquire(within(w.T, patience), w.bid("b"))
			return err == nil
		})
	}},
	{"a worker that goes away while the lease is asked for leaves none behind", func(w *world) {
		p, q := w.proxy("one"), w.proxy("two")
		held := p.link.Hold(w.T, w.service.Request("a"))
		a := p.join("a")
		held.Await()
		a.dies()
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end) && !p.gone(); { // it must not end now
			time.Sleep(5 * time.Millisecond)
		}
		held.Forward()
		w.follows(q, "b")
		w.mustBeGranted("b")
	}},
	{"an acquire that arrives after its worker has gone takes nothing", func(w *world) {
		p, q := w.proxy("one"), w.proxy("two")
		held := p.link.Hold(w.T, w.service.Request("a"))
		a := p.join("a")
		held.Await()
		a.dies()
		eventually(w.T, "the proxy gives up on the request", patience, p.gone)
		held.Forward()
		w.follows(q, "b")
		w.mustBeGranted("b")
	}},
	{"a worker that goes away just after it came leaves no lease behind", func(w *world) {
		p, q := w.proxy("one"), w.proxy("two")
		for i := range 30 {
			a := p.join("a")
			time.Sleep(2*time.Millisecond + rand.N(14*time.Millisecond))
			a.dies()
			b := q.join("b")
			eventually(w.T, "another worker leads", soon, b.leads)
			if i%2 == 0 {
				b.leaves()
			} else {
				b.dies()
			}
		}
	}},
	{"a lease is given back as soon as the service is there again", func(w *world) {
		p, q := w.proxy("one"), w.proxy("two")
		a := p.first("a")
		a.mustLead()
		b := q.first("b")
		p.link.Cut()
		a.dies()
		always(w.T, "the other worker follows", 500*time.Millisecond, func() bool { return !b.leads() })
		p.link.Mend()
		began := time.Now()
		b.eventuallyLeads(soon)
		w.Logf("b leads %v after the service was there again", time.Since(began))
		w.mustBeGranted("a", "b")
	}},
}
