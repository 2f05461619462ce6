package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
)

func TestOnlyAHigherGrantShowsThatTheFenceWorks(t *testing.T) {
	t.Parallel()
	fault := errors.New("restored")
	for _, c := range []struct {
		epoch  fencing.Epoch
		newest bool
		fault  error
	}{
		{4, false, fault},
		{5, true, fault},
		{6, true, nil},
	} {
		candidacy := bareCandidacy(0)
		r := candidacy.r
		r.mu.record, candidacy.fault = fencing.Record{Epoch: 5}, fault
		newest := r.learnLocked(fencing.Record{Epoch: c.epoch, Worker: "w"}, r.mu.record, nil)
		if newest != c.newest || (candidacy.Status().Holder.Worker == "w") != c.newest || candidacy.fault != c.fault {
			t.Errorf("epoch %d after 5: it is the newest: %v, %+v", c.epoch, newest, candidacy.Status())
		}
	}
}

// TestWhatIsLearntOfGrants: responses may overtake each other, and a failover may lose an
// unconfirmed grant. The highest epoch that is remembered is that of a confirmed one.
func TestWhatIsLearntOfGrants(t *testing.T) {
	t.Parallel()
	confirmed := func(e fencing.Epoch, who string) fencing.Record { return fencing.Record{Epoch: e, Incarnation: who} }
	unconfirmed := func(e fencing.Epoch, who string) fencing.Record {
		return fencing.Record{Epoch: e, Incarnation: who, Unconfirmed: true}
	}
	none := fencing.Record{}
	for name, c := range map[string]struct {
		known, before, rec fencing.Record
		news               bool
		highest            fencing.Epoch
	}{
		"the first grant":                          {none, none, confirmed(1, "a"), true, 1},
		"a higher one":                             {confirmed(1, "a"), confirmed(1, "a"), confirmed(2, "b"), true, 2},
		"a higher one that is unconfirmed":         {confirmed(1, "a"), confirmed(1, "a"), unconfirmed(2, "b"), true, 1},
		"which is confirmed":                       {unconfirmed(2, "b"), unconfirmed(2, "b"), confirmed(2, "b"), true, 2},
		"which is lost":                            {unconfirmed(2, "b"), unconfirmed(2, "b"), confirmed(1, "a"), true, 1},
		"an answer from before it":                 {unconfirmed(2, "b"), confirmed(1, "a"), confirmed(1, "a"), false, 1},
		"a confirmed one below an unconfirmed one": {unconfirmed(3, "c"), confirmed(1, "a"), confirmed(2, "b"), false, 2},
		"a late answer after a loss":               {confirmed(2, "c"), confirmed(1, "a"), unconfirmed(2, "b"), false, 2},
		"a late answer":                            {confirmed(2, "b"), confirmed(1, "a"), confirmed(1, "a"), false, 2},
		"a restored database":                      {confirmed(2, "b"), confirmed(2, "b"), confirmed(1, "a"), false, 2},
	} {
		g := grants{record: c.known}
		for _, rec := range []fencing.Record{c.known, c.before} {
			if !rec.Unconfirmed {
				g.highestObserved = max(g.highestObserved, rec.Epoch)
			}
		}
		if news := g.learn(c.rec, c.before); news != c.news || (g.record == c.rec) != c.news || g.highestObserved != c.highest {
			t.Errorf("%s: news is %t, and then %+v; want %t and highest %d", name, news, g, c.news, c.highest)
		}
	}
}

// bareCandidacy returns the only candidacy of a resource, whose incarnation is mine, without a loop.
func bareCandidacy(token int64) *Candidacy {
	e := &Elections{log: zap.NewNop(), cfg: Config{
		Now: func() time.Duration { return 0 }, Observe: func(Event) {}, Settings: func(string, string) Settings { return Settings{} },
	}}
	r := newResource(e, resourceKey{}, source{}, freeFence, nil)
	c := newCandidacy(r, nil, fencing.JoinRequest{Token: token}, history{incarnation: "mine"})
	r.mu.add(c)
	return c
}

// learn makes its resource learn of a grant.
func (c *Candidacy) learn(rec fencing.Record) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.learnLocked(rec, c.r.mu.record, nil)
}

