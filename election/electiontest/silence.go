package electiontest

import (
	"context"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
)

// quiet is how long a worker of these cases may be silent.
const quiet = 400 * time.Millisecond

func timeout(d time.Duration) func(*election.Settings) {
	return func(s *election.Settings) { s.WorkerTimeout = d }
}

// vacant reports that the lease is there to be taken on demand, as this
// connection sees it.
func (c *conn) vacant() bool { return c.Standing().Vacant }

// demand is what a write that would be refused does.
func (c *conn) demand() { c.speak(); c.Demand(within(c.w.T, patience)) }

// silenceCases are about workers that give no sign of life.
var silenceCases = []testCase{
	{"a leader's silence is followed only on demand", func(w *world) {
		p, q := w.proxy("one", timeout(quiet)), w.proxy("two", timeout(0))
		a, b := p.first("a"), q.first("b")
		epoch := a.mustLead()
		a.hush()
		eventually(w.T, "the lease is vacant", quiet+soon, b.vacant)
		if s := a.Standing(); !s.Lapsed || s.Epoch != epoch || s.Role != fencing.Follower {
			w.Errorf("the silent leader's standing is %+v", *s)
		}
		always(w.T, "nobody takes the lease", 2*quiet, func() bool { return !b.leads() && !a.superseded() })
		b.demand()
		if next := b.mustLead(); next != epoch+1 {
			w.Errorf("the epoch is %d", next)
		}
		eventually(w.T, "the silent one is superseded", soon, a.superseded)
		w.mustBeGranted("a", "b")
	}},
	{"a silence is followed by a worker that comes, or waits to lead", func(w *world) {
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
	{"a silent leader's death is followed at once", func(w *world) {
		p, q := w.proxy("one", timeout(quiet)), w.proxy("two", timeout(0))
		a, b := p.first("a"), q.first("b")
		a.mustLead()
		a.hush()
		eventually(w.T, "the lease is vacant", quiet+soon, b.vacant)
		a.dies()
		b.eventuallyLeads(soon)
	}},
	{"a silent leader that comes back leads on, unnoticed", func(w *world) {
		p, q := w.proxy("one", timeout(quiet)), w.proxy("two", timeout(0))
		a, b := p.first("a"), q.first("b")
		epoch := a.mustLead()
		for i := range 2 {
			a.hush()
			eventually(w.T, "the lease is vacant", 4*quiet+soon, b.vacant)
			a.wake()
			if err := a.AwaitConfirmed(within(w.T, soon)); err != nil {
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
		if r := p.Resources()[0]; r.FalseAlarms != 2 || r.WorkerTimeout != 4*quiet {
			w.Errorf("after 2 false alarms of %d the timeout is %v", r.FalseAlarms, r.WorkerTimeout)
		}
		w.mustBeGranted("a")
	}},
	{"idle workers do not trade the lease to and fro", func(w *world) {
		p, q := w.proxy("one", timeout(quiet)), w.proxy("two", timeout(quiet))
		a, b := p.first("a"), q.first("b")
		third := p.first("c")
		a.mustLead()
		for _, c := range []*conn{a, b, third} {
			c.hush()
		}
		eventually(w.T, "the lease is vacant", quiet+soon, b.vacant)
		always(w.T, "nobody leads", 4*quiet, func() bool { return !a.leads() && !b.leads() && !third.leads() })
		// Nor do they when one of the silent ones dies: who is silent does not campaign.
		third.dies()
		always(w.T, "nobody leads", quiet, func() bool { return !a.leads() && !b.leads() })
		w.mustBeGranted("a")
	}},
	{"a worker that computes in silence is not robbed for ever", func(w *world) {
		p := w.proxy("one", timeout(quiet))
		const rounds = 6
		var ledger []string
		for round := 0; ; round++ {
			if round == rounds {
				w.Fatalf("robbed in each of %d rounds: %q", rounds, ledger)
			}
			a := p.first(fmt.Sprint("slow-", round))
			a.eventuallyLeads(soon)
			rival := p.first(fmt.Sprint("rival-", round))
			robbed := false
			a.hush()
			for end := time.Now().Add(5 * quiet / 2); time.Now().Before(end) && !robbed; time.Sleep(10 * time.Millisecond) {
				rival.demand()
				robbed = a.superseded()
			}
			a.speak()
			rival.dies()
			if robbed {
				a.dies() // as the proxy does when the superseded client comes back
				eventually(w.T, "the false alarm was noticed", soon, func() bool { return p.count(election.EventFalseAlarm) > round })
				continue
			}
			if round == 0 {
				w.Error("silence had no effect")
			}
			if err := a.AwaitConfirmed(within(w.T, soon)); err != nil || !a.leads() {
				w.Errorf("the slow worker does not lead: %+v, %v", *a.Standing(), err)
			}
			return
		}
	}},
	{"a worker that the server keeps waiting is not silent, nor one that never has to speak", func(w *world) {
		p := w.proxy("one", timeout(quiet))
		a := p.first("a")
		always(w.T, "the worker leads", 3*quiet, a.leads)
		a.hush()
		eventually(w.T, "the lease is released", quiet+soon, func() bool { return !a.leads() })
		a.dies()
		b := p.first("b", func(c *fencing.Claim) { c.WorkerTimeout = 0 })
		b.eventuallyLeads(soon)
		b.hush()
		always(w.T, "the worker leads", 3*quiet, b.leads)
	}},
	{"an observer's bytes are no sign of life of the worker", func(w *world) {
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
		observer.Demand(within(w.T, patience)) // an observer's write does not bring the lease back either
		if a.leads() {
			w.Error("the silent worker leads again")
		}
	}},
	{"a demand beside a live leader returns at once and changes nothing", func(w *world) {
		p := w.proxy("one")
		a, b := p.first("a"), p.first("b")
		ctx, cancel := context.WithTimeout(w.Context(), soon)
		defer cancel()
		b.Demand(ctx)
		if ctx.Err() != nil || b.leads() || !a.leads() {
			w.Errorf("the demand took the lease (%t), or waited", b.leads())
		}
	}},
}
