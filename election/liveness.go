package election

import (
	"context"
	"sync"
	"time"

	"github.com/fencepost/fencepost/fencing"
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

// resumed reports whether a worker with this status, which was silent for that long before the last sample, has continued
// under its epoch, after the longest silence so far.
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

// sampleInStep samples the activity of all members, unless that was just done. A sample asks each member, so many
// connections that come together would otherwise cost a sample of all of them each. A worker that is unresponsive is
// sampled in each step, which is about what it does now.
func (c *Candidacy) sampleInStep(now time.Duration) {
	c.mu.Lock()
	l := &c.mu.liveness
	l.skipped = l.last != 0 && now-l.last < minSample && !l.unresponsive
	skipped := l.skipped
	c.mu.Unlock()
	if !skipped {
		c.sample(now)
	}
}

// sample samples the activity of all members. It reports whether that concerns the loop, which
// calls it, as the sampler does.
func (c *Candidacy) sample(now time.Duration) (concerns bool) {
	c.samples.Lock()
	defer c.samples.Unlock()
	s := c.signs()
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.mu.liveness
	l.timeout = c.allowedSilence(now)
	was := l.unresponsive
	alive := s.alive()
	s.owed = s.owed || c.mu.waiters > 0
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
		c.mu.tryAt = now
	}
	return was && alive || was != l.unresponsive || !l.sampledOftenEnough()
}

// allowedSilence returns how long the worker may be inactive now, 0 for unlimited. A promise of heartbeats can only
// shorten that. c.mu is held.
func (c *Candidacy) allowedSilence(now time.Duration) time.Duration {
	asked := c.mu.timeout(c.set.WorkerTimeout)
	if every := c.mu.heartbeat(); every > 0 && (asked == 0 || every+heartbeatLate < asked) {
		asked = every + heartbeatLate
	}
	return c.extendedTimeout(asked, now)
}

// samples is what samples of a candidacy need. It is locked during a sample.
type samples struct {
	sync.Mutex
	campaigning []sampled
}

type sampled struct {
	fencing.Member
	*member
}

// signs returns what the campaigning members have done since the last sample. c.samples is locked.
func (c *Candidacy) signs() (all signs) {
	sample := &c.samples.campaigning
	c.mu.Lock()
	for m, k := range c.mu.members {
		if k.campaigns {
			*sample = append(*sample, sampled{m, k})
		}
	}
	c.mu.Unlock()
	for _, k := range *sample { // without c.mu: this calls the proxy
		one := k.look(k.Member)
		all.bytes, all.owed = all.bytes || one.bytes, all.owed || one.owed
	}
	clear(*sample)
	*sample = (*sample)[:0]
	return all
}

// look returns what the connection has done since the last sample.
func (k *member) look(m fencing.Member) signs {
	reads, owed := m.Activity()
	s := signs{bytes: !k.seen || reads != k.reads, owed: owed}
	k.reads, k.seen = reads, true
	return s
}

// sampler samples the workers of all candidacies at the same times. A candidacy that needs samples more often
// takes them itself. The sampler also wakes the loops that are late: Go's timers stop while the machine is
// suspended. So a loop whose worker does nothing new runs only when something is due.
type sampler struct {
	mu      sync.Mutex
	all     map[*Candidacy]struct{}
	started bool
}

// startSampling makes the sampler sample a candidacy. The first one starts it; it runs until Elections is closed.
func (e *Elections) startSampling(c *Candidacy) {
	s := &e.sampler
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*Candidacy]struct{}{}
	}
	s.all[c] = struct{}{}
	if !s.started {
		s.started = true
		e.wg.Go(func() { s.run(e.ctx, e.cfg.Now) }) // the candidacy is one that Close waits for
	}
}

func (s *sampler) remove(c *Candidacy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, c)
}

func (s *sampler) run(ctx context.Context, now func() time.Duration) {
	tick := time.NewTicker(maxSample)
	defer tick.Stop()
	var all []*Candidacy
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		all = s.list(all[:0])
		at := now()
		for _, c := range all {
			c.tick(at)
		}
		clear(all)
	}
}

// list appends all candidacies to a slice.
func (s *sampler) list(all []*Candidacy) []*Candidacy {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.all {
		all = append(all, c)
	}
	return all
}

// tick samples the candidacy if nothing more frequent does, and wakes its loop if that has something to do.
func (c *Candidacy) tick(now time.Duration) {
	c.mu.Lock()
	due := c.mu.liveness.isLimited() && c.mu.liveness.sampledOftenEnough()
	c.mu.Unlock()
	if due && c.sample(now) || int64(now) >= c.next.Load() {
		poke(c.poke)
	}
}
