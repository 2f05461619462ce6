package electiontest

import (
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// generation returns the number of the instance under which the last epoch was granted, and
// how many instances have a number.
func (w *testEnv) generation() (granted, numbered int) {
	w.Helper()
	row := w.server.Connect(w.T, pgtest.Control, w.db).QueryRow(within(w.T, patience),
		"SELECT source_generation, (SELECT count(*) FROM fencepost.generations) FROM fencepost.fence WHERE resource = $1", resource)
	if err := row.Scan(&granted, &numbered); err != nil {
		w.Fatal(err)
	}
	return granted, numbered
}

// instanceCases are about the instances of the lease service, as it shows them.
var instanceCases = []testCase{
	{"whoever watches sees a new instance begin", func(w *testEnv) {
		p, _ := w.provider("one")
		obs := w.see(p, elector.Freed)
		if obs.InstanceID == "" {
			w.Fatal("an observation has no instance id")
		}
		w.service.Bump(w.T)
		var next elector.Observation
		var err error
		for ctx := within(w.T, patience); ; {
			if next, err = p.Watch(ctx, resource, obs); err == nil || ctx.Err() != nil {
				break
			}
			w.Logf("watch: %v", err) // the service is slow to answer
			time.Sleep(retryPause)
		}
		if err != nil || next.InstanceID == obs.InstanceID || next.InstanceID == "" {
			w.Fatalf("after the bump it sees %+v, %v; before it %+v", next, err, obs)
		}
		if lease := w.mustAcquire(p, w.bid("a")); lease.InstanceID != next.InstanceID {
			w.Errorf("the award is of instance %s; %s was observed", lease.InstanceID, next.InstanceID)
		}
	}},
	{"a service that has lost its data goes on at once", func(w *testEnv) {
		p, q := w.proxy("one", w.expiring), w.proxy("two", w.expiring)
		a := p.first("a")
		epoch := a.eventuallyLeads(soon)
		b := q.first("b")
		w.service.Wipe(w.T)
		eventually(w.T, "the holder finds out, and one leads", w.service.Death+patience, func() bool {
			found := p.count(election.EventLost) + p.count(election.EventSuperseded) // by the service, or by the next grant
			return found > 0 && a.leads() != b.leads()
		})
		after := max(a.Status().Epoch, b.Status().Epoch)
		if after < epoch || b.leads() && after == epoch {
			w.Errorf("epoch %d came after %d", after, epoch)
		}
	}},
	{"a bump ends no term, and the next award is of the new instance", func(w *testEnv) {
		p, q := w.proxy("one", func(s *election.Settings) { s.TTL = 15 * time.Second }), w.proxy("two")
		a := p.first("a")
		epoch := a.eventuallyLeads(soon)
		b := q.first("b")
		w.service.Bump(w.T)
		renewed := p.count(election.EventRenewed) + 2
		eventually(w.T, "the lease is renewed", patience, func() bool { return p.count(election.EventRenewed) >= renewed })
		if again := a.eventuallyLeads(soon); again != epoch {
			w.Errorf("the epoch went from %d to %d", epoch, again)
		}
		a.dies()
		b.eventuallyLeads(soon)
		if granted, _ := w.generation(); granted != 2 {
			w.Errorf("instance %d was granted the epoch", granted)
		}
	}},
}

// numberCases are about the numbers that the instances of the lease service get.
var numberCases = []testCase{
	{"an award of an instance that was not numbered before the bid is given back", func(w *testEnv) {
		p := w.proxy("one")
		held := p.provider.hold(acquire)
		a := p.join("a")
		w.happened(held)
		w.service.Bump(w.T)
		held.arrive()
		if epoch := a.eventuallyLeads(soon); epoch != 1 {
			w.Errorf("the epoch is %d", epoch)
		}
		if released, failed := p.count(election.EventReleased), p.count(election.EventFailed); released == 0 || failed == 0 {
			w.Errorf("the first award was granted: %d released, %d failed", released, failed)
		}
		if granted, numbered := w.generation(); granted != 2 || numbered != 2 {
			w.Errorf("instance %d of %d was granted the epoch", granted, numbered)
		}
		w.mustBeGranted("a")
	}},
	{"an instance whose number was lost is numbered again, and nobody needs an operator", func(w *testEnv) {
		p := w.proxy("one")
		seed := p.first("seed")
		seed.mustLead()
		b := p.first("b")
		w.server.Exec(w.T, pgtest.Control, w.db, "DELETE FROM fencepost.generations") // as a restore would
		seed.leaves()
		if epoch := b.eventuallyLeads(soon); epoch != 2 {
			w.Errorf("the epoch is %d", epoch)
		}
		if granted, numbered := w.generation(); granted != 2 || numbered != 1 {
			w.Errorf("instance %d was granted the epoch, %d have a number", granted, numbered)
		}
	}},
}