// TestAnotherGrantSupersedesOnlyWhoHasLed: the record shows a grant whose response was lost, and then
// another worker's.
func TestAnotherGrantSupersedesOnlyWhoHasLed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		led   bool
		token int64
		by    string // the worker to which the first epoch was granted
		want  phase
	}{
		"it has never led":        {want: following},
		"it has led":              {led: true, want: superseded},
		"its epoch is of a token": {token: 7, want: superseded},
		"another worker was granted the epoch of its token":                         {token: 7, by: "another", want: following},
		"another worker was granted the epoch of its token, and it has led by that": {led: true, token: 7, by: "another", want: superseded},
	} {
		candidacy := bareCandidacy(c.token)
		if c.led {
			candidacy.led = true
			candidacy.hasEpoch(1)
		}
		for _, rec := range []fencing.Record{
			{Epoch: 1, Worker: c.by, Incarnation: "mine", Unconfirmed: true}, {Epoch: 1, Worker: c.by, Incarnation: "mine"}, {Epoch: 2, Incarnation: "other"},
		} {
			candidacy.learn(rec)
		}
		if is := candidacy.phase; is != c.want {
			t.Errorf("%s: the candidacy is %v, want %v", name, is, c.want)
		}
	}
}

// TestAnEpochThatComesLateCountsOnlyForWhoHasLed, and one that another grant has followed supersedes only those.
func TestAnEpochThatComesLateCountsOnlyForWhoHasLed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		led, late, overtaken bool
		epoch                fencing.Epoch // that the candidacy has then
		want                 phase
	}{
		"in time":            {epoch: 2, want: lapsed}, // until it leads
		"late":               {late: true, want: following},
		"late, has led":      {led: true, late: true, epoch: 2, want: lapsed},
		"overtaken":          {overtaken: true, want: following},
		"overtaken, has led": {led: true, overtaken: true, epoch: 2, want: superseded},
	} {
		candidacy := bareCandidacy(0)
		candidacy.led = c.led
		if c.overtaken {
			candidacy.learn(fencing.Record{Epoch: 3, Incarnation: "other"})
		}
		err := candidacy.takeEpochLocked(granting{epoch: 2}, c.late)
		if (err != nil) != c.overtaken || candidacy.epoch != c.epoch || candidacy.phase != c.want {
			t.Errorf("%s: %v with epoch %d, %v; want %v with epoch %d", name, candidacy.phase, candidacy.epoch, err, c.want, c.epoch)
		}
	}
}

// TestACandidacyTakesNoUnconfirmedEpoch that a grant without an answer has left. It is superseded by
// one of another candidacy, because its checks fail.
func TestACandidacyTakesNoUnconfirmedEpoch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		incarnation string
		epoch       fencing.Epoch // of the candidacy
		want        phase
	}{{"mine", 0, following}, {"other", 0, following}, {"other", 1, superseded}} {
		candidacy := bareCandidacy(0)
		candidacy.hasEpoch(c.epoch)
		candidacy.learn(fencing.Record{Epoch: 2, Incarnation: c.incarnation, Unconfirmed: true})
		if candidacy.phase != c.want || candidacy.epoch != c.epoch {
			t.Errorf("%+v: %v with epoch %d", c, candidacy.phase, candidacy.epoch)
		}
	}
}

