package proxy_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// desk stands for the elections of a proxy: the test says who is granted, the
// fence in the database is the real one.
type desk struct {
	t       testing.TB
	pg      *pgtest.Server
	control string // the role of the control connection
	index   atomic.Int64

	mu     sync.Mutex
	stores map[string]*store.Store
	cands  map[string]*seat
}

// seat is one worker's candidacy.
type seat struct {
	d           *desk
	fence       *store.Fence
	claim       fencing.Claim
	incarnation string
	before      bool // superseded before
	standing    atomic.Pointer[fencing.Standing]
	demands     atomic.Int32
	advancing   func() // called by Advanced first, if not nil

	mu      sync.Mutex
	members map[fencing.Member]bool
	changed chan struct{}
}

func newDesk(t testing.TB, pg *pgtest.Server) *desk {
	d := &desk{t: t, pg: pg, control: pgtest.Control, stores: map[string]*store.Store{}, cands: map[string]*seat{}}
	t.Cleanup(func() {
		for _, s := range d.stores {
			s.Close()
		}
	})
	return d
}

func (d *desk) store(database string) (*store.Store, error) {
	if s := d.stores[database]; s != nil {
		return s, nil
	}
	s, err := store.Open(context.Background(), store.Config{
		Address: d.pg.Addr(), Database: database, User: d.control, Grace: 100 * time.Millisecond,
	})
	if err == nil {
		d.stores[database] = s
	}
	return s, err
}

// Join implements fencing.Candidates.
func (d *desk) Join(ctx context.Context, c fencing.Claim, m fencing.Member) (fencing.Candidacy, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := c.Database + "/" + c.Resource + "/" + c.Worker
	s := d.cands[key]
	if s == nil || s.Standing().Role == fencing.Superseded {
		st, err := d.store(c.Database)
		if err != nil {
			return nil, err
		}
		f, err := st.Fence(ctx, c.Resource)
		if err != nil {
			return nil, err
		}
		before := s != nil
		s = &seat{d: d, fence: f, claim: c, before: before, members: map[fencing.Member]bool{}, changed: make(chan struct{})}
		s.incarnation = fmt.Sprintf("%s#%d", c.Worker, d.index.Add(1))
		s.standing.Store(&fencing.Standing{})
		d.cands[key] = s
	}
	s.mu.Lock()
	s.members[m] = true
	s.mu.Unlock()
	return s, nil
}

// seat returns a worker's candidacy.
func (d *desk) seat(database, resource, worker string) *seat {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.cands[database+"/"+resource+"/"+worker]
	if s == nil {
		d.t.Fatalf("worker %s has not connected", worker)
	}
	return s
}

// grant gives the worker an epoch, without telling any candidacy but its own.
func (s *seat) grant() fencing.Epoch {
	s.d.t.Helper()
	epoch, err := s.fence.Grant(context.Background(), fencing.Award{
		Resource: s.claim.Resource, Worker: s.claim.Worker, Incarnation: s.incarnation,
		Source: "test", Marker: "test", Index: s.d.index.Add(1), Held: s.Standing().Epoch,
	})
	if err != nil {
		s.d.t.Fatalf("grant to %s: %v", s.claim.Worker, err)
	}
	s.set(&fencing.Standing{Role: fencing.Leader, Epoch: epoch, Holder: fencing.Record{Epoch: epoch, Worker: s.claim.Worker}})
	return epoch
}

// set changes the standing and tells the members.
func (s *seat) set(st *fencing.Standing) {
	s.standing.Store(st)
	s.mu.Lock()
	members := make([]fencing.Member, 0, len(s.members))
	for m := range s.members {
		members = append(members, m)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	for _, m := range members {
		m.StandingChanged()
	}
}

func (s *seat) Standing() *fencing.Standing          { return s.standing.Load() }
func (s *seat) Incarnation() string                  { return s.incarnation }
func (s *seat) Fence() fencing.Fence                 { return s.fence }
func (s *seat) SupersededBefore() bool               { return s.before }
func (s *seat) AwaitFirst(context.Context) error     { return nil }
func (s *seat) AwaitConfirmed(context.Context) error { return nil }
func (s *seat) Demand(context.Context)               { s.demands.Add(1) }

func (s *seat) AwaitLeader(ctx context.Context) error {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if s.Standing().May() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *seat) Advanced(ctx context.Context) bool {
	if s.advancing != nil {
		s.advancing()
	}
	rec, err := s.fence.Record(ctx)
	if err != nil || rec.Incarnation == s.incarnation || s.Standing().Epoch == 0 {
		return false
	}
	st := *s.Standing()
	st.Role, st.Holder = fencing.Superseded, rec
	s.set(&st)
	return true
}

func (s *seat) Leave(m fencing.Member, _ bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.members, m)
}

// bench is a proxy in front of a real Postgres.
type bench struct {
	*desk
	addr  string
	proxy *proxy.Server
	audit *observer.ObservedLogs
}

// newBench starts a proxy; change, if not nil, changes its configuration.
func newBench(t testing.TB, pg *pgtest.Server, change func(*proxy.Config)) *bench {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	b := &bench{desk: newDesk(t, pg), audit: logs}
	cfg := proxy.Config{
		Upstream: pg.Addr(), Candidates: b.desk, Audit: zap.New(core), ProxyID: "test",
		Unfenced: func(user string) proxy.UnfencedMode {
			switch user {
			case pgtest.Superuser:
				return proxy.UnfencedAllow
			case "scram_user":
				return proxy.UnfencedRefuse
			default:
				return proxy.UnfencedReadOnly
			}
		},
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if b.proxy, err = proxy.NewServer(cfg); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.addr = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.proxy.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		b.proxy.Close()
	})
	return b
}
