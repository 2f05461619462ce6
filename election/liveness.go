package election

import (
	"cmp"
	"time"

	"github.com/fencepost/fencepost/election/patience"
	"github.com/fencepost/fencepost/fencing"
	"go.uber.org/zap"
)

const (
	minSample = 10 * time.Millisecond
	maxSample = 250 * time.Millisecond // a frozen worker is noticed at most this late
)

// A heartbeat is promised within these bounds.
const (
	minHeartbeat = 100 * time.Millisecond
	maxHeartbeat = time.Minute
	// heartbeatLate is how late a heartbeat may be: garbage collections of a few seconds do not matter.
	heartbeatLate = 6500 * time.Millisecond
)

// liveness is what is known about a worker's activity.
type liveness struct {
	// timeout is how long the worker may be inactive; 0 means unlimited.
	timeout time.Duration
	// quiet is how long the worker has been inactive.
	quiet time.Duration
	// longest is the longest that quiet has been.
	longest time.Duration
	// longestResumed is the longest silence after which the worker continued under its epoch.
	longestResumed time.Duration
	// last is when the last sample was taken; 0 before the first.
	last         time.Duration
	unresponsive bool
	// skipped: the last step took no sample.
	skipped bool
	// expired is the timeout that had passed when the worker last became unresponsive.
	expired time.Duration
	// released means that the lease was released because the worker was unresponsive,
	// and that the epoch has not been confirmed since.
	released bool
}

// signs are what a sample finds that a worker has done since the last one.
type signs struct {
	bytes bool // bytes came from it, or it has connected
	owed  bool // the server works for it, or one of its connections waits for the lead
}

func (s signs) alive() bool { return s.bytes || s.owed }

// interval is the sampling interval for this timeout.
func (l *liveness) interval() time.Duration {
	interval := maxSample
	if l.timeout > 0 {
		interval = min(interval, l.timeout/8)
	}
	return max(interval, minSample)
}

// isLimited reports whether the worker has to be sampled.
func (l *liveness) isLimited() bool { return l.timeout > 0 }

// next returns when the next sample is due, from the last one on.
func (l *liveness) next() time.Duration {
	if left := l.timeout - l.quiet; left > 0 {
		return min(left, l.interval())
	}
	return l.interval()
}

// sampledOftenEnough reports whether the sampler's next sample is soon enough.
func (l *liveness) sampledOftenEnough() bool { return l.next() >= maxSample }

// sample records whether there was activity since the last sample. A gap much longer
// than the interval means that this proxy itself did not run, or that the machine was
// suspended: what its clients sent meanwhile is still unread. So at most two intervals
// of the gap count as inactivity.
func (l *liveness) sample(now time.Duration, s signs) {
	gap := max(now-l.last, 0)
	if l.last == 0 {
		gap = 0
	}
	gap = min(gap, 2*l.interval())
	l.last = max(l.last, now)
	if s.alive() || l.timeout == 0 {
		l.quiet, l.unresponsive = 0, false
		return
	}
	l.quiet += gap
	l.longest = max(l.longest, l.quiet)
	l.suspect(l.quiet >= l.timeout)
}

// resumed reports whether a worker with this status, which was silent for that long before the last sample, has
// continued under its epoch, after the longest silence so far.
func (l *liveness) resumed(silence time.Duration, st *fencing.Status) bool {
	if l.quiet > 0 || silence <= l.longestResumed || st.Epoch == 0 || st.Role == fencing.Superseded {
		return false
	}
	l.longestResumed = silence
	return true
}

// suspect sets whether the worker is unresponsive.
func (l *liveness) suspect(unresponsive bool) {
	if unresponsive && !l.unresponsive {
		l.expired = l.timeout
	}
	l.unresponsive = unresponsive
}

// sampleInStepLocked samples the activity of all members, unless that was just done. A sample asks each member, so many
// connections that come together would otherwise cost a sample of all of them each. A worker that is unresponsive is
// sampled in each step, which is about what it does now.
func (c *Candidacy) sampleInStepLocked(now time.Duration) {
	l := &c.liveness
	l.skipped = l.last != 0 && now-l.last < minSample && !l.unresponsive
	if !l.skipped {
		c.sampleLocked(now)
	}
}