// TestWhoLeadsByARecordedGrant: an incarnation that has the lease and a confirmed grant leads, unless it
// is or was one of this proxy, which would know. While the grant is unconfirmed, only its own proxy knows.
func TestWhoLeadsByARecordedGrant(t *testing.T) {
	t.Parallel()
	const ungranted = "the worker that holds the lease is not connected here, and has no epoch in this database yet"
	for _, c := range []struct {
		incarnation string
		unconfirmed bool
		state       status.State
		why         string
	}{
		{"here", false, status.Electing, ""},
		{"here", true, status.Electing, ""},
		{"unrecorded", false, status.Electing, ungranted},
		{"elsewhere", false, status.Led, ""},
		{"elsewhere", true, status.Unknown, status.ErrUncertainGrant.Error()},
		{"random.this proxy.owner", false, status.Electing, ""}, // it has ended, and the watch has not seen that
		{"random.another proxy.owner", false, status.Led, ""},
	} {
		r := resource{services: services{presence: presenceAs("this proxy")}}
		r.mu.roster, r.mu.fence = newRoster(), freeFence
		r.mu.add(&Candidacy{state: state{identity: identity{worker: "w", incarnation: "here"}}})
		r.mu.observation = elector.Observation{State: elector.Held, Incarnation: c.incarnation}
		r.mu.record = fencing.Record{Epoch: 2, Incarnation: c.incarnation, Unconfirmed: c.unconfirmed}
		if c.why == ungranted {
			r.mu.record.Incarnation = "former"
		}
		r.followLocked(1)
		got := r.stateLocked(2)
		if leaderless := r.mu.LeaderlessSince != 0; got.State != c.state || !strings.HasPrefix(fmt.Sprint(got.Why), cmp.Or(c.why, "<nil>")) || got.Since != 1 || leaderless != (c.state != status.Led) {
			t.Errorf("%+v: %+v, leaderless is %t", c, got, leaderless)
		}
	}
}

// TestAPauseIsShownSinceItBegan, and what follows it since its end, however long no one has led.
func TestAPauseIsShownSinceItBegan(t *testing.T) {
	t.Parallel()
	now := time.Hour
	r, c := resourceElsewhere("w", &now)
	r.mu.observation, r.mu.LeaderlessSince, r.mu.freeSince = elector.Observation{State: elector.Freed}, time.Minute, time.Minute
	r.mu.ended(c)
	want := func(state status.State, since time.Duration) {
		t.Helper()
		if got := r.stateLocked(now); got.State != state || got.Since != since {
			t.Errorf("it is %v since %v, want %v since %v", got.State, got.Since, state, since)
		}
	}
	want(status.Absent, time.Minute)
	r.mu.shows(fencing.InForce{Paused: true, PausedFor: 10 * time.Minute}, now)
	want(status.Paused, 50*time.Minute)
	r.mu.shows(fencing.InForce{}, now)
	want(status.Absent, time.Hour)
}

// blockedFence is a Fence whose grant is blocked by some of these.
type blockedFence struct {
	Fence
	by       *[]string
	followed chan context.Context
}

// freeFence is one whose grants nothing blocks.
var freeFence = blockedFence{by: new([]string)}

func (f blockedFence) BlockedBy() []string { return *f.by }

func (f blockedFence) AwaitUnblocked(ctx context.Context) error {
	f.followed <- ctx
	<-ctx.Done()
	return ctx.Err()
}

// blockedError is the error of its grant.
type blockedError struct{ error }

func (blockedError) BlockedBy() []string { return nil }

// TestWhatBlocksAGrantIsFollowedUntilTheNextOne, although others have the lease for longer than the pause. Of what blocked the
// grant, that is named which is left. Nothing is followed once someone leads.
func TestWhatBlocksAGrantIsFollowedUntilTheNextOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Minute
		r, c := resourceElsewhere("w", &now)
		by := []string{"one", "two"}
		f := blockedFence{by: &by, followed: make(chan context.Context)}
		c.fence, r.mu.fence, r.mu.record.Incarnation = f, f, "former"
		c.add(nil, member{campaigns: true})
		r.followLocked(1)
		c.ungranted, c.tryAt = blockedError{errors.New("blocked by one and two")}, now+time.Second
		c.awaitUnblockedLocked()
		ctx := <-f.followed
		by = []string{"two"}
		time.Sleep(time.Hour)
		if ctx.Err() != nil {
			t.Error("nobody looks after the pause")
		}
		if got := r.stateLocked(2); got.State != status.Blocked || !strings.HasSuffix(got.Why.Error(), "blocked: two") {
			t.Errorf("%+v", got)
		}
		c.liveness.unresponsive, r.mu.observation = true, elector.Observation{State: elector.Freed}
		if got := r.stateLocked(2); got.State != status.Blocked {
			t.Errorf("the worker, which is silent by now, would not lead at its next write: %+v", got)
		}
		by = nil
		if got := r.stateLocked(2); got.State != status.Idle {
			t.Errorf("nothing is in its way any more: %+v", got)
		}
		c.learn(fencing.Record{Epoch: 3, Worker: "leader", Incarnation: "elsewhere"})
		synctest.Wait()
		if ctx.Err() == nil || c.requests.any() {
			t.Error("what blocked the grant is followed although somebody leads")
		}
	})
}

