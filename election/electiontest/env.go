package electiontest

import (
	"context"
	"crypto/rand"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/boottime"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// resource is the resource that all cases compete for.
const resource = "billing"

// testEnv is one lease service, one database, and the proxies that use them.
type testEnv struct {
	*testing.T
	service *Service
	server  *pgtest.Server
	db      string
}

func newTestEnv(t *testing.T, open func(*testing.T, *pgtest.Server, string) *Service) *testEnv {
	server := pgtest.Shared(t)
	w := &testEnv{T: t, server: server, db: server.Database(t)}
	w.service = open(t, server, w.db)
	return w
}

// provider returns the service as the named proxy sees it.
func (w *testEnv) provider(name string) (*faultyProvider, *Link) {
	w.Helper()
	link := NewLink(w.T, w.service.Addr)
	return newFaultyProvider(Reached(w.T, w.service.Provider(w.T, name, link))), link
}

// Reached waits until a provider has observed something, and returns it. Before that its client has not begun, and on a
// busy machine a request may end with an error.
func Reached(t *testing.T, p elector.Provider) elector.Provider {
	t.Helper()
	eventually(t, "the lease service is reached", patience, func() bool {
		_, err := p.Watch(within(t, patience), resource, elector.Observation{})
		return err == nil
	})
	return p
}

// bid is a request for a lease that does not expire before its case has ended.
func (w *testEnv) bid(worker string) elector.AcquireRequest {
	bid := elector.AcquireRequest{Resource: resource, Worker: worker, Incarnation: worker + "-1", TTL: long}
	if w.service.Token != nil {
		bid.Token = w.service.Token(worker)
		bid.Incarnation = fencing.TokenIncarnation(w.service.Generation(), bid.Token)
	}
	return bid
}

// briefBid is a request for a lease that expires soon if no one renews it.
func (w *testEnv) briefBid(worker string) elector.AcquireRequest {
	bid := w.bid(worker)
	bid.TTL = w.service.TTL
	return bid
}

// grants returns the ledger: the workers that were granted an epoch, in order.
func (w *testEnv) grants() []string {
	w.Helper()
	conn := w.server.Connect(w.T, pgtest.Control, w.db)
	rows, err := conn.Query(within(w.T, patience), "SELECT worker FROM fencepost.grants WHERE resource = $1 ORDER BY epoch", resource)
	if err != nil {
		w.Fatal(err)
	}
	defer rows.Close()
	var workers []string
	for rows.Next() {
		var worker string
		if err := rows.Scan(&worker); err != nil {
			w.Fatal(err)
		}
		workers = append(workers, worker)
	}
	if err := rows.Err(); err != nil {
		w.Fatal(err)
	}
	return workers
}

// proxy is one Elections, with helpers to disturb it.
type proxy struct {
	w *testEnv
	*election.Elections
	provider *faultyProvider
	link     *Link
	gate     *gate
	skipped  atomic.Int64 // how far the proxy's clock is ahead of this machine's

	mu     sync.Mutex
	events []election.Event
	stores []*store.Store
}

// proxy starts a proxy. Its leases last long, so that none expires on a busy machine; a
// case in which one must expire passes expiring.
func (w *testEnv) proxy(name string, change ...func(*election.Settings)) *proxy {
	w.Helper()
	set := election.Settings{TTL: long, WorkerTimeout: 0, Tokens: w.service.Token != nil}
	for _, f := range change {
		f(&set)
	}
	p := &proxy{w: w, gate: newGate()}
	p.provider, p.link = w.provider(name)
	log := zaptest.NewLogger(w.T, zaptest.Level(zap.DebugLevel)).Named(name)
	e, err := election.New(election.Config{
		Open: func(ctx context.Context, db string) (election.Backend, error) {
			return w.backend(ctx, db, p)
		},
		Settings: func(string, string) election.Settings { return set },
		Observe:  p.observe,
		Logger:   log,
		Now:      func() time.Duration { return boottime.Now() + time.Duration(p.skipped.Load()) },
	})
	if err != nil {
		w.Fatal(err)
	}
	p.Elections = e
	w.Cleanup(func() {
		p.gate.open()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			w.Logf("close proxy %s: %v", name, err) // expected if its link was cut
		}
	})
	return p
}

func (w *testEnv) backend(ctx context.Context, db string, p *proxy) (election.Backend, error) {
	fences, err := fence.Open(ctx, fence.Config{
		Config: store.Config{Address: w.server.Addr(), Database: db, User: pgtest.Control, PresenceID: rand.Text()}, Grace: 100 * time.Millisecond,
	})
	if err != nil {
		return election.Backend{}, err
	}
	p.mu.Lock()
	p.stores = append(p.stores, fences.Store)
	p.mu.Unlock()
	provider := p.provider
	var bearers elector.TokenProvider
	if of, ok := provider.Provider.(elector.TokenProvider); ok {
		bearers = faultyBearers{provider, of}
	}
	return election.Backend{
		Provider: provider, Tokens: bearers, Presence: fences,
		Close: fences.Close,
		Fence: func(ctx context.Context, name string) (election.Fence, error) {
			f, err := fences.Fence(ctx, name)
			if err != nil {
				return nil, err
			}
			return &gatedFence{Fence: f, gate: p.gate}, nil
		},
	}, nil
}

// faultyBearers is a faultyProvider to which workers bring tokens.
type faultyBearers struct {
	*faultyProvider
	of elector.TokenProvider
}