// sampleLocked samples the activity of all members. It reports whether that concerns the loop, which
// calls it, as the sampler does.
func (c *Candidacy) sampleLocked(now time.Duration) (concerns bool) {
	s := c.signs()
	l := &c.liveness
	l.timeout = c.allowedSilence(now)
	was := l.unresponsive
	alive := s.alive()
	s.owed = s.owed || c.waiters > 0
	silence := l.quiet
	l.sample(now, s)
	if l.resumed(silence, c.current.Load()) {
		c.event(Event{Kind: EventResumed, Took: silence})
	}
	if f := c.r.e.cfg.Falsify; f != nil {
		l.unresponsive = was
		l.suspect(f(c.worker))
		alive = !l.unresponsive
	}
	if was && alive {
		c.tryAt = now
	}
	return was && alive || was != l.unresponsive || !l.sampledOftenEnough()
}

// allowedSilence returns how long the worker may be inactive now, 0 for unlimited. A promise of heartbeats can only
// shorten that.
func (c *Candidacy) allowedSilence(now time.Duration) time.Duration {
	asked := c.membership.timeout(c.set.WorkerTimeout)
	if every := c.heartbeat(); every > 0 && (asked == 0 || every+heartbeatLate < asked) {
		asked = every + heartbeatLate
	}
	if asked == 0 {
		return 0
	}
	return c.extension(now).Timeout(asked, cmp.Or(c.set.MaxTimeoutFactor, DefaultMaxTimeoutFactor), c.set.MaxWorkerTimeout)
}

// patienceKey identifies the candidacy's worker.
func (c *Candidacy) patienceKey() patience.Worker {
	w := patience.Worker{Database: c.r.key.database, Resource: c.r.key.name, User: c.user, Worker: c.worker}
	if c.nameless {
		w.Worker, w.Client = "", c.client
	}
	return w
}

// falseAlarmLocked is called when the fence has confirmed the candidacy's epoch under a
// lease. If the lease had been released because the worker was unresponsive, that was a
// false alarm: the worker is active again, and no one else was granted an epoch. A
// worker that was superseded meanwhile was rightly replaced, and its timeout remains.
func (c *Candidacy) falseAlarmLocked() {
	if !c.liveness.released {
		return
	}
	c.liveness.released = false
	c.r.mu.falseAlarms++
	now := c.r.e.cfg.Now()
	l := c.r.e.extensions.Record(c.patienceKey(), c.liveness.expired, now)
	c.log.Warn("false alarm: a worker whose lease was released for silence is active again; its timeout is extended",
		zap.Int64("epoch", int64(c.epoch)), zap.Int("false_alarms", l.Alarms), zap.Duration("waited", c.liveness.expired),
		zap.Duration("timeout", c.allowedSilence(now)))
	c.event(Event{Kind: EventFalseAlarm})
}

func (c *Candidacy) extension(now time.Duration) patience.Extension {
	return c.r.e.extensions.Of(c.patienceKey(), now)
}

// signs returns what the campaigning members have done since the last sample.
func (s *membership) signs() (all signs) {
	for m, k := range s.members {
		if k.campaigns {
			one := k.look(m)
			all.bytes, all.owed = all.bytes || one.bytes, all.owed || one.owed
		}
	}
	return all
}

// look returns what the connection has done since the last sample.
func (k *member) look(m fencing.Member) signs {
	reads, owed := m.Activity()
	s := signs{bytes: !k.seen || reads != k.reads, owed: owed}
	k.reads, k.seen = reads, true
	return s
}

// sample samples the workers of all candidacies at the same times, until Elections is closed. A candidacy that needs
// samples more often takes them itself. It also wakes the loops that are late: Go's timers stop while the machine is
// suspended. So a loop whose worker does nothing new runs only when something is due.
func (e *Elections) sample() {
	tick := time.NewTicker(maxSample)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-e.ctx.Done():
			return
		}
		now := e.cfg.Now() // a system call
		for _, r := range e.all() {
			r.sample(now)
		}
	}
}

func (r *resource) sample(now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.mu.loops {
		sampled := c.liveness.isLimited() && c.liveness.sampledOftenEnough() && c.sampleLocked(now)
		if sampled || now >= c.due {
			poke(c.poke)
		}
	}
}
