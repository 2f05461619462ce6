package desktest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// Desk replaces the elections of a proxy. It creates a Seat for each worker that
// connects.
type Desk struct {
	t    testing.TB
	pg   *pgtest.Server
	last atomic.Int64 // the last number that was used

	mu      sync.Mutex
	control string // the role of the control connections
	stores  map[string]*store.Store
	seats   map[key]*Seat
}

type key struct{ database, resource, worker string }

var _ fencing.Candidates = (*Desk)(nil)

// New returns a Desk for the server. It ends with the test.
func New(t testing.TB, pg *pgtest.Server) *Desk {
	d := &Desk{t: t, pg: pg, control: pgtest.Control, stores: map[string]*store.Store{}, seats: map[key]*Seat{}}
	t.Cleanup(func() {
		for _, s := range d.stores {
			s.Close()
		}
	})
	return d
}

// Next returns the next number. Awards and incarnations use these numbers too.
func (d *Desk) Next() int64 { return d.last.Add(1) }

// ControlAs sets the role of control connections that are opened from now on.
func (d *Desk) ControlAs(role string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.control = role
}

// Use sets the control connections to a database. The Desk closes them at its end.
func (d *Desk) Use(database string, s *store.Store) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stores[database] = s
}

// Join implements fencing.Candidates.
func (d *Desk) Join(ctx context.Context, c fencing.JoinRequest, m fencing.Member) (fencing.Candidacy, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.seats[key{c.Database, c.Resource, c.Worker}]
	if s == nil || s.Status().Role == fencing.Superseded {
		st, err := d.storeLocked(c.Database)
		if err != nil {
			return nil, err
		}
		f, err := st.Fence(ctx, c.Resource)
		if err != nil {
			return nil, err
		}
		s = d.sitLocked(c.Database, c.Worker, f, s != nil)
	}
	s.mu.Lock()
	s.members[m] = true
	s.mu.Unlock()
	return s, nil
}

func (d *Desk) storeLocked(database string) (*store.Store, error) {
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

// Sit creates a new candidacy for the worker, which replaces the previous one as if it
// were the worker's first.
func (d *Desk) Sit(database, worker string, f *store.Fence) *Seat {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sitLocked(database, worker, f, false)
}

func (d *Desk) sitLocked(database, worker string, f *store.Fence, before bool) *Seat {
	s := &Seat{
		desk: d, fence: f, worker: worker, incarnation: fmt.Sprintf("%s#%d", worker, d.Next()), before: before,
		members: map[fencing.Member]bool{}, changed: make(chan struct{}),
	}
	s.standing.Store(&fencing.Status{})
	d.seats[key{database, f.Resource(), worker}] = s
	return s
}

// Seat returns a worker's candidacy, and fails the test if it has none.
func (d *Desk) Seat(database, resource, worker string) *Seat {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.seats[key{database, resource, worker}]
	if s == nil {
		d.t.Fatalf("worker %s has not connected", worker)
	}
	return s
}

// Taken returns the number of candidacies.
func (d *Desk) Taken() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.seats)
}

// Members returns how many connections a worker has, 0 if it never connected.
func (d *Desk) Members(database, resource, worker string) int {
	d.mu.Lock()
	s := d.seats[key{database, resource, worker}]
	d.mu.Unlock()
	if s == nil {
		return 0
	}
	return s.Members()
}
