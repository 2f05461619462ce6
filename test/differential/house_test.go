package differential

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// house is a proxy in front of a real Postgres. The tests say who is granted;
// the fence in the database is the real one.
type house struct {
	pg   *pgtest.Server
	addr string

	mu    sync.Mutex
	seats map[string]*seat // by database and worker
}

// newHouse starts a proxy in front of the server of that major version.
func newHouse(t *testing.T, major int) *house {
	t.Helper()
	h := &house{pg: pgtest.SharedMajor(t, major), seats: map[string]*seat{}}
	srv, err := proxy.NewServer(proxy.Config{Upstream: h.pg.Addr(), Candidates: h, ProxyID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.addr = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		srv.Close()
	})
	return h
}

// seat is one worker's candidacy. It knows nothing of other workers' grants
// until it looks.
type seat struct {
	fence       *store.Fence
	worker      string
	incarnation string
	standing    atomic.Pointer[fencing.Standing]

	mu      sync.Mutex
	members map[fencing.Member]bool
}

// sit makes a new candidacy for the worker, in place of the one it had.
func (h *house) sit(database, worker string, f *store.Fence) *seat {
	s := &seat{fence: f, worker: worker, members: map[fencing.Member]bool{}}
	s.incarnation = worker + "#" + strconv.FormatInt(awards.Add(1), 10)
	s.standing.Store(&fencing.Standing{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seats[database+"/"+worker] = s
	return s
}

// Join implements fencing.Candidates.
func (h *house) Join(_ context.Context, c fencing.Claim, m fencing.Member) (fencing.Candidacy, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.seats[c.Database+"/"+c.Worker]
	if s == nil {
		return nil, errors.New("no such worker")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members[m] = true
	return s, nil
}

// awards numbers them, in order.
var awards atomic.Int64

// grant gives the candidacy an epoch, through the store.
func (s *seat) grant() error {
	epoch, err := s.fence.Grant(context.Background(), fencing.Award{
		Resource: s.fence.Resource(), Worker: s.worker, Incarnation: s.incarnation,
		Source: "test", Marker: "test", Index: awards.Add(1), Held: s.Standing().Epoch,
	})
	if err != nil {
		return fmt.Errorf("grant to %s: %w", s.worker, err)
	}
	s.set(&fencing.Standing{Role: fencing.Leader, Epoch: epoch, Holder: fencing.Record{Epoch: epoch, Worker: s.worker}})
	return nil
}

func (s *seat) set(st *fencing.Standing) {
	s.standing.Store(st)
	s.mu.Lock()
	members := make([]fencing.Member, 0, len(s.members))
	for m := range s.members {
		members = append(members, m)
	}
	s.mu.Unlock()
	for _, m := range members {
		m.StandingChanged()
	}
}

func (s *seat) Standing() *fencing.Standing          { return s.standing.Load() }
func (s *seat) Incarnation() string                  { return s.incarnation }
func (s *seat) Fence() fencing.Fence                 { return s.fence }
func (s *seat) SupersededBefore() bool               { return false }
func (s *seat) AwaitFirst(context.Context) error     { return nil }
func (s *seat) AwaitConfirmed(context.Context) error { return nil }
func (s *seat) AwaitLeader(context.Context) error    { return nil }
func (s *seat) Demand(context.Context)               {}

func (s *seat) Advanced(ctx context.Context) bool {
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