// TestWhoSharesATokenHidesNoLeader: the leader of a token is at another proxy, and a worker here that brings the same
// token has not been granted a share in its epoch, because of an order for example.
func TestWhoSharesATokenHidesNoLeader(t *testing.T) {
	t.Parallel()
	now := time.Minute
	r, c := resourceElsewhere("barred", &now)
	c.incarnation, c.token = "elsewhere", 5
	c.learn(r.mu.record)
	r.followLocked(now)
	if st := r.summaryLocked(); r.leaderLocked() != status.LeaderElsewhere || st.State != status.Led || c.Status().Epoch != 0 {
		t.Errorf("%+v, and it has epoch %d", st, c.Status().Epoch)
	}
	c.hasEpoch(2)
	c.publishLocked(now)
	if who := r.leaderLocked(); who != status.LeaderNone {
		t.Errorf("with a share in the epoch, it cannot write, and the leader is %d", who)
	}
	r.mu.record.Worker = "barred"
	c.leadership = leadership{}
	c.publishLocked(now)
	if who := r.leaderLocked(); who != status.LeaderNone {
		t.Errorf("the epoch was granted to it, and it cannot write, and the leader is %d", who)
	}
}

// presenceAs is the presence of a proxy that has this id.
type presenceAs string

func (id presenceAs) PresenceID() string { return string(id) }

func (presenceAs) Gone(context.Context, string, string) (bool, error) { return false, nil }

// source is a lease service that has a name only.
type source struct{ elector.Provider }

func (source) Source() string { return "test" }

// resourceElsewhere is a resource that a worker at another proxy leads, with a candidacy here.
func resourceElsewhere(worker string, now *time.Duration) (*resource, *Candidacy) {
	e := &Elections{log: zap.NewNop(), cfg: Config{
		Now: func() time.Duration { return *now }, Observe: func(Event) {}, Settings: func(string, string) Settings { return Settings{} },
	}}
	r := newResource(e, resourceKey{}, source{}, freeFence, nil)
	c := newCandidacy(r, nil, fencing.JoinRequest{Worker: worker}, history{incarnation: "here"})
	r.mu.add(c)
	r.mu.observation = elector.Observation{State: elector.Held, Incarnation: "elsewhere"}
	r.mu.record = fencing.Record{Epoch: 2, Worker: "leader", Incarnation: "elsewhere"}
	return r, c
}

// TestAFormerLeaderIsForgottenWhenAnotherLeads: a takeover is measured from the end of the last
// leader, and not from the end of one that this proxy notices only now.
func TestAFormerLeaderIsForgottenWhenAnotherLeads(t *testing.T) {
	t.Parallel()
	now := time.Minute
	r, c := resourceElsewhere("former", &now)
	r.mu.holder, c.lastLed = c, time.Second
	r.vacatedLocked(c)
	now = time.Hour
	r.leaseObserved(elector.Observation{State: elector.Freed})
	if r.mu.LastLed != time.Hour {
		t.Errorf("the last leader was last confirmed at %v, want 1h", r.mu.LastLed)
	}
}

// TestAFollowersTroubleIsThatAnotherLeads: what the lease service answered before that is over.
func TestAFollowersTroubleIsThatAnotherLeads(t *testing.T) {
	t.Parallel()
	for worker, want := range map[string]*fencing.Trouble{"follower": nil, "leader": sameWorker} {
		var now time.Duration
		r, c := resourceElsewhere(worker, &now)
		c.leaseAnswered(&elector.DeniedError{Answer: "403"}, 0)
		if got := c.Trouble(); got != want {
			t.Errorf("%s: %+v, want %+v", worker, got, want)
		}
		r.leaseObserved(elector.Observation{State: elector.Freed})
		if got := c.Trouble(); got == nil || !strings.Contains(got.Problem, "403") {
			t.Errorf("%s, and nobody leads: %+v", worker, got)
		}
		c.held = holding{lease: &elector.Lease{}, granted: true, trusted: -1}
		r.mu.holder = c
		if got := r.stateLocked(0); got.State != status.Unknown || !strings.Contains(got.Why.Error(), "403") {
			t.Errorf("%s, whose lease is not confirmed: %+v", worker, got)
		}
	}
}

