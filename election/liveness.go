package election

import (
	"time"

	"github.com/fencepost/fencepost/election/heartbeat"
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
	released   bool
	heartbeats heartbeat.Worker
}

// signs are what a sample finds that a worker has done since the last one.
type signs struct {
	bytes bool // bytes came from it, or it has connected
	owed  bool // the server works for it, or one of its connections waits for the lead
}

func (s signs) alive() bool { return s.bytes || s.owed }

// interval is the sampling interval for this timeout and these heartbeats. A quarter of a
// heartbeat is enough: what that adds to the deviation of the gaps is small beside the least
// deviation that is assumed.
func (l *liveness) interval() time.Duration {
	interval := maxSample
	if l.timeout > 0 {
		interval = min(interval, l.timeout/8)
	}
	if every := l.heartbeats.Promised(); every > 0 {
		interval = min(interval, every/4)
	}
	return max(interval, minSample)
}

// judged reports whether the worker has to be sampled.
func (l *liveness) judged() bool { return l.timeout > 0 || l.heartbeats.Promised() > 0 }

// next returns when the next sample is due, from the last one on.
func (l *liveness) next() time.Duration {
	if left := l.timeout - l.quiet; left > 0 {
		return min(left, l.interval())
	}
	return l.interval()
}

// sample records whether there was activity since the last sample. A gap much longer
// than the interval means that this proxy itself did not run, or that the machine was
// suspended: what its clients sent meanwhile is still unread. So at most two intervals
// of the gap count as inactivity.
func (l *liveness) sample(now time.Duration, s signs) {
	gap := now - l.last
	if l.last == 0 {
		gap = 0
	}
	gap = min(gap, 2*l.interval())
	l.last = now
	l.heartbeats.Pass(gap, s.bytes, s.owed)
	if s.alive() || l.timeout == 0 {
		l.quiet, l.unresponsive = 0, false
		return
	}
	l.quiet += gap
	l.longest = max(l.longest, l.quiet)
	l.suspect(l.quiet >= l.timeout)
}

// suspect sets whether the worker is unresponsive.
func (l *liveness) suspect(unresponsive bool) {
	if unresponsive && !l.unresponsive {
		l.expired = l.timeout
	}
	l.unresponsive = unresponsive
}

// sample samples the activity of all members. Only the loop calls it.
func (c *Candidacy) sample() {
	var s signs
	for m, k := range c.sampled() { // without the lock: this calls the proxy
		one := k.look(m)
		s.bytes, s.owed = s.bytes || one.bytes, s.owed || one.owed
	}
	now := c.r.e.cfg.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.mu.liveness
	l.heartbeats.Promise(c.mu.heartbeat())
	l.timeout = c.tolerated()
	was := l.unresponsive
	alive := s.alive()
	s.owed = s.owed || c.mu.waiters > 0
	l.sample(now, s)
	if f := c.r.e.cfg.Falsify; f != nil {
		l.unresponsive = was
		l.suspect(f(c.worker))
		alive = !l.unresponsive
	}
	if was && alive {
		c.mu.tryAt = now
	}
}

// tolerates returns how long the worker may be inactive if it has asked for this timeout, 0 for
// unlimited. The detector of its heartbeats can only shorten the timeout. extended is what its
// false alarms have made of a timeout.
func (l *liveness) tolerates(asked time.Duration, extended func(time.Duration) time.Duration) time.Duration {
	timeout := extended(asked)
	limit, ok := l.heartbeats.Limit()
	if !ok {
		return timeout
	}
	if limit = extended(limit); timeout == 0 {
		return limit
	}
	return min(limit, timeout)
}

// tolerated returns how long the worker may be inactive now, 0 for unlimited. c.mu is held.
func (c *Candidacy) tolerated() time.Duration {
	return c.mu.liveness.tolerates(c.mu.timeout(c.set.WorkerTimeout), c.effective)
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

// look returns what the connection has done since the last sample.
func (k *member) look(m fencing.Member) signs {
	reads, owed := m.Activity()
	s := signs{bytes: !k.seen || reads != k.reads, owed: owed}
	k.reads, k.seen = reads, true
	return s
}
