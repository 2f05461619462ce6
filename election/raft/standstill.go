package raft

import (
	"sync"
	"time"

	"github.com/fencepost/fencepost/election/raft/state"
)

const (
	// remembered is how many sights of a lease are kept. The own replica may show an older one
	// beside what the leader shows, and neither may look new each time.
	remembered = 4
	// silence is how long nothing was heard from the leader if holders could not reach it either.
	silence = 10 * time.Second
)

// standstill is since when leases have not been touched, by this proxy's clock.
type standstill struct {
	now func() time.Duration // CLOCK_BOOTTIME

	mu    sync.Mutex
	seen  map[string][]sight // by key, the newest last
	heard time.Duration      // when the leader was last heard of
}

// sight is a lease as it was seen.
type sight struct {
	touched uint64
	life    string
	since   time.Duration // when it was first seen so
}

func newStandstill(now func() time.Duration) *standstill {
	return &standstill{now: now, seen: map[string][]sight{}, heard: now()}
}

// hear notes that there is a leader. After a long silence every standstill begins again: nobody
// could renew anything meanwhile, and the holders come first.
func (s *standstill) hear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hearLocked(s.now())
}

func (s *standstill) hearLocked(now time.Duration) {
	if now-s.heard > silence {
		for _, all := range s.seen {
			for i := range all {
				all[i].since = now
			}
		}
	}
	s.heard = now
}

// see notes what a lease is now.
func (s *standstill) see(key string, l state.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.hearLocked(now)
	if l.Life == "" {
		delete(s.seen, key)
		return
	}
	all := s.seen[key]
	for _, one := range all {
		if one.touched == l.Touched && one.life == l.Life {
			return
		}
	}
	if len(all) == remembered {
		all = append(all[:0], all[1:]...)
	}
	s.seen[key] = append(all, sight{l.Touched, l.Life, now})
}

// free reports whether a lease has not been touched for its TTL.
func (s *standstill) free(key string, l state.Lease) bool {
	until, ok := s.until(key, l)
	return ok && s.now() >= until
}

// until returns when a lease will not have been touched for its TTL. ok is false if it was not
// seen.
func (s *standstill) until(key string, l state.Lease) (at time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.seen[key] {
		if one.touched == l.Touched && one.life == l.Life {
			return one.since + l.TTL, true
		}
	}
	return 0, false
}