// TestAServiceThatGivesNoOneTheLeaseIsNamed, if that lasts.
func TestAServiceThatGivesNoOneTheLeaseIsNamed(t *testing.T) {
	t.Parallel()
	now := time.Minute
	r, c := resourceElsewhere("waits", &now)
	r.mu.observation, r.mu.record = elector.Observation{State: elector.Freed}, fencing.Record{}
	c.retained = time.Hour // it campaigns
	c.leaseAnswered(errors.New("403 permission denied"), now)
	if got := r.stateLocked(now + servedWithin - 1); got.State != status.Electing || got.Why != nil {
		t.Errorf("at first: %+v", got)
	}
	if got := r.stateLocked(now + servedWithin); got.State != status.Blocked || got.Why == nil || !strings.Contains(got.Why.Error(), "Test has answered only with errors for 5s (403 permission denied)") {
		t.Errorf("when it lasts: %+v", got)
	}
	c.leaseAnswered(nil, now)
	if got := r.stateLocked(now + servedWithin); got.Why != nil {
		t.Errorf("when it is over: %+v", got)
	}
}

// TestWhoSharesATokenHoldsTheResource when another one that does has left, and the resource is led.
func TestWhoSharesATokenHoldsTheResource(t *testing.T) {
	t.Parallel()
	leads, lapsed := fencing.Status{Role: fencing.Leader}, fencing.Status{Role: fencing.Follower, Lapsed: true}
	for name, c := range map[string]struct {
		incarnation string
		status      fencing.Status
		granted     bool
		holds, led  bool
	}{
		"it leads":                      {"token:1:5", leads, true, true, true},
		"it has lapsed":                 {"token:1:5", lapsed, true, true, false},
		"it has never been granted one": {"token:1:5", lapsed, false, false, false},
		"it leads by another token":     {"token:1:4", leads, true, false, false},
	} {
		now := time.Minute
		r, leaves := resourceElsewhere("leaves", &now)
		leaves.incarnation = "token:1:5"
		stays := newCandidacy(r, nil, fencing.JoinRequest{Worker: "stays"}, history{incarnation: c.incarnation})
		stays.current.Store(&c.status)
		stays.epoch, stays.held = 1, holding{lease: &elector.Lease{}, granted: c.granted}
		r.mu.add(stays)
		r.mu.holder = leaves
		r.mu.record = fencing.Record{}
		r.mu.Follow(false, time.Second) // as when the one that leaves lapsed
		r.vacatedLocked(leaves)
		if (r.mu.holder == stays) != c.holds || (r.mu.LedSince != 0) != c.led || (r.mu.LeaderlessSince == 0) != c.led {
			t.Errorf("%s: it is held: %t, and %+v", name, r.mu.holder != nil, r.mu.History)
		}
	}
}

// TestTheResourceIsLedByAnyThatSharesTheToken: the holder has lapsed, and another one leads.
func TestTheResourceIsLedByAnyThatSharesTheToken(t *testing.T) {
	t.Parallel()
	for name, incarnation := range map[string]string{"by the same token": "token:1:5", "by another token": "token:1:4"} {
		now := time.Minute
		r, holds := resourceElsewhere("holds", &now)
		holds.incarnation, holds.token = "token:1:5", 5
		holds.current.Store(&fencing.Status{Role: fencing.Follower, Lapsed: true})
		other := newCandidacy(r, nil, fencing.JoinRequest{Worker: "other"}, history{incarnation: incarnation})
		other.current.Store(&fencing.Status{Role: fencing.Leader})
		r.mu.add(other)
		r.mu.holder = holds
		same := incarnation == holds.incarnation
		if led := r.leaderLocked() == status.LeaderHere; led != same || (r.mu.holder == other) != same {
			t.Errorf("another one leads %s: led: %t", name, led)
		}
	}
}
