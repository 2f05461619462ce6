package standstill

import (
	"sync"
	"time"
)

const (
	// remembered is how many writes of a record are kept. One source may show an older write beside
	// what another one shows, and neither may look new each time.
	remembered = 4
	// silence is for how long nothing was heard of the service if holders could not reach it either.
	silence = 10 * time.Second
)

// clock has since when records stand still. It is safe for concurrent use.
type clock struct {
	now func() time.Duration

	mu    sync.Mutex
	seen  map[string][]sight // by key, the newest last
	heard time.Duration      // when the service was last heard of
}

type sight struct {
	write string
	since time.Duration // when it was first seen
}

// newClock returns a clock that has seen nothing. now must not stand still while the machine sleeps.
func newClock(now func() time.Duration) *clock {
	return &clock{now: now, seen: map[string][]sight{}, heard: now()}
}

// hear notes that the service answers. After a long silence every standstill begins again: nobody
// could renew anything meanwhile, and the holders come first.
func (c *clock) hear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hearLocked(c.now())
}

func (c *clock) hearLocked(now time.Duration) {
	if now-c.heard > silence {
		for _, all := range c.seen {
			for i := range all {
				all[i].since = now
			}
		}
	}
	c.heard = now
}

// see notes which write a record shows now.
func (c *clock) see(key, write string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.hearLocked(now)
	all := c.seen[key]
	for _, one := range all {
		if one.write == write {
			return
		}
	}
	if len(all) == remembered {
		all = append(all[:0], all[1:]...)
	}
	c.seen[key] = append(all, sight{write, now})
}

// forget notes that nobody holds the record any more, or that there is none.
func (c *clock) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hearLocked(c.now())
	delete(c.seen, key)
}

// until returns when a record will have shown this write for ttl. ok is false if that was not seen.
func (c *clock) until(key, write string, ttl time.Duration) (at time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.seen[key] {
		if one.write == write {
			return one.since + ttl, true
		}
	}
	return 0, false
}

// over reports whether a record has shown this write for ttl.
func (c *clock) over(key, write string, ttl time.Duration) bool {
	at, ok := c.until(key, write, ttl)
	return ok && c.now() >= at
}
