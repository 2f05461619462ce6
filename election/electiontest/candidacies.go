package electiontest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/boottime"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

// mustBeGranted fails the test unless exactly these workers were granted epochs 1, 2,
// ….
func (w *testEnv) mustBeGranted(workers ...string) {
	w.Helper()
	if got := w.grants(); !slices.Equal(got, workers) {
		w.Errorf("the ledger holds %q, want %q", got, workers)
	}
}

// mustRefuse fails the test unless err is a refusal with the SQLSTATE.
func (w *testEnv) mustRefuse(err error, state string) *fencing.Refusal {
	w.Helper()
	var refusal *fencing.Refusal
	if !errors.As(err, &refusal) || refusal.SQLState != state {
		w.Fatalf("got %v, want a refusal %s", err, state)
	}
	return refusal
}

func linger(d time.Duration) func(*election.Settings) {
	return func(s *election.Settings) { s.Linger = d }
}

func campaign(mode fencing.CampaignMode) func(*fencing.JoinRequest) {
	return func(c *fencing.JoinRequest) { c.Campaign = mode }
}

// isAnnounced checks since when KnewAt says that a leading worker knows its epoch.
func (w *testEnv) isAnnounced(m *conn) {
	w.Helper()
	epoch, now := m.Status().Epoch, time.Now()
	later := now.Add(time.Nanosecond)
	knows := func(what string, e fencing.Epoch, at time.Time, want bool) {
		w.Helper()
		if got := m.KnewAt(e, at); got != want {
			w.Errorf("%s: KnewAt is %v", what, got)
		}
	}
	knows("before it is told", epoch, later, false)
	early := now.Add(-time.Hour)
	m.AnnouncementRead(epoch-1, early, now)
	knows("after it was told another epoch", epoch, later, false)
	m.AnnouncementRead(epoch, early, now)
	knows("when it is told", epoch, now, false)
	knows("after that", epoch, later, true)
	knows("under the next epoch", epoch+1, later, true)
	knows("after somebody else's epoch", epoch+2, later, false)
	m.AnnouncementRead(epoch, later, later.Add(time.Hour))
	knows("after it was told again", epoch, later, true)
	m.ConnectionSuperseded()
	knows("after a superseded connection has ended", epoch, later.Add(2*time.Hour), false)
}

// passOn passes the candidacy of a to b, as an upgrade does.
func passOn(a, b *conn) error {
	return a.Candidacy.(fencing.Movable).PassOn(a.w.Context(), func(ctx context.Context, lead []byte) error {
		begin, _, err := b.Candidacy.(fencing.Movable).Adopt(ctx, lead)
		if err == nil {
			begin()
		}
		return err
	})
}

// passingCases are about candidacies that are passed on to another process.
var passingCases = []testCase{
	{"a candidacy that is passed on keeps its epoch and its award, and whoever has it renews and releases", func(w *testEnv) {
		p, q := w.proxy("one"), w.proxy("two")
		a := p.first("a")
		epoch, other, arrival := a.eventuallyLeads(soon), q.first("b"), q.first("a")
		if err := passOn(a, arrival); !w.service.Adopts {
			if err == nil {
				w.Error("a lease that only its process knows was passed on")
			}
			renewed := p.count(election.EventRenewed)
			p.skip(long / 2)
			eventually(w.T, "the process that has it still renews it", soon, func() bool { return p.count(election.EventRenewed) > renewed })
			if !a.leads() || arrival.leads() || other.leads() {
				w.Error("its worker does not lead")
			}
			return
		} else if err != nil {
			w.Fatal(err)
		}
		if arrival.mustLead() != epoch || arrival.Incarnation() != a.Incarnation() || a.leads() {
			w.Errorf("it leads under epoch %d as %s, which was %s with epoch %d", arrival.Status().Epoch, arrival.Incarnation(), a.Incarnation(), epoch)
		}
		a.leaves()
		if err := p.Close(within(w.T, patience)); err != nil {
			w.Error(err)
		}
		renewed := q.count(election.EventRenewed)
		q.skip(long / 2)
		eventually(w.T, "the other process renews", soon, func() bool { return q.count(election.EventRenewed) > renewed })
		if q.count(election.EventLost) > 0 || arrival.mustLead() != epoch || other.leads() {
			w.Error("the lease was lost")
		}
		w.mustBeGranted("a")
		arrival.dies()
		other.eventuallyLeads(soon)
		w.mustBeGranted("a", "b")
	}},
}

