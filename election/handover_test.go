package election_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
)

// errOffered is what the fence says to whom a resource is not offered.
var errOffered = &fencing.Refusal{SQLState: fencing.StateNotLeader, Message: "handed over to another worker"}

// offering is a database in memory in which a resource can be offered to one worker.
type offering struct {
	*model

	mu      sync.Mutex
	orders  int64
	worker  string
	under   fencing.Epoch
	begins  time.Duration
	until   time.Duration
	deaf    bool // the proxies do not hear of offers
	refused int  // grants
	stopped []int64
	taken   []int64
	known   []fencing.Candidate
}

// give makes an offer under the present epoch.
func (o *offering) give(worker string, begins, length time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.model.mu.Lock()
	o.under = o.model.record.Epoch
	o.model.mu.Unlock()
	o.orders++
	o.worker, o.begins, o.until = worker, o.now()+begins, o.now()+begins+length
}

func (o *offering) Orders(_ context.Context, after int64) (fencing.Ordered, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.deaf || after >= o.orders {
		return fencing.Ordered{}, nil
	}
	return fencing.Ordered{LastOrder: o.orders, Orders: []fencing.Order{{ID: o.orders, Kind: "handover", Resource: "billing", Worker: o.worker}}}, nil
}

func (o *offering) Offers(context.Context) ([]fencing.Offer, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := o.now(); o.orders > 0 && now < o.until {
		return []fencing.Offer{{Order: o.orders, Resource: "billing", Worker: o.worker, Epoch: o.under, Begins: o.begins - now, Left: o.until - now}}, nil
	}
	return nil, nil
}

func (o *offering) Record(_ context.Context, candidates func() []fencing.Candidate) error {
	all := candidates()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known = slices.Clone(all)
	return nil
}

func (*offering) Elsewhere(context.Context, string, string) ([]string, error) { return nil, nil }

func (o *offering) Stopped(_ context.Context, order int64, _ time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopped = append(o.stopped, order)
	return nil
}

func (o *offering) Taken(_ context.Context, order int64, _ time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken = append(o.taken, order)
	return nil
}

func (*offering) Granted(context.Context, string, fencing.Epoch, fencing.Ending, time.Duration) error {
	return nil
}

// offeringFence refuses grants as the fence does while a resource is offered.
type offeringFence struct {
	fence
	offers *offering
}

func (f offeringFence) Grant(ctx context.Context, a fencing.Award) (fencing.Epoch, error) {
	o := f.offers
	o.mu.Lock()
	o.model.mu.Lock()
	recorded := o.record
	o.model.mu.Unlock()
	left := o.until - o.now()
	bars := o.orders > 0 && left > 0 && a.Worker != o.worker && recorded.Epoch == o.under && recorded.Incarnation != a.Incarnation
	if bars {
		o.refused++
	}
	o.mu.Unlock()
	if bars {
		return 0, &fencing.Barred{Refusal: errOffered, Left: left}
	}
	return f.fence.Grant(ctx, a)
}

// newOffering starts two proxies over one database and one lease service.
func newOffering(t *testing.T) (*offering, []*election.Elections) {
	o := &offering{model: newModel(simulatedTTL)}
	f := &faults{latency: time.Millisecond}
	var proxies []*election.Elections
	for range 2 {
		proxies = append(proxies, newElections(t, o.model, election.Backend{
			Provider: provider{o.model, f},
			Fence: func(context.Context, string) (election.Fence, error) {
				return offeringFence{fence: fence{model: o.model, faults: f}, offers: o}, nil
			},
			Orders:    o.Orders,
			Handovers: o,
		}))
	}
	return o, proxies
}

// enter lets a worker campaign, and waits until it has made its first attempt.
func enter(t *testing.T, e *election.Elections, worker string) *conn {
	t.Helper()
	return enterWith(t, e, fencing.JoinRequest{Worker: worker})
}

