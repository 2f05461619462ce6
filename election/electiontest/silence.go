package electiontest

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
)

// quiet is the worker timeout in these cases.
const quiet = 400 * time.Millisecond

func timeout(d time.Duration) func(*election.Settings) {
	return func(s *election.Settings) { s.WorkerTimeout = d }
}

// vacant reports whether the lease is available on demand, as this connection sees it.
func (c *conn) vacant() bool { return c.Status().Vacant }

func asUser(user string) func(*fencing.JoinRequest) {
	return func(c *fencing.JoinRequest) { c.User = user }
}

func asking(d time.Duration) func(*fencing.JoinRequest) {
	return func(c *fencing.JoinRequest) { c.WorkerTimeout = d }
}

func from(address string) func(*fencing.JoinRequest) {
	return func(c *fencing.JoinRequest) { c.Client = netip.MustParseAddr(address) }
}

// status returns the state of the worker's candidacy.
func (p *proxy) status(worker string) status.Candidacy {
	p.w.Helper()
	for _, r := range p.Resources() {
		for _, c := range r.Candidacies {
			if c.Worker == worker {
				return c
			}
		}
	}
	p.w.Fatalf("worker %s has no candidacy", worker)
	return status.Candidacy{}
}

// has reports whether the worker has a candidacy here.
func (p *proxy) has(worker string) bool {
	for _, r := range p.Resources() {
		for _, c := range r.Candidacies {
			if c.Worker == worker {
				return true
			}
		}
	}
	return false
}

// falseAlarms connects a worker that leads, becomes unresponsive and comes back, this
// many times.
func (p *proxy) falseAlarms(worker string, times int, change ...func(*fencing.JoinRequest)) *conn {
	p.w.Helper()
	c := p.first(worker, change...)
	c.eventuallyLeads(soon)
	for range times {
		before := p.count(election.EventFalseAlarm)
		c.hush()
		eventually(p.w.T, "the lease is released", soon, c.vacant)
		c.wake()
		eventually(p.w.T, "it leads again", soon, c.leads)
		if p.count(election.EventFalseAlarm) != before+1 {
			p.w.Fatal("the false alarm was not noticed")
		}
	}
	return c
}

// demand does what a write that would be refused does.
func (c *conn) demand() { c.speak(); c.CampaignOnDemand(within(c.w.T, patience)) }

