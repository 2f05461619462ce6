package electiontest

import (
	"strings"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
)

// addressCases are about one worker id that is used from two addresses.
var addressCases = []testCase{
	{"a worker id names one process", func(w *testEnv) {
		p := w.proxy("one")
		a := p.first("a")
		elsewhere := from("192.0.2.2")
		_, err := p.tryJoin("a", elsewhere)
		if refusal := w.mustRefuse(err, fencing.StateUnfenceable); !strings.Contains(refusal.Message, "192.0.2.1") {
			w.Errorf("the refusal does not name the address: %s", refusal.Message)
		}
		a.mustLead()
		mapped := p.first("a", from("::ffff:192.0.2.1"))
		mapped.mustLead()
		mapped.leaves()
		a.leaves()
		b := p.first("a", elsewhere)
		if epoch := b.mustLead(); epoch != 2 {
			w.Errorf("another process has epoch %d", epoch)
		}
	}},
	{"an observer locks nobody out and is not locked out", func(w *testEnv) {
		p := w.proxy("one")
		elsewhere, observe := from("192.0.2.2"), campaign(fencing.CampaignOff)
		observer := p.first("a", elsewhere, observe)
		a := p.first("a")
		a.mustLead()
		other := p.first("a", elsewhere, observe)
		if other.Candidacy != observer.Candidacy || other.Candidacy == a.Candidacy {
			w.Error("the observers elsewhere do not share one candidacy of their own")
		}
		if other.leads() {
			w.Error("an observer elsewhere may write")
		}
		_, err := p.tryJoin("a", elsewhere)
		w.mustRefuse(err, fencing.StateUnfenceable)
		a.dies()
		always(w.T, "the observers do not lead", 200*time.Millisecond, func() bool { return !observer.leads() && !other.leads() })
		p.first("a", elsewhere).eventuallyLeads(soon)
		w.mustBeGranted("a", "a")
	}},
	{"a worker id of another user locks nobody out", func(w *testEnv) {
		p := w.proxy("one")
		first := p.first("a", asUser("mallory"), from("192.0.2.2"))
		first.mustLead()
		a := p.first("a")
		if a.leads() || a.Candidacy == first.Candidacy {
			w.Error("two users share one candidacy")
		}
		first.dies()
		a.eventuallyLeads(soon)
	}},
	{"a dead client does not hold its worker id for ever", func(w *testEnv) {
		p := w.proxy("one", timeout(quiet))
		a := p.first("a")
		epoch := a.mustLead()
		a.hush() // its host has died silently: the connection looks open
		var b *conn
		eventually(w.T, "the id is free", quiet+soon, func() bool {
			c, err := p.tryJoin("a", from("192.0.2.2"))
			if err != nil {
				w.mustRefuse(err, fencing.StateUnfenceable)
			}
			b = c
			return err == nil
		})
		eventually(w.T, "its write is a demand", soon, func() bool { b.demand(); return b.leads() })
		if next := b.mustLead(); next != epoch+1 {
			w.Errorf("the epoch is %d", next)
		}
		a.wake() // it was not dead after all
		eventually(w.T, "the first one is superseded", soon, a.superseded)
		b.mustLead()
		w.mustBeGranted("a", "a")
	}},
	{"a lease lingers for the process that had it, not for another of the same name", func(w *testEnv) {
		p := w.proxy("one", linger(10*soon))
		observe := campaign(fencing.CampaignOff)
		a := p.first("a")
		a.mustLead()
		watching := p.first("a", observe)
		a.leaves()
		p.first("a", from("192.0.2.2"), observe)
		always(w.T, "the lease lingers", 200*time.Millisecond, func() bool { return p.count(election.EventReleased) == 0 })
		b := p.first("a", from("192.0.2.2"))
		if epoch := b.eventuallyLeads(soon); epoch != 2 {
			w.Errorf("another process has epoch %d", epoch)
		}
		eventually(w.T, "the observer of the first is superseded", soon, watching.superseded)
	}},
}
