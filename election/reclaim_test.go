package election_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
)

// connections are what a server knows of the proxies that are connected to it.
type connections struct {
	mu    sync.Mutex
	gone  map[string]bool   // by presence id
	runs  map[string]string // by incarnation, the presence id of the proxy that has last recorded it
	looks int
}

// end makes the server notice that a proxy is gone.
func (c *connections) end(presenceID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone[presenceID] = true
}

func (c *connections) looked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.looks
}

// connected is the election.Presence of one proxy.
type connected struct {
	*connections
	id string
}

func (c connected) PresenceID() string { return c.id }

func (c connected) Gone(_ context.Context, presenceID, incarnation string) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looks++
	if len(c.gone) == 0 && c.looks%4 == 2 {
		return false, errInjected // which says nothing
	}
	by, moved := c.runs[incarnation]
	return c.gone[presenceID] && (!moved || c.gone[by]), nil
}

// recorder is the election.Handovers of one proxy, which only records.
type recorder struct {
	*offering
	of connected
}

func (r recorder) Record(_ context.Context, candidates func() []fencing.Candidate) error {
	all := candidates()
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	for _, c := range all {
		r.of.runs[c.Incarnation] = r.of.id
	}
	return nil
}

// mortal is one proxy that can be killed.
type mortal struct {
	*election.Elections
	faults faults
	id     string
}

// newMortals starts proxies over one lease service, one database and one server.
func newMortals(t *testing.T, ids ...string) (*model, *connections, []*mortal) {
	m, server := newModel(simulatedTTL), &connections{gone: map[string]bool{}, runs: map[string]string{}}
	var proxies []*mortal
	for _, id := range ids {
		p := &mortal{id: id}
		p.faults.latency = time.Millisecond
		var err error
		p.Elections, err = election.New(election.Config{
			Open: func(context.Context, string) (election.Backend, error) {
				return election.Backend{
					Provider: provider{m, &p.faults},
					Presence: connected{server, p.id}, Handovers: recorder{&offering{model: m}, connected{server, p.id}},
					Fence: func(context.Context, string) (election.Fence, error) {
						return fence{model: m, faults: &p.faults}, nil
					},
				}, nil
			},
			Settings: func(string, string) election.Settings { return election.Settings{TTL: simulatedTTL} },
			Now:      m.now,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			p.faults.down.Store(false)
			if err := p.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		proxies = append(proxies, p)
	}
	return m, server, proxies
}

// enterAs is enter as another role.
func enterAs(t *testing.T, e *election.Elections, worker, user string) *conn {
	t.Helper()
	c := &conn{worker: worker}
	var err error
	if c.Candidacy, err = e.Join(t.Context(), fencing.JoinRequest{Database: "db", User: user, Resource: "billing", Worker: worker}, c); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitFirst(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAWorkerTakesItsOwnLeaseFromAProxyThatIsGone: it connects before the server has noticed that its
// proxy was killed, and its first attempt awaits that.
func TestAWorkerTakesItsOwnLeaseFromAProxyThatIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, server, p := newMortals(t, "one", "two")
		a := enter(t, p[0].Elections, "a")
		wantRole(t, a, fencing.Leader)
		p[0].faults.down.Store(true)
		killed := time.Now()
		time.AfterFunc(100*time.Millisecond, func() { server.end("one") })
		again := enter(t, p[1].Elections, "a")
		took := time.Since(killed)
		wantRole(t, again, fencing.Leader)
		if took > 300*time.Millisecond || again.Status().Epoch != 2 || m.record.Incarnation != again.Incarnation() {
			t.Errorf("it leads after %v under epoch %d", took, again.Status().Epoch)
		}
		if parts := strings.Split(again.Incarnation(), "."); len(parts) != 3 || parts[1] != "two" {
			t.Errorf("the incarnation is %q", again.Incarnation())
		}
		p[0].faults.down.Store(false) // it was alive after all
		time.Sleep(simulatedTTL)
		wantRole(t, a, fencing.Superseded)
		wantRole(t, again, fencing.Leader)
		back := enter(t, p[0].Elections, "a")
		time.Sleep(time.Minute)
		wantRole(t, back, fencing.Follower)
		wantRole(t, again, fencing.Leader)
	})
}

// TestTwoLiveProcessesOfOneNameDoNotTradeTheLease, however long the second one waits, and it has the
// lease soon after the proxy of the first is gone.
func TestTwoLiveProcessesOfOneNameDoNotTradeTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, server, p := newMortals(t, "one", "two")
		a := enter(t, p[0].Elections, "a")
		began := time.Now()
		second := enter(t, p[1].Elections, "a")
		if waited := time.Since(began); waited < 300*time.Millisecond || waited > time.Second {
			t.Errorf("the first attempt of the second process has ended after %v", waited)
		}
		wantRole(t, second, fencing.Follower)
		looks := server.looked()
		time.Sleep(time.Minute)
		if n := server.looked() - looks; n < 60 || n > 200 {
			t.Errorf("%d looks in a minute", n)
		}
		wantRole(t, a, fencing.Leader)
		wantRole(t, second, fencing.Follower)
		if m.record.Epoch != 1 {
			t.Errorf("%d epochs were granted", m.record.Epoch)
		}
		p[0].faults.down.Store(true)
		server.end("one")
		time.Sleep(700 * time.Millisecond)
		wantRole(t, second, fencing.Leader)
	})
}

