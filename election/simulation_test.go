package election_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

// These simulations run whole proxies, with their real loops, on a model of the lease
// service and the fence and with a simulated clock. Requests fail at random, and workers
// come, fall silent and go at random, so that a candidacy makes every transition that it
// can make. A transition that it must not make panics.

const (
	simulatedTTL  = 3 * time.Second
	simulatedTime = 2 * time.Minute
)

// simulation is some workers that compete for one resource through two proxies.
type simulation struct {
	*testing.T
	model   *model
	proxies []*election.Elections
	faults  faults
	stopped chan struct{} // closed when no more workers are to come
	workers sync.WaitGroup
	stop    func() // lets no more workers come, and waits for those that there are

	mu    sync.Mutex
	conns map[*conn]struct{}
	kinds map[election.EventKind]int // number of events
}

// conn is a connection of a worker.
type conn struct {
	fencing.Candidacy
	worker string
	reads  atomic.Uint64
	last   fencing.Status // as of the last check
}

func (c *conn) Activity() (uint64, bool) { return c.reads.Load(), false }
func (c *conn) StatusChanged()           {}
func (c *conn) EpochEnds(fencing.Drain)  {}

func TestSimulatedCandidacies(t *testing.T) {
	t.Parallel()
	kinds := map[election.EventKind]int{}
	for range 12 {
		synctest.Test(t, func(t *testing.T) {
			s := newSimulation(t, kinds, nil)
			s.disturb()
			s.calm()
		})
	}
	for kind := election.EventCampaign; kind <= election.EventFailed; kind++ {
		if kinds[kind] == 0 {
			t.Errorf("the simulations saw no event %q", kind)
		}
	}
}

// TestSimulatedCandidaciesUnderFalseVerdicts: whatever is said of the workers' liveness, no one
// leads who must not.
func TestSimulatedCandidaciesUnderFalseVerdicts(t *testing.T) {
	t.Parallel()
	kinds := map[election.EventKind]int{}
	for range 12 {
		synctest.Test(t, func(t *testing.T) {
			var truth atomic.Bool
			s := newSimulation(t, kinds, func(string) bool { return !truth.Load() && rand.N(4) == 0 })
			s.disturb()
			truth.Store(true) // someone has to lead in the end
			s.calm()
		})
	}
	for _, kind := range []election.EventKind{election.EventGranted, election.EventReleased, election.EventFalseAlarm} {
		if kinds[kind] == 0 {
			t.Errorf("the simulations saw no event %q", kind)
		}
	}
}

func newSimulation(t *testing.T, kinds map[election.EventKind]int, falsify func(string) bool) *simulation {
	s := &simulation{T: t, model: newModel(simulatedTTL), stopped: make(chan struct{}), conns: map[*conn]struct{}{}, kinds: kinds}
	s.stop = sync.OnceFunc(func() { close(s.stopped); s.workers.Wait() })
	t.Cleanup(func() {
		s.stop()
		for _, e := range s.proxies {
			_ = e.Close(context.Background()) // finish has checked the error
		}
	})
	s.faults.latency = 40 * time.Millisecond
	s.faults.percent.Store(10)
	set := election.Settings{TTL: simulatedTTL, WorkerTimeout: 2 * time.Second, Linger: 500 * time.Millisecond}
	for range 2 {
		e, err := election.New(election.Config{
			Open: func(context.Context, string) (election.Backend, error) {
				return election.Backend{
					Provider: provider{s.model, &s.faults},
					Fence: func(context.Context, string) (election.Fence, error) {
						return fence{model: s.model, faults: &s.faults}, nil
					},
				}, nil
			},
			Settings: func(string, string) election.Settings { return set },
			Observe:  s.observe,
			Now:      s.model.now,
			Falsify:  falsify,
		})
		if err != nil {
			t.Fatal(err)
		}
		s.proxies = append(s.proxies, e)
	}
	return s
}

func (s *simulation) observe(e election.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds[e.Kind]++
}

