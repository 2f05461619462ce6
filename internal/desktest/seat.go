package desktest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
)

// Seat is one worker's candidacy.
type Seat struct {
	desk        *Desk
	fence       *store.Fence
	worker      string
	incarnation string
	before      bool // result of SupersededBefore
	standing    atomic.Pointer[fencing.Status]

	mu      sync.Mutex
	members map[fencing.Member]bool
	changed chan struct{} // closed when the status changes
	looking func()        // called first by Advanced; may be nil
}

var _ fencing.Candidacy = (*Seat)(nil)

// Grant grants the worker an epoch, without informing any other candidacy.
func (s *Seat) Grant() fencing.Epoch {
	s.desk.t.Helper()
	epoch, err := s.TryGrant()
	if err != nil {
		s.desk.t.Fatal(err)
	}
	return epoch
}

// TryGrant is Grant for calls that may fail, or that are made in another goroutine than
// the test's.
func (s *Seat) TryGrant() (fencing.Epoch, error) {
	if err := s.fence.Number(context.Background(), "test", "test"); err != nil {
		return 0, fmt.Errorf("grant to %s: %w", s.worker, err)
	}
	epoch, err := s.fence.Grant(context.Background(), fencing.Award{
		Resource: s.fence.Resource(), Worker: s.worker, Incarnation: s.incarnation,
		Source: "test", InstanceID: "test", Index: s.desk.Next(), Held: s.Status().Epoch,
	})
	if err != nil {
		return 0, fmt.Errorf("grant to %s: %w", s.worker, err)
	}
	s.Set(&fencing.Status{Role: fencing.Leader, Epoch: epoch, Holder: fencing.Record{Epoch: epoch, Worker: s.worker}})
	return epoch, nil
}

// Set changes the status and informs the members.
func (s *Seat) Set(st *fencing.Status) {
	s.standing.Store(st)
	s.mu.Lock()
	members := slices.Collect(maps.Keys(s.members))
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	for _, m := range members {
		m.StatusChanged()
	}
}

// WhenLooking makes Advanced call f before it reads the record.
func (s *Seat) WhenLooking(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looking = f
}

// Members returns how many connections the candidacy has.
func (s *Seat) Members() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.members)
}

// Owed reports whether the server is working for a connection of the candidacy.
func (s *Seat) Owed() bool {
	s.mu.Lock()
	members := slices.Collect(maps.Keys(s.members))
	s.mu.Unlock()
	owed := false
	for _, m := range members {
		_, o := m.Activity()
		owed = owed || o
	}
	return owed
}

// FenceID returns the fence's id, which occurs in the names of its objects.
func (s *Seat) FenceID() int32 { return s.fence.ID() }

// Status implements fencing.Candidacy.
func (s *Seat) Status() *fencing.Status { return s.standing.Load() }

// Incarnation implements fencing.Candidacy.
func (s *Seat) Incarnation() string { return s.incarnation }

// Fence implements fencing.Candidacy.
func (s *Seat) Fence() fencing.Fence { return s.fence }

// SupersededBefore implements fencing.Candidacy.
func (s *Seat) SupersededBefore() bool { return s.before }

// AwaitFirst implements fencing.Candidacy. It does not wait.
func (s *Seat) AwaitFirst(context.Context, time.Duration) error { return nil }

// AwaitConfirmed implements fencing.Candidacy. It does not wait.
func (s *Seat) AwaitConfirmed(context.Context) error { return nil }

// CampaignOnDemand implements fencing.Candidacy. It does nothing.
func (s *Seat) CampaignOnDemand(context.Context) {}

// AwaitLeader implements fencing.Candidacy.
func (s *Seat) AwaitLeader(ctx context.Context) error {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if s.Status().CanWrite() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Advanced implements fencing.Candidacy.
func (s *Seat) Advanced(ctx context.Context) bool {
	s.mu.Lock()
	looking := s.looking
	s.mu.Unlock()
	if looking != nil {
		looking()
	}
	rec, err := s.fence.Record(ctx)
	if err != nil || rec.Incarnation == s.incarnation || s.Status().Epoch == 0 {
		return false
	}
	st := *s.Status()
	st.Role, st.Holder = fencing.Superseded, rec
	s.Set(&st)
	return true
}

// Leave implements fencing.Candidacy.
func (s *Seat) Leave(m fencing.Member, _ bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.members, m)
}
