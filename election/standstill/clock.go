package standstill

import (
	"sync"
	"time"
)

const (
	// remembered is how many writes of a record are kept. One source may show an older write next to
	// what another one shows, and neither may look new each time.
	remembered = 4
	// silenceLimit is for how long the service has not answered if holders could not reach it either.
	silenceLimit = 10 * time.Second
)

// clock knows since when records have not changed. It is safe for concurrent use.
type clock struct {
	now func() time.Duration

	mu         sync.Mutex
	seen       map[string][]writeSeen // by key, the newest last
	lastAnswer time.Duration          // when the service last answered
}

type writeSeen struct {
	write string
	since time.Duration // when it was first seen
}

// newClock returns a clock that has seen nothing. now must not stop while the machine sleeps.
func newClock(now func() time.Duration) *clock {
	return &clock{now: now, seen: map[string][]writeSeen{}, lastAnswer: now()}
}

// serviceAnswered notes that the service answers. After a long silence every record counts as just written: no one
// could renew anything meanwhile, and the holders come first.
func (c *clock) serviceAnswered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serviceAnsweredLocked(c.now())
}

func (c *clock) serviceAnsweredLocked(now time.Duration) {
	if now-c.lastAnswer > silenceLimit {
		for _, all := range c.seen {
			for i := range all {
				all[i].since = now
			}
		}
	}
	c.lastAnswer = now
}

// observe notes which write a record shows now.
func (c *clock) observe(key, write string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.serviceAnsweredLocked(now)
	all := c.seen[key]
	for _, one := range all {
		if one.write == write {
			return
		}
	}
	if len(all) == remembered {
		all = append(all[:0], all[1:]...)
	}
	c.seen[key] = append(all, writeSeen{write, now})
}

// forget notes that no one holds the record any more, or that there is none.
func (c *clock) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serviceAnsweredLocked(c.now())
	delete(c.seen, key)
}

// expiresAt returns when a record will have shown this write for ttl. ok is false if that was not seen.
func (c *clock) expiresAt(key, write string, ttl time.Duration) (at time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.seen[key] {
		if one.write == write {
			return one.since + ttl, true
		}
	}
	return 0, false
}

// expired reports whether a record has shown this write for ttl.
func (c *clock) expired(key, write string, ttl time.Duration) bool {
	at, ok := c.expiresAt(key, write, ttl)
	return ok && c.now() >= at
}