// takeoverCases are about who leads next, as it depends on the service.
var takeoverCases = []testCase{
	{"a leader's death is followed at once", func(w *testEnv) {
		p, q := w.proxy("one"), w.proxy("two")
		a := p.first("a")
		here, there := p.first("b"), q.first("c")
		if here.leads() || there.leads() {
			w.Fatal("there are two leaders")
		}
		if holder := here.Status().Holder; holder.Worker != "a" || holder.Epoch != 1 {
			w.Errorf("the follower knows %+v", holder)
		}
		a.dies()
		eventually(w.T, "one follower leads", soon, func() bool { return here.leads() || there.leads() })
		always(w.T, "there is one leader", 200*time.Millisecond, func() bool { return here.leads() != there.leads() })
		if n := len(w.grants()); n != 2 {
			w.Errorf("%d epochs were granted", n)
		}
	}},
	{"a dead proxy's lease is followed when it ends", func(w *testEnv) {
		p, q := w.proxy("one", w.expiring), w.proxy("two")
		a := p.first("a")
		a.eventuallyLeads(soon)
		b := q.first("b")
		p.link.Cut()
		b.eventuallyLeads(w.service.Death + soon)
		if a.leads() {
			w.Error("the old leader thinks that it leads")
		}
		eventually(w.T, "the old leader is superseded", soon, a.superseded)
		eventually(w.T, "the grant is reported", soon, func() bool { return q.count(election.EventGranted) == 1 })
		w.mustBeGranted("a", "b")
	}},
	{"two proxies of one name cost a lease and no order", func(w *testEnv) {
		p := w.proxy("one", w.expiring)
		a := p.first("a")
		a.eventuallyLeads(soon)
		q := w.proxy("one", w.expiring)
		b := q.join("b")
		if err := b.AwaitFirst(w.Context(), patience); err != nil {
			w.Fatal(err)
		}
		known := func() int { return p.count(election.EventRenewed) + p.count(election.EventLost) }
		seen := known() + 1 // one renewal may have been in progress
		eventually(w.T, "the first proxy knows what it has", w.service.Death+soon, func() bool { return known() > seen || a.superseded() })
		eventually(w.T, "one leads", w.service.Death+patience, func() bool { return a.leads() != b.leads() })
		always(w.T, "not both lead", w.service.TTL, func() bool { return !a.leads() || !b.leads() })
		if got := w.grants(); !slices.Equal(got, []string{"a"}) && !slices.Equal(got, []string{"a", "b"}) {
			w.Errorf("the ledger holds %q", got)
		}
	}},
	{"the epochs grow and somebody leads again, whatever an operator does", func(w *testEnv) {
		p, q := w.proxy("one", w.expiring), w.proxy("two", w.expiring)
		a, b := p.first("a"), q.first("b")
		for _, fault := range w.service.Faults {
			before := max(a.Status().Holder.Epoch, b.Status().Holder.Epoch)
			known := func() int {
				return p.count(election.EventRenewed) + p.count(election.EventLost) + q.count(election.EventRenewed) + q.count(election.EventLost)
			}
			fault.Do(w.T, resource)
			seen := known() + 1 // one renewal may have been in progress
			eventually(w.T, "the holder finds out", w.service.Death+soon, func() bool { return known() > seen })
			eventually(w.T, "one leads after: "+fault.Name, w.service.Death+soon, func() bool { return a.leads() != b.leads() })
			if after := max(a.Status().Epoch, b.Status().Epoch); after < before {
				w.Errorf("epoch %d came after %d", after, before)
			}
			for _, c := range []**conn{&a, &b} { // the superseded worker connects again
				if (*c).superseded() {
					(*c).dies()
					*c = map[bool]*proxy{true: p, false: q}[c == &a].first("again")
				}
			}
		}
	}},
}

