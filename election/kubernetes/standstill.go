package kubernetes

import (
	"sync"
	"time"
)

const (
	// versions is how many versions of an object are remembered. Lists may show an older one
	// beside what a read shows, and neither may look new each time.
	versions = 4
	// silence is how long nothing was heard from the API server if its holders could not reach
	// it either.
	silence = 10 * time.Second
)

// standstill is since when Fencepost has not written objects, by this proxy's clock. What others do to
// them, such as another label, is no sign of life of their holders.
type standstill struct {
	now func() time.Duration // CLOCK_BOOTTIME

	mu    sync.Mutex
	seen  map[string][]sight // by name, the newest last
	heard time.Duration      // when an object was last seen
}

// sight is a version of an object.
type sight struct {
	version string
	holder  string
	write   string        // which write of Fencepost's it shows
	since   time.Duration // when that was first seen
}

func newStandstill(now func() time.Duration) *standstill {
	return &standstill{now: now, seen: map[string][]sight{}, heard: now()}
}

// hear notes that the API server answers. After a long silence, every standstill begins anew.
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

// see notes what an object is now.
func (s *standstill) see(o *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.hearLocked(now)
	name, version := o.Metadata.Name, o.Metadata.ResourceVersion
	all := s.seen[name]
	next := sight{version, o.holder(), o.note(noteWrite), now}
	for _, one := range all {
		if one.version == version {
			return
		}
		if next.write != "" && one.write == next.write && one.holder == next.holder {
			next.since = one.since
		}
	}
	if len(all) == versions {
		all = append(all[:0], all[1:]...)
	}
	s.seen[name] = append(all, next)
}

// gone notes that there is no object of that name.
func (s *standstill) gone(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, name)
}

// free reports whether an object has stood still for its TTL.
func (s *standstill) free(o *lease) bool {
	until, ok := s.until(o)
	return ok && s.now() >= until
}

// until returns when an object has stood still for its TTL. ok is false if it was not seen.
func (s *standstill) until(o *lease) (at time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.seen[o.Metadata.Name] {
		if one.version == o.Metadata.ResourceVersion {
			return one.since + o.ttl(), true
		}
	}
	return 0, false
}

// heldBy returns the name of the object that a life was last seen to hold, or "".
func (s *standstill) heldBy(life string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, all := range s.seen {
		for _, one := range all {
			if one.holder == life {
				return name
			}
		}
	}
	return ""
}
