package electiontest

import (
	"math/rand/v2"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/status"
)

// long is a TTL longer than any wait of a case: a lease that no one releases is held
// until its case has failed.
const long = 10 * time.Minute

// expiring gives leases that no one renews a short TTL.
func (w *testEnv) expiring(s *election.Settings) { s.TTL = w.service.TTL }

// gone reports whether the proxy has no candidacy any more.
func (p *proxy) gone() bool {
	for _, r := range p.Resources() {
		if len(r.Candidacies) > 0 {
			return false
		}
	}
	return true
}

// reachCases are about requests that are given up, and about a service that cannot be reached for a while.
var reachCases = []testCase{
	{"a worker that goes away just after it came leaves no lease behind", func(w *testEnv) {
		p, q := w.proxy("one"), w.proxy("two")
		for i := range 30 {
			a := p.join("a")
			time.Sleep(2*time.Millisecond + rand.N(14*time.Millisecond))
			a.dies()
			b := q.join("b")
			b.eventuallyLeads(soon)
			if i%2 == 0 {
				b.leaves()
			} else {
				b.dies()
			}
		}
	}},
	{"a lease is given back as soon as the service is there again", func(w *testEnv) {
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

// lateCases are about requests whose outcome is not known in time, and about leases
// that must be released nevertheless.
var lateCases = []testCase{
	{"a worker that goes away while the lease is asked for leaves none behind", func(w *testEnv) {
		p, q := w.proxy("one"), w.proxy("two")
		late := p.provider.delay(acquire)
		a := p.join("a")
		w.happened(late)
		a.dies()
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end) && !p.gone(); { // it must not end now
			time.Sleep(5 * time.Millisecond)
		}
		late.arrive()
		q.join("b").eventuallyLeads(soon)
		w.mustBeGranted("b")
	}},
	{"a worker that goes away while its answer is lost leaves no lease behind", func(w *testEnv) {
		p, q := w.proxy("one"), w.proxy("two")
		lost := p.provider.lose(acquire)
		a := p.join("a")
		w.happened(lost)
		a.dies()
		q.join("b").eventuallyLeads(soon)
	}},
	{"a worker that comes back is not shown as the leader before it has been told of its lease", func(w *testEnv) {
		p := w.proxy("one", timeout(quiet))
		a := p.first("a")
		a.mustLead()
		a.hush()
		eventually(w.T, "the lease is released", soon, a.vacant)
		late := p.provider.delay(acquire)
		a.wake()
		w.happened(late)
		always(w.T, "the leader can write", time.Second, func() bool { return p.Resources()[0].State != status.Led || a.leads() })
		late.arrive()
		a.eventuallyLeads(soon)
	}},
	{"a release whose answer was lost is repeated", func(w *testEnv) {
		p, q := w.proxy("one"), w.proxy("two")
		a := p.first("a")
		a.mustLead()
		lost := p.provider.lose(release)
		a.dies()
		w.happened(lost)
		q.join("b").eventuallyLeads(soon)
		eventually(w.T, "the release is repeated", soon, func() bool { return p.provider.made(release) > 1 })
		w.mustBeGranted("a", "b")
	}},
	{"a request that was not sent is repeated", func(w *testEnv) {
		p, q := w.proxy("one"), w.proxy("two")
		unsent := p.provider.fail(acquire)
		a := p.join("a")
		w.happened(unsent)
		a.eventuallyLeads(soon)
		b := q.first("b")
		unsent = p.provider.fail(release)
		a.dies()
		w.happened(unsent)
		b.eventuallyLeads(soon)
		w.mustBeGranted("a", "b")
	}},
	{"a renewal whose answer was lost costs the leader nothing", func(w *testEnv) {
		p := w.proxy("one", w.expiring)
		a := p.first("a")
		epoch := a.eventuallyLeads(soon)
		for _, fault := range []func(call) *fault{p.provider.lose, p.provider.fail} {
			renewed := p.count(election.EventRenewed)
			w.happened(fault(renew))
			eventually(w.T, "the lease is renewed", soon, func() bool { return p.count(election.EventRenewed) > renewed+1 })
		}
		if again := a.eventuallyLeads(soon); again != epoch || p.count(election.EventLost) > 0 {
			w.Errorf("the epoch went from %d to %d, %d leases were lost", epoch, again, p.count(election.EventLost))
		}
		w.mustBeGranted("a")
	}},
	{"a watch that fails is repeated", func(w *testEnv) {
		p, q := w.proxy("one"), w.proxy("two")
		a, b := p.first("a"), q.first("b")
		broken := q.provider.fail(watch)
		b.demand() // whatever the watch waits for, a release ends it
		a.dies()
		w.happened(broken)
		b.eventuallyLeads(soon)
		w.mustBeGranted("a", "b")
	}},
}