// disturb lets workers come and go under faults, and checks what must always hold.
func (s *simulation) disturb() {
	outage := s.model.now() // its end
	for i := range 4 {
		s.workers.Go(func() { s.worker(i) })
	}
	for s.model.now() < time.Hour+simulatedTime {
		time.Sleep(rand.N(100 * time.Millisecond))
		synctest.Wait()
		s.check()
		switch now := s.model.now(); {
		case now < outage:
		case rand.N(200) == 0:
			outage = now + rand.N(3*simulatedTTL)
			s.faults.down.Store(true)
		default:
			s.faults.down.Store(false)
		}
	}
	s.faults.down.Store(false)
	s.faults.percent.Store(0)
}

// worker connects again and again, under another id each time.
func (s *simulation) worker(i int) {
	for n := 0; ; n++ {
		select {
		case <-s.stopped:
			return
		case <-time.After(rand.N(2 * time.Second)):
		}
		s.live(s.proxies[rand.N(len(s.proxies))], fmt.Sprintf("worker-%d-%d", i, n))
	}
}

// live is the life of one worker's connection: it is active, with pauses that may be
// longer than its timeout, until its time is over or it is superseded.
func (s *simulation) live(e *election.Elections, worker string) {
	c := &conn{worker: worker}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var err error
	c.Candidacy, err = e.Join(ctx, fencing.JoinRequest{
		Database: "db", User: "app", Resource: "billing", Worker: worker,
		Client: netip.MustParseAddr("192.0.2.1"), WorkerTimeout: -1,
	}, c)
	if err != nil {
		return // by an injected fault
	}
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	for range rand.N(40) {
		if c.Status().Role == fencing.Superseded {
			break
		}
		c.reads.Add(1)
		s.use(c)
		pause := rand.N(time.Second)
		if rand.N(8) == 0 {
			pause = rand.N(8 * time.Second)
		}
		time.Sleep(pause)
	}
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	c.Leave(c, rand.N(2) == 0)
}

// use waits as a statement of the client may.
func (s *simulation) use(c *conn) {
	ctx, cancel := context.WithTimeout(context.Background(), rand.N(3*time.Second))
	defer cancel()
	switch rand.N(6) {
	case 0:
		c.CampaignOnDemand(ctx)
	case 1:
		_ = c.AwaitLeader(ctx)
	case 2:
		_ = c.AwaitConfirmed(ctx)
	case 3:
		_ = c.AwaitFirst(ctx, time.Second)
	case 4:
		c.CheckSuperseded(ctx)
	}
}

// check fails the test if a status contradicts the model or an earlier status.
func (s *simulation) check() {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		now, before := *c.Status(), c.last
		c.last = now
		switch {
		case before.Epoch != 0 && now.Epoch != before.Epoch:
			s.Fatalf("%s: epoch %d became %d", c.worker, before.Epoch, now.Epoch)
		case before.Role == fencing.Superseded && now.Role != fencing.Superseded:
			s.Fatalf("%s: superseded became %v", c.worker, now.Role)
		case now.Role == fencing.Leader && now.Epoch == 0, now.Role != fencing.Follower && now.Lapsed:
			s.Fatalf("%s: %+v", c.worker, now)
		case now.Role == fencing.Leader:
			s.mayLead(c, now.Epoch)
		}
	}
}

// mayLead fails the test unless the model knows c's lease and its epoch.
func (s *simulation) mayLead(c *conn, epoch fencing.Epoch) {
	s.Helper()
	m := s.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lease.State != elector.Held || m.lease.Incarnation != c.Incarnation() {
		s.Fatalf("%s leads without the lease: %+v", c.worker, m.lease)
	}
	if m.record.Epoch != epoch || m.record.Incarnation != c.Incarnation() {
		s.Fatalf("%s leads under epoch %d, and the fence has %+v", c.worker, epoch, m.record)
	}
}