// candidacyCases are about candidacies over the real fence.
var candidacyCases = []testCase{
	{"a lone worker leads when its first attempt has ended", func(w *testEnv) {
		a := w.proxy("one").first("a")
		if epoch := a.mustLead(); epoch != 1 {
			w.Errorf("the first epoch is %d", epoch)
		}
		eventually(w.T, "the connection was told", soon, func() bool { return a.changes.Load() > 0 })
		if a.SupersededBefore() {
			w.Error("a new worker was superseded before")
		}
		w.mustBeGranted("a")
	}},
	{"connections of a worker share its candidacy and its epoch", func(w *testEnv) {
		p := w.proxy("one")
		a := p.first("a")
		b := p.first("a")
		if a.Candidacy != b.Candidacy || b.mustLead() != a.mustLead() {
			w.Error("the second connection has a candidacy of its own")
		}
		a.dies()
		always(w.T, "the second connection leads on", 100*time.Millisecond, b.leads)
		other := p.first("a", func(c *fencing.JoinRequest) { c.User = "other" })
		if other.Candidacy == b.Candidacy || other.leads() {
			w.Error("another user shares the candidacy")
		}
		w.mustBeGranted("a")
	}},
	{"workers that come one after the other all lead at once", func(w *testEnv) {
		p := w.proxy("one")
		var want []string
		for i := range 10 {
			worker := fmt.Sprint("psql-", i)
			c := p.first(worker)
			if epoch := c.mustLead(); epoch != fencing.Epoch(i+1) {
				w.Errorf("epoch %d, want %d", epoch, i+1)
			}
			if i%2 == 0 {
				c.leaves()
			} else {
				c.dies()
			}
			want = append(want, worker)
		}
		w.mustBeGranted(want...)
	}},
	{"a lost answer neither burns nor repeats an epoch", func(w *testEnv) {
		p := w.proxy("one")
		seed := p.first("seed")
		seed.mustLead()
		seed.leaves()
		lost := p.provider.lose(acquire) // the response to the award
		p.gate.loseNext()                // the response to the grant
		a := p.join("a")
		w.happened(lost)
		if epoch := a.eventuallyLeads(w.service.Death + soon); epoch != 2 {
			w.Errorf("the epoch is %d, want 2", epoch)
		}
		w.mustBeGranted("seed", "a")
	}},
	{"the deadline counts from before the request was sent", func(w *testEnv) {
		p := w.proxy("one", w.expiring)
		a := p.first("a")
		a.eventuallyLeads(soon)
		candidacy := a.Candidacy.(*election.Candidacy)
		trust := w.service.TTL - w.service.TTL/10
		if until := candidacy.Term().TrustedUntil; until > boottime.Now()+trust {
			w.Errorf("a lease is trusted for %v after it was awarded", until-boottime.Now())
		}
		for seen, tries := 0, 0; seen < 3; tries++ {
			if tries == 20 {
				w.Fatal("every reading of the deadline was followed by another renewal")
			}
			late := p.provider.delay(renew)
			asked := w.happened(late)
			time.AfterFunc(w.service.TTL/5, late.arrive)
			renewed := p.count(election.EventRenewed)
			eventually(w.T, "the late answer came", soon, func() bool { return p.count(election.EventRenewed) > renewed })
			until := candidacy.Term().TrustedUntil
			if p.provider.made(renew) > asked.number {
				continue // this may be the deadline of the next renewal
			}
			seen++
			if until > asked.at+trust || until < asked.at {
				w.Errorf("trusted until %v after the request was sent, want at most %v", until-asked.at, trust)
			}
		}
	}},
	{"a lease that cannot be confirmed lapses at its deadline, and its epoch is kept", func(w *testEnv) {
		p := w.proxy("one", w.expiring)
		a := p.first("a")
		epoch := a.eventuallyLeads(soon)
		candidacy := a.Candidacy.(*election.Candidacy)
		mend := p.provider.hang()
		watch := stopwatch.Start(w.T)
		eventually(w.T, "the leader stops", w.service.TTL+soon, func() bool { return !a.leads() })
		if now, until := boottime.Now(), candidacy.Term().TrustedUntil; now < until || watch.Late(w.T, now-until, soon) {
			w.Errorf("it stopped %v after the deadline", now-until)
		}
		if s := a.Status(); !s.Lapsed || s.Epoch != epoch || s.Role != fencing.Follower {
			w.Errorf("the status is %+v", *s)
		}
		mend()
		if err := a.AwaitConfirmed(within(w.T, patience)); err != nil {
			w.Fatal(err)
		}
		if again := a.mustLead(); again != epoch {
			w.Errorf("the epoch is %d, it was %d", again, epoch)
		}
		w.mustBeGranted("a")
	}},
	{"a slow winner can neither overtake its successor nor disturb it", func(w *testEnv) {
		p, q := w.proxy("one", w.expiring), w.proxy("two")
		waiting := p.gate.close()
		slow := p.join("slow")
		await(w.T, "the grant waits", waiting) // it has been awarded the lease and stalls before the grant
		p.link.Cut()
		b := q.join("b")
		epoch := b.eventuallyLeads(w.service.Death + soon)
		p.gate.open()
		eventually(w.T, "the late grant was refused", soon, func() bool { return p.count(election.EventFailed) > 0 })
		always(w.T, "the successor leads and the slow winner does not", 2*w.service.TTL, func() bool { return b.leads() && !slow.leads() })
		if again := b.mustLead(); again != epoch {
			w.Errorf("the successor's epoch went from %d to %d", epoch, again)
		}
		w.mustBeGranted("b")
	}},
	{"a superseded candidacy is over for good", func(w *testEnv) {
		p, q := w.proxy("one", w.expiring), w.proxy("two")
		a := p.first("a")
		old := a.eventuallyLeads(soon)
		p.link.Cut() // so that the other proxy takes over
		b := q.join("b")
		b.eventuallyLeads(w.service.Death + soon)
		eventually(w.T, "the old one is superseded", soon, a.superseded)
		if !a.CheckSuperseded(within(w.T, patience)) {
			w.Error("the database does not say so")
		}
		w.mustRefuse(a.AwaitLeader(within(w.T, patience)), fencing.StateSuperseded)
		b.dies()
		again := q.first("a") // the same id, at a proxy that works
		if epoch := again.eventuallyLeads(soon); epoch <= old+1 {
			w.Errorf("epoch %d after %d", epoch, old+1)
		}
		if !again.SupersededBefore() || again.Incarnation() == a.Incarnation() {
			w.Error("the new candidacy has the old one's incarnation")
		}
		// A backend of its may be left, which the grant has ended.
		if st := b.Status; !b.CheckSuperseded(within(w.T, patience)) || st().Holder.Epoch <= st().Epoch {
			w.Errorf("a candidacy that has ended does not say that another one was granted an epoch: %+v", *st())
		}
		w.isAnnounced(again)
		if !a.superseded() || a.Status().Epoch != old {
			w.Errorf("the old candidacy came back: %+v", *a.Status())
		}
		if here := p.join("a"); here.Candidacy == a.Candidacy {
			w.Error("a connection joined a superseded candidacy")
		}
	}},
	{"a goodbye keeps the lease for as long as it lingers, a broken connection does not", func(w *testEnv) {
		p := w.proxy("one", linger(3*w.service.TTL))
		a := p.first("a")
		epoch := a.mustLead()
		other := p.first("b")
		a.leaves()
		always(w.T, "the other one follows", w.service.TTL/2, func() bool { return !other.leads() })
		back := p.first("a")
		if again := back.mustLead(); again != epoch {
			w.Errorf("the worker that came back has epoch %d, it had %d", again, epoch)
		}
		back.dies()
		if got := other.eventuallyLeads(soon); got != 2 {
			w.Errorf("the other one has epoch %d", got)
		}
		w.mustBeGranted("a", "b")
	}},
	{"a lingering lease ends", func(w *testEnv) {
		p := w.proxy("one", linger(w.service.TTL/2))
		a, b := p.first("a"), p.first("b")
		a.leaves()
		if b.leads() {
			w.Error("the lease did not linger")
		}
		b.eventuallyLeads(w.service.TTL/2 + soon)
	}},
	{"a proxy that stops gives its leases back", func(w *testEnv) {
		p, q := w.proxy("one"), w.proxy("two")
		p.first("a").mustLead()
		b := q.first("b")
		if err := p.Close(within(w.T, patience)); err != nil {
			w.Fatal(err)
		}
		b.eventuallyLeads(soon)
		if _, err := p.tryJoin("c"); !errors.Is(err, election.ErrClosed) {
			w.Errorf("joining a proxy that stops: %v", err)
		}
	}},
	{"a worker that waits to lead waits, and one that observes never does", func(w *testEnv) {
		p := w.proxy("one")
		observer := p.first("o", campaign(fencing.CampaignOff))
		a := p.first("a")
		a.mustLead()
		waiter := p.join("b", campaign(fencing.CampaignWait))
		ctx, cancel := context.WithTimeout(w.Context(), 100*time.Millisecond)
		defer cancel()
		if err := waiter.AwaitLeader(ctx); !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("waiting beside a leader ended with %v", err)
		}
		time.AfterFunc(50*time.Millisecond, a.dies)
		if err := waiter.AwaitLeader(within(w.T, patience)); err != nil {
			w.Fatal(err)
		}
		waiter.mustLead()
		waiter.dies()
		always(w.T, "the observer does not lead", 300*time.Millisecond, func() bool { return !observer.leads() })
		w.mustBeGranted("a", "b")
	}},
	{"a leader whose only campaigning connection ends gives the lease to others", func(w *testEnv) {
		p := w.proxy("one")
		a := p.first("a")
		observer := p.first("a", campaign(fencing.CampaignOff))
		if observer.Candidacy != a.Candidacy {
			w.Fatal("the observer has a candidacy of its own")
		}
		b := p.first("b")
		a.dies()
		b.eventuallyLeads(soon)
		eventually(w.T, "the observer's candidacy is superseded", soon, observer.superseded)
	}},
	{"a restored fence is refused, not guessed over", func(w *testEnv) {
		p := w.proxy("one")
		for i := range 3 {
			c := p.first(fmt.Sprint(i))
			c.mustLead()
			c.leaves()
		}
		a := p.first("a")
		a.mustLead()
		w.server.Exec(w.T, pgtest.Control, w.db,
			"UPDATE fencepost.fence SET epoch = 2", "DELETE FROM fencepost.grants WHERE epoch > 2")
		_, err := p.tryJoin("a") // verified, because it leads
		w.mustRefuse(err, fencing.StateNoFence)
		eventually(w.T, "the leader stops", soon, func() bool { return !a.leads() && a.Status().Fault != nil })
		eventually(w.T, "the resource is closed by the fault", soon, func() bool {
			r := p.Resources()[0]
			return r.State == status.Blocked && r.Reason != nil
		})
		_, err = p.tryJoin("b")
		w.mustRefuse(err, fencing.StateNoFence)
	}},
	{"a fence that was lost is made anew for the next worker", func(w *testEnv) {
		p := w.proxy("one")
		observer := p.first("o", campaign(fencing.CampaignOff))
		w.server.Exec(w.T, pgtest.Control, w.db, "DELETE FROM fencepost.fence")
		_, err := p.tryJoin("a")
		w.mustRefuse(err, fencing.StateNoFence)
		b := p.first("b")
		if b.Fence().ID() == observer.Fence().ID() {
			w.Error("the new worker has the lost fence")
		}
		b.mustLead()
	}},
	{"what is known of a resource can be asked for", func(w *testEnv) {
		p := w.proxy("one")
		p.first("a").mustLead()
		p.first("b")
		all := p.Resources()
		if len(all) != 1 {
			w.Fatalf("%d resources", len(all))
		}
		r := all[0]
		if r.Database != w.db || r.Resource != resource || r.Record.Worker != "a" || r.Record.Epoch != 1 ||
			r.State != status.Led || !r.Local || r.LeaseState != elector.Held || r.LeaseLeft <= 0 || r.LeaseLeft > long || len(r.Candidacies) != 2 {
			w.Errorf("the status is %+v", r)
		}
		if a, b := r.Candidacies[0], r.Candidacies[1]; a.Status.Role != fencing.Leader || b.Status.Role != fencing.Follower || a.Members != 1 {
			w.Errorf("the candidacies are %+v", r.Candidacies)
		}
	}},
}