// TestNoOneTakesTheLeaseOfAnotherWorkerFromAProxyThatIsGone, nor that of another role.
func TestNoOneTakesTheLeaseOfAnotherWorkerFromAProxyThatIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, server, p := newMortals(t, "one", "two")
		wantRole(t, enter(t, p[0].Elections, "a"), fencing.Leader)
		p[0].faults.down.Store(true)
		server.end("one")
		others := []*conn{enter(t, p[1].Elections, "b"), enterAs(t, p[1].Elections, "a", "mallory")}
		time.Sleep(simulatedTTL / 2)
		for _, c := range others {
			wantRole(t, c, fencing.Follower)
		}
		if n := server.looked(); n != 0 {
			t.Errorf("%d looks for a proxy that holds nothing of theirs", n)
		}
		time.Sleep(simulatedTTL)
		if others[0].Status().CanWrite() == others[1].Status().CanWrite() {
			t.Error("nobody leads after the TTL, or two do")
		}
	})
}

// TestADatabaseThatIsUsedAgainKeepsItsConnections: workers connect again and again, each time soon after the last
// one has left. Only when no one has for closeIdleAfter are the database's connections closed, once.
func TestADatabaseThatIsUsedAgainKeepsItsConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var closed, begun atomic.Int32
		m, f := newModel(simulatedTTL), &faults{}
		f.latency = time.Millisecond
		e := newElections(t, m, election.Backend{
			Provider:  provider{m, f},
			Fence:     func(context.Context, string) (election.Fence, error) { return fence{model: m, faults: f}, nil },
			CloseIdle: func() { closed.Add(1) },
			Orders: func(context.Context, int64) (fencing.Ordered, error) {
				begun.Add(1)
				return fencing.Ordered{}, nil
			},
		})
		const times, pause = 40, 100 * time.Millisecond
		for range times {
			c := enter(t, e, "w")
			wantRole(t, c, fencing.Leader)
			c.Leave(c, true)
			time.Sleep(pause)
		}
		if n := closed.Load(); n != 0 {
			t.Errorf("the connections were closed %d times while workers came and went", n)
		}
		if n := int(begun.Load()); n > times/5 {
			t.Errorf("the orders were read %d times in %v", n, times*pause)
		}
		time.Sleep(3 * time.Second)
		if n := closed.Load(); n != 1 {
			t.Errorf("the connections were closed %d times when nobody came any more", n)
		}
		read := begun.Load()
		time.Sleep(3 * time.Second)
		if n := begun.Load(); n != read {
			t.Errorf("the orders were read %d times more", n-read)
		}
	})
}

