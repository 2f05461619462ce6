// Package standstill makes a kv.Store of a service that keeps records, and compares and swaps them, but
// measures no time. Packages kubernetes, raft and zookeeper are such services.
//
// # Lives
//
// A record names the life that holds the lease. Only the proxy that has begun a life knows more of it. To
// renew the lease, it writes the record again, over the version that it wrote last: the answer proves that
// no one else has written it since.
//
// # Time
//
// A lease is free when its record has shown the same write for its TTL, by the clock of the proxy that
// looks, since that proxy first saw it. No clock of another machine decides anything. A proxy that has just
// started therefore waits for a whole TTL. So does one that the service has not answered for a while:
// no one could renew anything meanwhile, and the holders come first.
//
// # Order of awards
//
// The index of an award is the version of the write that made it; a renewal carries it on. The service need
// not compare the marker in the write that awards a lease: the marker is read again afterwards, and the
// award counts only if it is still the same.
//
// # Requests that are late
//
// Every write names what it replaces. The end of a life writes whatever a request of that life could still
// replace, so that the request is refused when it arrives.
package standstill

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencepost/fencepost/election/boottime"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
)

// conflicts is how often a write is made again that someone else's write has overtaken.
const conflicts = 10

// Service keeps one record for each key, and the marker. Its methods return at once when their context
// ends. Unless something else is said, the outcome of a call that fails is unknown.
type Service interface {
	// Get returns what is stored under a key, nil if nothing does, and the marker, both confirmed by a quorum.
	Get(ctx context.Context, key string) (s *Stored, marker string, err error)
	// Put writes a record under its key, provided that no one has written or deleted that since old was
	// read; a nil old means that there is none. kv.ErrConflict means that nothing was written.
	Put(ctx context.Context, old *Stored, r Record) (*Stored, error)
	// Watch reports what there is, and then what changes, until its context ends or it fails.
	Watch(ctx context.Context, tell func(Change)) error
	// Mark, Position and Close are those of kv.Store.
	Mark(ctx context.Context, marker string, replace bool) error
	Position(ctx context.Context) (marker string, version int64, err error)
	Close() error
}

// Record is what a service keeps under a key.
type Record struct {
	Key   string          `json:"-"`
	Text  json.RawMessage `json:"record"`           // that of package kv
	Life  string          `json:"holder,omitempty"` // that holds the lease; "" if nobody does
	TTL   time.Duration   `json:"ttl,omitempty"`    // of Life, in nanoseconds
	Award int64           `json:"award,omitempty"`  // the version of the write that wrote Text; 0 if that is this one
	Write string          `json:"write"`            // no other write has the same
}

// Stored is a record as it was read.
type Stored struct {
	Record
	// Version is that of the write. Every write has a higher one than all before had, under whatever key, while
	// the service keeps its state.
	Version int64
	Basis   any // the service's own: what a Put over it compares
}

// mostTTL bounds what is believed of the TTL in a record.
const mostTTL = 24 * time.Hour

// ttl returns how long the record must not change until the lease is free.
func (s *Stored) ttl() time.Duration { return min(max(s.TTL, 0), mostTTL) }

// award returns the version of the write that wrote the text.
func (s *Stored) award() int64 {
	if 0 < s.Award && s.Award < s.Version {
		return s.Award
	}
	return s.Version
}

// Store is the kv.Store of a service.
type Store struct {
	service  Service
	proxy    string // begins the ids of lives
	leastTTL time.Duration
	clock    *clock

	mu    sync.Mutex
	lives map[string]*life // that were begun here and have not ended
}

var _ kv.Store = (*Store)(nil)

// New returns a store, which closes the service. The ids of its lives begin with the proxy's name. It grants
// no shorter TTL than leastTTL.
func New(s Service, proxy string, leastTTL time.Duration) *Store {
	return &Store{service: s, proxy: proxy, leastTTL: leastTTL, clock: newClock(boottime.Now), lives: map[string]*life{}}
}

// sighted notes what a record is now.
func (s *Store) sighted(r *Stored) {
	if r.Life == "" {
		s.clock.forget(r.Key)
		return
	}
	s.clock.observe(r.Key, r.Write)
}

// entry returns what a record means: no one holds the lease if the record has not changed for the TTL.
func (s *Store) entry(r *Stored) kv.Entry {
	e := kv.Entry{Record: r.Text, Version: r.award(), Life: r.Life, Basis: r}
	if s.clock.expired(r.Key, r.Write, r.ttl()) {
		e.Life = ""
	}
	return e
}

// get reads a record.
func (s *Store) get(ctx context.Context, key string) (r *Stored, marker string, err error) {
	r, marker, err = s.service.Get(ctx, key)
	switch {
	case err != nil:
		return nil, "", err
	case r != nil:
		s.sighted(r)
	default:
		s.clock.forget(key)
	}
	return r, marker, nil
}

// put writes a record.
func (s *Store) put(ctx context.Context, old *Stored, r Record) (*Stored, error) {
	r.Write = rand.Text()
	written, err := s.service.Put(ctx, old, r)
	if err != nil {
		return nil, err
	}
	s.sighted(written)
	return written, nil
}

// Read implements kv.Store.
func (s *Store) Read(ctx context.Context, key string) (e kv.Entry, err error) {
	r, marker, err := s.get(ctx, key)
	if err != nil {
		return e, err
	}
	if r != nil {
		e = s.entry(r)
	}
	e.Marker = marker
	return e, nil
}

// Swap implements kv.Store.
func (s *Store) Swap(ctx context.Context, key string, old kv.Entry, record []byte, id string) (version int64, err error) {
	basis, _ := old.Basis.(*Stored)
	if id == "" {
		written, err := s.put(ctx, basis, Record{Key: key, Text: record})
		if err != nil {
			return 0, err
		}
		return written.Version, nil
	}
	l := s.life(id)
	if l == nil {
		return 0, over(id)
	}
	if err := l.enter(ctx); err != nil {
		return 0, err
	}
	defer l.leave()
	return s.award(ctx, l, request{key: key, marker: old.Marker, text: record, basis: basis})
}

// Mark implements kv.Store.
func (s *Store) Mark(ctx context.Context, marker string, replace bool) error {
	return s.service.Mark(ctx, marker, replace)
}

// Position implements kv.Store.
func (s *Store) Position(ctx context.Context) (marker string, version int64, err error) {
	return s.service.Position(ctx)
}

// Check implements kv.Checker, if the service does.
func (s *Store) Check(ctx context.Context) error {
	if c, ok := s.service.(kv.Checker); ok {
		return c.Check(ctx)
	}
	return nil
}

// Close implements kv.Store.
func (s *Store) Close() error { return s.service.Close() }

func over(id string) error { return fmt.Errorf("%w: the life %s is over", elector.ErrLost, id) }

func lost(why string) error { return fmt.Errorf("%w: %s", elector.ErrLost, why) }

func isConflict(err error) bool { return errors.Is(err, kv.ErrConflict) }
