package election

import (
	"time"

	"github.com/fencepost/fencepost/fencing"
)

const (
	minSample = 10 * time.Millisecond
	maxSample = 250 * time.Millisecond // a frozen worker is noticed at most this late
)

// liveness is what is known about a worker's activity.
type liveness struct {
	// timeout is how long the worker may be inactive; 0 means unlimited.
	timeout time.Duration
	// quiet is how long the worker has been inactive.
	quiet time.Duration
	// longest is the longest that quiet has been.
	longest time.Duration
	// last is when the last sample was taken; 0 before the first.
	last         time.Duration
	unresponsive bool
	// expired is the timeout that had passed when the worker last became unresponsive.
	expired time.Duration
	// released means that the lease was released because the worker was unresponsive,
	// and that the epoch has not been confirmed since.
	released bool
}

// interval is the sampling interval for this timeout.
func (l *liveness) interval() time.Duration {
	if l.timeout == 0 {
		return maxSample
	}
	return min(max(l.timeout/8, minSample), maxSample)
}

// sample records whether there was activity since the last sample. A gap much longer
// than the interval means that this proxy itself did not run, or that the machine was
// suspended: what its clients sent meanwhile is still unread. So at most two intervals
// of the gap count as inactivity.
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
	l.longest = max(l.longest, l.quiet)
	was := l.unresponsive
	if l.unresponsive = l.quiet >= l.timeout; l.unresponsive && !was {
		l.expired = l.timeout
	}
}

// sample samples the activity of all members. Only the loop calls it.
func (c *Candidacy) sample() {
	alive := false
	for m, k := range c.sampled() { // without the lock: this calls the proxy
		alive = k.look(m) || alive
	}
	now := c.r.e.cfg.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.mu.liveness
	l.timeout = c.effective(c.mu.timeout(c.set.WorkerTimeout))
	was := l.unresponsive
	l.sample(now, alive || c.mu.waiters > 0)
	if was && alive {
		c.mu.tryAt = now
	}
}

// sampled returns the campaigning members.
func (c *Candidacy) sampled() map[fencing.Member]*member {
	c.mu.Lock()
	defer c.mu.Unlock()
	members := make(map[fencing.Member]*member, len(c.mu.members))
	for m, k := range c.mu.members {
		if k.campaigns {
			members[m] = k
		}
	}
	return members
}

// look reports whether the connection was active since the last sample.
func (k *member) look(m fencing.Member) bool {
	reads, owed := m.Activity()
	alive := owed || !k.seen || reads != k.reads
	k.reads, k.seen = reads, true
	return alive
}
