package election

import (
	"time"

	"github.com/fencepost/fencepost/fencing"
)

const (
	minSample = 10 * time.Millisecond
	maxSample = 250 * time.Millisecond // a stopped worker is noticed at most that late
)

// liveness is what is known of a worker's signs of life.
type liveness struct {
	// timeout is how long the worker may be silent; 0 for ever.
	timeout time.Duration
	// quiet is how long there has been no sign of life.
	quiet time.Duration
	// last is when the last sample was taken; 0 before the first.
	last         time.Duration
	unresponsive bool
	// struck is the timeout after which the worker last became silent.
	struck time.Duration
}

// interval is how often a life with this timeout is sampled.
func (l *liveness) interval() time.Duration {
	if l.timeout == 0 {
		return maxSample
	}
	return min(max(l.timeout/8, minSample), maxSample)
}

// sample takes note of whether there was a sign of life since the last sample.
// A gap much longer than the interval means that this proxy itself did not run
// or the machine was suspended: what its clients sent meanwhile is still unread,
// so only as much of the gap counts as silence as a sample may take.
func (l *liveness) sample(now time.Duration, alive bool) {
	gap := now - l.last
	if l.last == 0 {
		gap = 0
	}
	l.last = now
	if alive || l.timeout == 0 {
		l.quiet, l.unresponsive = 0, false
		return
	}
	l.quiet += min(gap, 2*l.interval())
	was := l.unresponsive
	if l.unresponsive = l.quiet >= l.timeout; l.unresponsive && !was {
		l.struck = l.timeout
	}
}

// sample looks at the activity of all members. Only the loop calls it.
func (c *Candidacy) sample() {
	members, left := c.sampled()
	alive := false
	for m, k := range members { // without the lock: these are the proxy's own methods
		alive = k.look(m) || alive
	}
	returned := false
	for m, k := range left {
		before := k.reads
		k.look(m)
		returned = returned || k.reads != before
	}
	now := c.r.e.cfg.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.mu.liveness
	l.timeout = c.effectiveLocked(c.timeoutLocked())
	was := l.unresponsive
	l.sample(now, alive || c.mu.waiters > 0)
	if was && alive {
		c.mu.tryAt = now
	}
	if was && alive || returned {
		c.cameBackLocked()
	}
}

// sampled returns the campaigning members, and those that left since the last
// sample.
func (c *Candidacy) sampled() (members, left map[fencing.Member]*member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	members = make(map[fencing.Member]*member, len(c.mu.members))
	for m, k := range c.mu.members {
		if k.campaigns {
			members[m] = k
		}
	}
	if len(c.mu.left) > 0 {
		left, c.mu.left = c.mu.left, map[fencing.Member]*member{}
	}
	return members, left
}

// look reports whether the connection showed a sign of life since the last look.
func (k *member) look(m fencing.Member) bool {
	reads, owed := m.Activity()
	alive := owed || !k.seen || reads != k.reads
	k.reads, k.seen = reads, true
	return alive
}

// timeoutLocked is the longest worker timeout of the campaigning members.
func (c *Candidacy) timeoutLocked() time.Duration {
	var longest time.Duration
	for _, m := range c.mu.members {
		timeout := m.timeout
		if timeout < 0 {
			timeout = c.r.set.WorkerTimeout
		}
		switch {
		case !m.campaigns:
		case timeout == 0:
			return 0
		default:
			longest = max(longest, timeout)
		}
	}
	return longest
}
