// Package standstill tells since when the records of leases have not been written by their holders. A
// candidacy may take a lease that has stood still for its TTL, where the lease service itself measures no
// time: only the clock of the proxy that looks counts, and never what a record says.
package standstill

import (
	"sync"
	"time"
)

const (
	// remembered is how many versions of a record are kept. One source may show an older version beside
	// what another one shows, and neither may look new each time.
	remembered = 4
	// silence is for how long nothing was heard of the service if holders could not reach it either.
	silence = 10 * time.Second
)

// Clock has since when records stand still. It is safe for concurrent use.
type Clock struct {
	now func() time.Duration

	mu    sync.Mutex
	seen  map[string][]sight // by key, the newest last
	heard time.Duration      // when the service was last heard of
}

// Version is a record as it was seen.
type Version struct {
	ID     string // no other version of the record has it
	Holder string // the life that holds the lease, "" if none does
	// Write, if it is not "", is which write of the holder's the version shows: others may write the
	// record too, which is no sign of life of its holder.
	Write string
}

type sight struct {
	Version
	since time.Duration // when it was first seen
}

// New returns a clock that has seen nothing. now must not stand still while the machine sleeps.
func New(now func() time.Duration) *Clock {
	return &Clock{now: now, seen: map[string][]sight{}, heard: now()}
}

// Hear notes that the service answers. After a long silence every standstill begins again: nobody
// could renew anything meanwhile, and the holders come first.
func (c *Clock) Hear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hearLocked(c.now())
}

func (c *Clock) hearLocked(now time.Duration) {
	if now-c.heard > silence {
		for _, all := range c.seen {
			for i := range all {
				all[i].since = now
			}
		}
	}
	c.heard = now
}

// See notes what a record is now.
func (c *Clock) See(key string, v Version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := sight{v, c.now()}
	c.hearLocked(next.since)
	all := c.seen[key]
	for _, one := range all {
		if one.ID == v.ID {
			return
		}
		if v.Write != "" && one.Write == v.Write && one.Holder == v.Holder {
			next.since = one.since
		}
	}
	if len(all) == remembered {
		all = append(all[:0], all[1:]...)
	}
	c.seen[key] = append(all, next)
}

// Forget notes that there is no such record any more, or that nobody holds it.
func (c *Clock) Forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.seen, key)
}

// Free reports whether the version of that ID was seen, and has stood still for ttl.
func (c *Clock) Free(key, id string, ttl time.Duration) bool {
	until, ok := c.Until(key, id, ttl)
	return ok && c.now() >= until
}

// Until returns when that version will have stood still for ttl. ok is false if it was not seen.
func (c *Clock) Until(key, id string, ttl time.Duration) (at time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.seen[key] {
		if one.ID == id {
			return one.since + ttl, true
		}
	}
	return 0, false
}

// HeldBy returns the key of the record that a life was last seen to hold, or "".
func (c *Clock) HeldBy(life string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, all := range c.seen {
		for _, one := range all {
			if one.Holder == life {
				return key
			}
		}
	}
	return ""
}