// enterWith is enter with more of the request.
func enterWith(t *testing.T, e *election.Elections, req fencing.JoinRequest) *conn {
	t.Helper()
	req.Database, req.User, req.Resource = "db", "app", "billing"
	c := &conn{worker: req.Worker}
	var err error
	if c.Candidacy, err = e.Join(t.Context(), req, c); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitFirst(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestOnlyTheChosenWorkerTakesAnOffer: the leader continues until its time, and the worker to whom the
// lease is offered leads at once, although others of both proxies wait.
func TestOnlyTheChosenWorkerTakesAnOffer(t *testing.T) {
	t.Parallel()
	for range 20 { // who comes first to a free lease depends on chance
		synctest.Test(t, func(t *testing.T) {
			o, p := newOffering(t)
			a := enter(t, p[0], "a")
			others := []*conn{enter(t, p[0], "c"), enter(t, p[1], "d"), enter(t, p[1], "e")}
			b := enter(t, p[1], "b")
			o.give("b", 1500*time.Millisecond, 5*time.Second)
			time.Sleep(1400 * time.Millisecond)
			wantRole(t, a, fencing.Leader)
			time.Sleep(500 * time.Millisecond)
			wantRole(t, b, fencing.Leader)
			wantRole(t, a, fencing.Superseded)
			for _, c := range others {
				wantRole(t, c, fencing.Follower)
			}
			if b.Status().Epoch != 2 || o.refused != 0 || !slices.Equal(o.stopped, []int64{1}) || !slices.Equal(o.taken, []int64{1}) {
				t.Errorf("the chosen worker has epoch %d, %d grants were refused, stopped %d, taken %d", b.Status().Epoch, o.refused, o.stopped, o.taken)
			}
		})
	}
}

// TestAnOfferThatIsNotTakenEnds: the chosen worker is not there. No one leads while the offer lasts, and
// someone does when it has run out.
func TestAnOfferThatIsNotTakenEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, p := newOffering(t)
		all := []*conn{enter(t, p[0], "a"), enter(t, p[0], "c"), enter(t, p[1], "d")}
		o.give("b", time.Second, 5*time.Second)
		leaders := func() (n int) {
			synctest.Wait()
			for _, c := range all {
				if c.Status().CanWrite() {
					n++
				}
			}
			return n
		}
		time.Sleep(2500 * time.Millisecond)
		for range 30 {
			if leaders() != 0 {
				t.Fatal("somebody leads while the resource is offered to another worker")
			}
			time.Sleep(100 * time.Millisecond)
		}
		candidate := enter(t, p[1], "f")
		wantRole(t, candidate, fencing.Follower)
		time.Sleep(1500 * time.Millisecond)
		all = append(all, candidate)
		if leaders() != 1 {
			t.Error("nobody leads after the offer has run out")
		}
		if o.refused != 0 {
			t.Errorf("the fence had to refuse %d grants", o.refused)
		}
	})
}

// TestAnOfferThatAProxyHasNotSeen: the fence refuses, and the candidacy leaves the lease alone until
// the offer runs out. A client that waits to lead continues to wait.
func TestAnOfferThatAProxyHasNotSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, p := newOffering(t)
		o.mu.Lock()
		o.deaf = true
		o.mu.Unlock()
		a := enter(t, p[0], "a")
		c := enter(t, p[1], "c")
		waited := make(chan error, 1)
		go func() { waited <- c.AwaitLeader(t.Context()) }()
		o.give("b", time.Second, 5*time.Second)
		a.Leave(a, false)
		time.Sleep(3 * time.Second)
		wantRole(t, c, fencing.Follower)
		if o.refused != 1 {
			t.Errorf("the fence has refused %d grants, want one", o.refused)
		}
		if err := <-waited; err != nil {
			t.Errorf("waiting to lead: %v", err)
		}
		if now := o.now(); now < o.until {
			t.Errorf("it leads %v before the offer has run out", o.until-now)
		}
	})
}

// TestTheChosenWorkerTakesALeaseThatIsVacantBySilence, which others take on demand only.
func TestTheChosenWorkerTakesALeaseThatIsVacantBySilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, p := newOffering(t)
		a := &conn{worker: "a"}
		var err error
		a.Candidacy, err = p[0].Join(t.Context(), fencing.JoinRequest{Database: "db", User: "app", Resource: "billing", Worker: "a", WorkerTimeout: time.Second}, a)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.AwaitFirst(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		wantRole(t, a, fencing.Leader)
		b := enter(t, p[1], "b")
		time.Sleep(5 * time.Second)
		wantRole(t, b, fencing.Follower)
		o.give("b", time.Second, 5*time.Second)
		time.Sleep(2 * time.Second)
		wantRole(t, b, fencing.Leader)
	})
}

// TestWhoCampaignsIsRecorded, and no longer when all have left.
func TestWhoCampaignsIsRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, p := newOffering(t)
		recorded := func(want ...string) {
			t.Helper()
			time.Sleep(1100 * time.Millisecond)
			synctest.Wait()
			o.mu.Lock()
			defer o.mu.Unlock()
			var got []string
			for _, c := range o.known {
				got = append(got, c.Worker)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("recorded are %q, want %q", got, want)
			}
		}
		a, b := enter(t, p[0], "a"), enter(t, p[0], "b")
		observer := &conn{worker: "o"}
		var err error
		observer.Candidacy, err = p[0].Join(t.Context(), fencing.JoinRequest{Database: "db", User: "app", Resource: "billing", Worker: "o", Campaign: fencing.CampaignOff}, observer)
		if err != nil {
			t.Fatal(err)
		}
		recorded("a", "b")
		a.Leave(a, false)
		recorded("b")
		b.Leave(b, false)
		observer.Leave(observer, false)
		recorded()
	})
}