// TestAProxyThatCannotReachTheDatabaseGivesItsLeasesBack: the lease service would confirm the lease for as long as the
// proxy asks it to. That the orders cannot be read is not enough: something may be locked. A leader whose lease no one else
// took continues under its epoch, and one that was superseded does not come back.
func TestAProxyThatCannotReachTheDatabaseGivesItsLeasesBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		answers, rival bool
	}{{"unreached", false, true}, {"unreached, alone", false, false}, {"locked", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newModel(simulatedTTL)
				var cut atomic.Bool
				near, far := newReaching(t, m, func() bool { return false }, true), newReaching(t, m, cut.Load, c.answers)
				a := enter(t, far, "a")
				wantRole(t, a, fencing.Leader)
				var b *conn
				if c.rival {
					b = enter(t, near, "b")
				}
				cut.Store(true)
				time.Sleep(simulatedTTL + 14*time.Second)
				wantRole(t, a, fencing.Leader)
				time.Sleep(30 * time.Second)
				switch {
				case c.answers:
					wantRole(t, a, fencing.Leader)
					return
				case c.rival:
					wantRole(t, a, fencing.Superseded)
					wantRole(t, b, fencing.Leader)
				default:
					wantRole(t, a, fencing.Follower)
					if err := a.AwaitFirst(t.Context(), time.Minute); err != nil {
						t.Error(err)
					}
					wantRole(t, enter(t, far, "c"), fencing.Follower) // it does not take what it could not use
				}
				cut.Store(false)
				time.Sleep(10 * time.Second)
				if c.rival {
					wantRole(t, a, fencing.Superseded)
					wantRole(t, b, fencing.Leader)
					return
				}
				wantRole(t, a, fencing.Leader)
				if epoch := a.Status().Epoch; epoch != 1 {
					t.Errorf("it came back under epoch %d", epoch)
				}
			})
		})
	}
}

// newReaching starts a proxy that cannot read the orders while cut says so. answers is whether the server answers it then.
func newReaching(t *testing.T, m *model, cut func() bool, answers bool) *election.Elections {
	f := &faults{latency: time.Millisecond}
	hangs := func(ctx context.Context) error {
		if !cut() {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
	return newElections(t, m, election.Backend{
		Provider: provider{m, f},
		Fence:    func(context.Context, string) (election.Fence, error) { return fence{model: m, faults: f}, nil },
		Orders:   func(ctx context.Context, _ int64) (fencing.Ordered, error) { return fencing.Ordered{}, hangs(ctx) },
		Answers:  func(ctx context.Context, _ error) bool { return answers || hangs(ctx) == nil },
	})
}

// full is the fence of a database that grants no epoch while its disk is full.
type full struct {
	fence
	disk *atomic.Bool
}

func (f full) Grant(ctx context.Context, a fencing.Award) (fencing.Epoch, error) {
	if f.disk.Load() {
		return 0, errInjected
	}
	return f.fence.Grant(ctx, a)
}

// TestWhyNoOneIsGrantedAnEpochIsShownUntilSomeoneIs, also between two attempts, and when the last grant is read again.
func TestWhyNoOneIsGrantedAnEpochIsShownUntilSomeoneIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, f := newModel(simulatedTTL), &faults{latency: time.Millisecond}
		var disk atomic.Bool
		e := newElections(t, m, election.Backend{
			Provider: provider{m, f},
			Fence: func(context.Context, string) (election.Fence, error) {
				return full{fence{model: m, faults: f}, &disk}, nil
			},
		})
		a := enter(t, e, "a")
		wantRole(t, a, fencing.Leader)
		disk.Store(true)
		a.Leave(a, true)
		b := enter(t, e, "b")
		shown := func() error { synctest.Wait(); return e.Resources()[0].Reason }
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
			if why := shown(); !errors.Is(why, errInjected) {
				t.Fatalf("after %v the reason is %v", time.Since(began), why)
			}
		}
		disk.Store(false)
		time.Sleep(10 * simulatedTTL)
		wantRole(t, b, fencing.Leader)
		if why := shown(); why != nil {
			t.Errorf("the reason of a resource that is led is %v", why)
		}
	})
}