// silenceCases are about unresponsive workers.
var silenceCases = []testCase{
	{"a leader's silence is followed only on demand", func(w *testEnv) {
		p, q := w.proxy("one", timeout(quiet)), w.proxy("two", timeout(0))
		a, b := p.first("a"), q.first("b")
		epoch := a.mustLead()
		a.hush()
		eventually(w.T, "the lease is vacant", quiet+soon, b.vacant)
		if s := a.Status(); !s.Lapsed || s.Epoch != epoch || s.Role != fencing.Follower {
			w.Errorf("the silent leader's status is %+v", *s)
		}
		always(w.T, "nobody takes the lease", 2*quiet, func() bool { return !b.leads() && !a.superseded() })
		b.demand()
		if next := b.mustLead(); next != epoch+1 {
			w.Errorf("the epoch is %d", next)
		}
		eventually(w.T, "the silent one is superseded", soon, a.superseded)
		w.mustBeGranted("a", "b")
	}},
	{"a silence is followed by a worker that comes, or waits to lead", func(w *testEnv) {
		p := w.proxy("one", timeout(quiet))
		a := p.first("a")
		a.mustLead()
		a.hush()
		b := p.join("b", campaign(fencing.CampaignWait))
		if err := b.AwaitLeader(within(w.T, patience)); err != nil {
			w.Fatal(err)
		}
		if !a.superseded() {
			w.Error("the silent one was not superseded")
		}
		b.hush()
		eventually(w.T, "the lease is vacant", quiet+soon, b.vacant)
		p.first("c").mustLead()
		w.mustBeGranted("a", "b", "c")
	}},
	{"a takeover counts how long the worker was silent, not the timeout of others", func(w *testEnv) {
		p, q := w.proxy("one", timeout(time.Hour)), w.proxy("two", timeout(time.Hour))
		a, b := p.first("a", asking(quiet)), q.first("b")
		a.mustLead()
		a.hush()
		eventually(w.T, "the lease is vacant", quiet+soon, b.vacant)
		b.demand()
		b.mustLead()
		eventually(w.T, "the grant is reported", soon, func() bool { return q.count(election.EventGranted) == 1 })
		if took := q.granted().Took; took < quiet || took > patience {
			w.Errorf("the takeover took %v, the worker was silent for %v", took, quiet)
		}
	}},
	{"a silent leader's death is followed at once", func(w *testEnv) {
		p, q := w.proxy("one", timeout(quiet)), w.proxy("two", timeout(0))
		a, b := p.first("a"), q.first("b")
		a.mustLead()
		a.hush()
		eventually(w.T, "the lease is vacant", quiet+soon, b.vacant)
		a.dies()
		b.eventuallyLeads(soon)
	}},
	{"a silent leader that comes back leads on, unnoticed", func(w *testEnv) {
		p, q := w.proxy("one", timeout(quiet)), w.proxy("two", timeout(0))
		a, b := p.first("a"), q.first("b")
		epoch := a.mustLead()
		for i := range 2 {
			a.hush()
			eventually(w.T, "the lease is vacant", 4*quiet+soon, b.vacant)
			a.wake()
			if err := a.AwaitConfirmed(within(w.T, patience)); err != nil {
				w.Fatal(err)
			}
			if again := a.mustLead(); again != epoch {
				w.Errorf("the epoch is %d, it was %d", again, epoch)
			}
			if got := p.count(election.EventFalseAlarm); got != i+1 {
				w.Errorf("%d false alarms", got)
			}
			eventually(w.T, "the other proxy sees the lease taken", soon, func() bool { return !b.vacant() })
		}
		eventually(w.T, "2 false alarms are counted", soon, func() bool { return p.Resources()[0].FalseAlarms == 2 })
		if s := p.status("a"); s.FalseAlarms != 2 || s.WorkerTimeout != 4*quiet {
			w.Errorf("after 2 false alarms: %+v", s)
		}
		w.mustBeGranted("a")
	}},
	{"idle workers do not trade the lease to and fro", func(w *testEnv) {
		p, q := w.proxy("one", timeout(quiet)), w.proxy("two", timeout(quiet))
		a, b := p.first("a"), q.first("b")
		third := p.first("c")
		a.mustLead()
		for _, c := range []*conn{a, b, third} {
			c.hush()
		}
		eventually(w.T, "the lease is vacant", quiet+soon, b.vacant)
		always(w.T, "nobody leads", 4*quiet, func() bool { return !a.leads() && !b.leads() && !third.leads() })
		// Nor do they when one of the silent workers dies: silent workers do not
		// campaign.
		third.dies()
		always(w.T, "nobody leads", quiet, func() bool { return !a.leads() && !b.leads() })
		w.mustBeGranted("a")
	}},
	{"a false alarm changes nothing for other workers", func(w *testEnv) {
		p := w.proxy("one", timeout(quiet))
		const short = quiet / 4
		hasty := p.falseAlarms("hasty", 4, asUser("mallory"), asking(short))
		if s := p.status("hasty"); s.WorkerTimeout != 4*short {
			w.Errorf("the timeout of the worker that came back is %v", s.WorkerTimeout)
		}
		hasty.leaves()
		a, b := p.first("a"), p.first("b")
		a.mustLead()
		if s := p.status("a"); s.WorkerTimeout != quiet || s.FalseAlarms != 0 {
			w.Errorf("another worker: %+v", s)
		}
		a.hush()
		eventually(w.T, "the lease is vacant", soon, b.vacant)
	}},
	{"a worker keeps its patience when it connects again, and so does one without a name", func(w *testEnv) {
		p := w.proxy("one", timeout(quiet))
		p.falseAlarms("a", 1).dies()
		p.first("a")
		if s := p.status("a"); s.WorkerTimeout != 2*quiet || s.FalseAlarms != 1 {
			w.Errorf("after it connected again: %+v", s)
		}
		q := w.proxy("two", timeout(quiet))
		p.first("a").dies()
		nameless := func(c *fencing.JoinRequest) { c.Nameless, c.Resource = true, "other" }
		q.falseAlarms("connection:1", 1, nameless).dies()
		q.first("connection:2", nameless)
		if s := q.status("connection:2"); s.WorkerTimeout != 2*quiet {
			w.Errorf("another connection of the worker without a name: %+v", s)
		}
		q.first("connection:3", nameless, from("192.0.2.2"))
		if s := q.status("connection:3"); s.WorkerTimeout != quiet {
			w.Errorf("one from another address: %+v", s)
		}
	}},
	{"false alarms lengthen a timeout up to a bound", func(w *testEnv) {
		p := w.proxy("one", timeout(quiet/4), func(s *election.Settings) { s.MaxWorkerTimeout = quiet })
		p.falseAlarms("a", 3)
		if s := p.status("a"); s.WorkerTimeout != quiet || s.FalseAlarms != 3 {
			w.Errorf("with a bound of %v: %+v", quiet, s)
		}
		other := func(c *fencing.JoinRequest) { c.Resource = "other" }
		q := w.proxy("two", timeout(quiet/16))
		q.falseAlarms("b", 4, other)
		if s := q.status("b"); s.WorkerTimeout != quiet/4 {
			w.Errorf("after 4 false alarms the timeout went from %v to %v", quiet/16, s.WorkerTimeout)
		}
		r := w.proxy("three", timeout(quiet/4), func(s *election.Settings) { s.MaxTimeoutFactor = 1 })
		r.falseAlarms("c", 2, func(c *fencing.JoinRequest) { c.Resource = "third" })
		if s := r.status("c"); s.WorkerTimeout != quiet/4 || s.FalseAlarms != 2 {
			w.Errorf("with a factor of 1: %+v", s)
		}
	}},
	{"a worker that was replaced is no false alarm", func(w *testEnv) {
		p, q := w.proxy("one", timeout(quiet)), w.proxy("two", timeout(0))
		for round, at := range []*proxy{p, q} {
			a := p.first("slow")
			a.eventuallyLeads(soon)
			rival := at.first(fmt.Sprint("rival-", round))
			a.hush()
			eventually(w.T, "the silent worker is replaced", soon, func() bool { rival.demand(); return a.superseded() })
			a.speak()
			a.dies() // as the proxy does when the superseded client comes back
			eventually(w.T, "its candidacy has ended", soon, func() bool { return !p.has("slow") })
			rival.dies()
		}
		p.first("slow").eventuallyLeads(soon)
		if s := p.status("slow"); s.WorkerTimeout != quiet || s.FalseAlarms != 0 || p.count(election.EventFalseAlarm) != 0 {
			w.Errorf("after it was replaced twice: %+v", s)
		}
	}},
	{"an extension ends after an hour without a false alarm", func(w *testEnv) {
		p := w.proxy("one", timeout(quiet))
		p.falseAlarms("a", 2).dies()
		for _, c := range []struct {
			skip time.Duration
			want time.Duration
		}{{50 * time.Minute, 4 * quiet}, {10 * time.Minute, quiet}} {
			eventually(w.T, "its candidacy has ended", soon, func() bool { return !p.has("a") })
			p.skip(c.skip)
			a := p.first("a")
			if s := p.status("a"); s.WorkerTimeout != c.want {
				w.Errorf("want a timeout of %v: %+v", c.want, s)
			}
			a.dies()
		}
	}},
	{"a worker that the server keeps waiting is not silent, nor one that never has to speak", func(w *testEnv) {
		p := w.proxy("one", timeout(quiet))
		a := p.first("a")
		always(w.T, "the worker leads", 3*quiet, a.leads)
		a.hush()
		eventually(w.T, "the lease is released", quiet+soon, func() bool { return !a.leads() })
		a.dies()
		b := p.first("b", func(c *fencing.JoinRequest) { c.WorkerTimeout = 0 })
		b.eventuallyLeads(soon)
		b.hush()
		always(w.T, "the worker leads", 3*quiet, b.leads)
	}},
	{"an observer's bytes are no sign of life of the worker", func(w *testEnv) {
		p := w.proxy("one", timeout(quiet))
		a := p.first("a")
		observer := p.first("a", campaign(fencing.CampaignOff))
		a.hush()
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
					observer.speak()
				}
			}
		}()
		eventually(w.T, "the lease is released", quiet+soon, func() bool { return !a.leads() })
		close(stop)
		<-done
		observer.CampaignOnDemand(within(w.T, patience)) // an observer's write must not bring the lease back either
		if a.leads() {
			w.Error("the silent worker leads again")
		}
	}},
	{"a demand beside a live leader returns at once and changes nothing", func(w *testEnv) {
		p := w.proxy("one")
		a, b := p.first("a"), p.first("b")
		ctx, cancel := context.WithTimeout(w.Context(), soon)
		defer cancel()
		b.CampaignOnDemand(ctx)
		if ctx.Err() != nil || b.leads() || !a.leads() {
			w.Errorf("the demand acquired the lease (%t), or waited", b.leads())
		}
	}},
}