// calm checks that without faults a new worker leads before long, and that the lease is
// free when the proxies have been closed.
func (s *simulation) calm() {
	s.stop()
	c := &conn{worker: "last"}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	c.Candidacy, err = s.proxies[0].Join(ctx, fencing.JoinRequest{Database: "db", User: "app", Resource: "billing", Worker: c.worker}, c)
	if err != nil {
		s.Fatal(err)
	}
	if err := c.AwaitLeader(ctx); err != nil {
		s.Fatalf("the last worker does not lead although everything works: %v", err)
	}
	for _, e := range s.proxies {
		if err := e.Close(ctx); err != nil {
			s.Fatal(err)
		}
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if s.model.lease.State == elector.Held {
		s.Errorf("everybody has ended, and %s still holds the lease", s.model.lease.Incarnation)
	}
}

// barringFence refuses grants by an operator's order.
type barringFence struct {
	fence
	order atomic.Pointer[fencing.Barred] // nil: none
	asked chan struct{}                  // receives for each refused grant, before it is answered
	goOn  chan struct{}                  // closed when refused grants are answered
}

func (f *barringFence) Grant(ctx context.Context, a fencing.Award) (fencing.Epoch, error) {
	if order := f.order.Load(); order != nil {
		f.asked <- struct{}{}
		<-f.goOn
		return 0, order
	}
	return f.fence.Grant(ctx, a)
}

// joinBarred lets a worker join a resource whose fence bars it. give makes the proxy see
// another order.
func joinBarred(t *testing.T, order *fencing.Barred) (f *barringFence, c *conn, give func()) {
	m := newModel(simulatedTTL)
	f = &barringFence{fence: fence{model: m, faults: &faults{latency: time.Millisecond}}, asked: make(chan struct{}, 100), goOn: make(chan struct{})}
	f.order.Store(order)
	var last atomic.Int64
	e := newElections(t, m, election.Backend{
		Provider: provider{m, f.faults},
		Fence:    func(context.Context, string) (election.Fence, error) { return f, nil },
		Orders: func(_ context.Context, after int64) (fencing.Ordered, error) {
			if n := last.Load(); after < n {
				return fencing.Ordered{LastOrder: n, Orders: []fencing.Order{{ID: n, Kind: "resume", Resource: "r"}}}, nil
			}
			return fencing.Ordered{LastOrder: last.Load()}, nil
		},
	})
	c = &conn{worker: "w"}
	var err error
	if c.Candidacy, err = e.Join(t.Context(), fencing.JoinRequest{Database: "d", Resource: "r", Worker: "w", User: "u"}, c); err != nil {
		t.Fatal(err)
	}
	return f, c, func() { last.Add(1) }
}

// wantRole compares the role at a time at which nothing is in progress.
func wantRole(t *testing.T, c *conn, want fencing.Role) {
	t.Helper()
	synctest.Wait()
	if got := c.Status().Role; got != want {
		t.Errorf("the worker is a %v, want a %v", got, want)
	}
}

func TestBarredWorkerTriesAgainWhenTheBarEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refusal := &fencing.Refusal{SQLState: fencing.StateNotLeader, Message: "barred"}
		f, c, _ := joinBarred(t, &fencing.Barred{Refusal: refusal, Left: 5 * time.Second})
		close(f.goOn)
		if err := c.AwaitLeader(t.Context()); !errors.Is(err, refusal) {
			t.Errorf("waiting to lead: %v, want the order", err)
		}
		f.order.Store(nil)
		time.Sleep(4 * time.Second)
		wantRole(t, c, fencing.Follower)
		if n := len(f.asked); n != 1 || c.Status().Barred != refusal {
			t.Errorf("asked for %d grants, and the status shows %v", n, c.Status().Barred)
		}
		time.Sleep(2 * time.Second)
		wantRole(t, c, fencing.Leader)
		if c.Status().Barred != nil {
			t.Errorf("the leader's status shows %v", c.Status().Barred)
		}
	})
}

// TestAnOrderDuringAGrantCounts ends a bar after the fence has refused a grant because of
// it, and before the refusal has arrived.
func TestAnOrderDuringAGrantCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, c, give := joinBarred(t, &fencing.Barred{Refusal: &fencing.Refusal{SQLState: fencing.StateNotLeader}})
		<-f.asked
		f.order.Store(nil)
		time.Sleep(2 * time.Second)
		give()
		time.Sleep(2 * time.Second)
		close(f.goOn)
		time.Sleep(time.Second)
		wantRole(t, c, fencing.Leader)
	})
}