func (b faultyBearers) Generation(ctx context.Context) (int64, error) { return b.of.Generation(ctx) }

// skip lets time pass by the proxy's clock.
func (p *proxy) skip(d time.Duration) { p.skipped.Add(int64(d)) }

func (p *proxy) observe(e election.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, e)
}

func (p *proxy) count(kind election.EventKind) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, e := range p.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// granted returns the last grant of an epoch.
func (p *proxy) granted() (last election.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		if e.Kind == election.EventGranted {
			last = e
		}
	}
	return last
}

// gate controls a proxy's grants, and can lose their responses.
type gate struct {
	mu      sync.Mutex
	closed  chan struct{} // not nil while grants wait; closed to let them continue
	waiting chan struct{} // closed when the first one waits
	lose    bool
}

func newGate() *gate { return &gate{} }

// close makes grants wait. The returned channel is closed when the first one does.
func (g *gate) close() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed, g.waiting = make(chan struct{}), make(chan struct{})
	return g.waiting
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		close(g.closed)
		g.closed = nil
	}
}

// loseNext loses the response of the next grant.
func (g *gate) loseNext() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lose = true
}

type gatedFence struct {
	*fence.Fence
	gate *gate
}

var errLostAnswer = context.DeadlineExceeded

func (f *gatedFence) Grant(ctx context.Context, a fencing.Award) (fencing.Epoch, error) {
	f.gate.mu.Lock()
	closed, waiting := f.gate.closed, f.gate.waiting
	if closed != nil && waiting != nil {
		f.gate.waiting = nil
		close(waiting)
	}
	f.gate.mu.Unlock()
	if closed != nil {
		<-closed // however long that takes: the proxy itself is stalled
	}
	epoch, err := f.Fence.Grant(ctx, a)
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	if f.gate.lose && err == nil {
		f.gate.lose = false
		return 0, errLostAnswer
	}
	return epoch, err
}

// conn is a connection of a worker. The server is working for it, which counts as
// activity, until hush.
type conn struct {
	fencing.Candidacy
	w       *testEnv
	reads   atomic.Uint64
	owed    atomic.Bool
	changes atomic.Int64
}

func (c *conn) Activity() (uint64, bool) { return c.reads.Load(), c.owed.Load() }
func (c *conn) StatusChanged()           { c.changes.Add(1) }
func (c *conn) EpochEnds(fencing.Drain)  {}

// hush makes the connection inactive, speak makes it active for a moment, and wake
// permanently.
func (c *conn) hush()  { c.owed.Store(false) }
func (c *conn) speak() { c.reads.Add(1) }
func (c *conn) wake()  { c.speak(); c.owed.Store(true) }

func (w *testEnv) claim(worker string) fencing.JoinRequest {
	req := fencing.JoinRequest{
		Database: w.db, User: pgtest.App, Resource: resource, Worker: worker,
		Client: netip.MustParseAddr("192.0.2.1"), WorkerTimeout: -1,
	}
	if w.service.Token != nil {
		req.Token = w.service.Token(worker)
	}
	return req
}

// join connects a worker.
func (p *proxy) join(worker string, change ...func(*fencing.JoinRequest)) *conn {
	p.w.Helper()
	c, err := p.tryJoin(worker, change...)
	if err != nil {
		p.w.Fatalf("worker %s joins: %v", worker, err)
	}
	return c
}

func (p *proxy) tryJoin(worker string, change ...func(*fencing.JoinRequest)) (*conn, error) {
	req := p.w.claim(worker)
	for _, f := range change {
		f(&req)
	}
	c := &conn{w: p.w}
	c.owed.Store(true)
	candidacy, err := p.Join(within(p.w.T, patience), req, c)
	c.Candidacy = candidacy
	return c, err
}

// first joins and waits for the first attempt, as connecting does.
func (p *proxy) first(worker string, change ...func(*fencing.JoinRequest)) *conn {
	p.w.Helper()
	failed := p.count(election.EventFailed)
	c := p.join(worker, change...)
	if err := c.AwaitFirst(p.w.T.Context(), patience); err != nil {
		p.w.Fatalf("the first attempt of %s: %v", worker, err)
	}
	if p.count(election.EventFailed) > failed { // the machine was too slow for its requests: a later attempt counts
		for deadline := time.Now().Add(5 * time.Second); !c.leads() && time.Now().Before(deadline); {
			time.Sleep(5 * time.Millisecond)
		}
	}
	return c
}

func (c *conn) leads() bool { return c.Status().CanWrite() }

// mustLead fails the test unless the worker leads now, and returns its epoch.
func (c *conn) mustLead() fencing.Epoch {
	c.w.Helper()
	if !c.leads() {
		c.w.Fatalf("the worker does not lead: %+v", *c.Status())
	}
	return c.Status().Epoch
}

// eventuallyLeads waits until the worker leads, and returns its epoch.
func (c *conn) eventuallyLeads(d time.Duration) fencing.Epoch {
	c.w.Helper()
	eventually(c.w.T, "the worker leads", d, c.leads)
	return c.mustLead()
}

func (c *conn) superseded() bool { return c.Status().Role == fencing.Superseded }

// dies ends the connection abruptly; leaves ends it in an orderly way.
func (c *conn) dies()   { c.Leave(c, false) }
func (c *conn) leaves() { c.Leave(c, true) }
