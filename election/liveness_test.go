package election

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

func TestSilenceIsWhatNobodyHeardForTheTimeout(t *testing.T) {
	t.Parallel()
	now := time.Hour
	l := liveness{timeout: 2 * time.Second} // eight samples
	l.sample(now, signs{bytes: true})
	for range 7 {
		now += l.interval()
		if l.sample(now, signs{}); l.unresponsive {
			t.Fatalf("silent after %v", l.quiet)
		}
	}
	now += l.interval()
	if l.sample(now, signs{}); !l.unresponsive {
		t.Fatalf("not silent after %v", l.quiet)
	}
	now += l.interval()
	if l.sample(now, signs{bytes: true}); l.unresponsive || l.quiet != 0 {
		t.Errorf("after activity: %+v", l)
	}
}

func TestSuspendedProxyTakesNobodyForDead(t *testing.T) {
	t.Parallel()
	l := liveness{timeout: 8 * time.Second}
	l.sample(time.Hour, signs{bytes: true})
	l.sample(2*time.Hour, signs{}) // the machine was suspended
	if l.unresponsive || l.quiet > 2*l.interval() {
		t.Errorf("an hour of suspension counts as %v of inactivity", l.quiet)
	}
}

func TestWorkerWithoutTimeoutIsNeverSilent(t *testing.T) {
	t.Parallel()
	var l liveness
	for now := time.Hour; now < 2*time.Hour; now += time.Minute {
		if l.sample(now, signs{}); l.unresponsive {
			t.Fatal("silent")
		}
	}
}

// TestAWorkerGoesOnUnderItsEpoch after a silence that counts if it is the longest.
func TestAWorkerGoesOnUnderItsEpoch(t *testing.T) {
	t.Parallel()
	leads := &fencing.Status{Role: fencing.Leader, Epoch: 3}
	var l liveness
	for i, c := range []struct {
		silence, quiet time.Duration
		status         *fencing.Status
		want           bool
	}{
		{time.Second, 2 * time.Second, leads, false}, // it is silent still
		{time.Second, 0, &fencing.Status{}, false},   // it has no epoch
		{time.Second, 0, &fencing.Status{Role: fencing.Superseded, Epoch: 3}, false},
		{0, 0, leads, false},
		{time.Second, 0, leads, true},
		{time.Second, 0, leads, false},
		{2 * time.Second, 0, &fencing.Status{Lapsed: true, Epoch: 3}, true}, // its lease was released
	} {
		l.quiet = c.quiet
		if got := l.wentOn(c.silence, c.status); got != c.want {
			t.Errorf("%d: it went on: %v, want %v", i, got, c.want)
		}
	}
}

// beating is a worker that has promised heartbeats, and the loop that samples it.
type beating struct {
	liveness
	timeout  time.Duration // its worker timeout
	extended func(time.Duration) time.Duration
	rand     *rand.Rand
	now      time.Duration
	owed     bool // the server works for it all the time
}

func newBeating(timeout, every time.Duration) *beating {
	b := &beating{timeout: timeout, rand: rand.New(rand.NewPCG(5, 6)), now: time.Hour}
	b.extended = func(d time.Duration) time.Duration { return d }
	b.heartbeats.Promise(every)
	return b
}

// step takes the next sample.
func (b *beating) step(bytes bool) {
	b.liveness.timeout = b.tolerates(b.timeout, b.extended)
	b.sample(b.now, signs{bytes: bytes, owed: b.owed})
	b.now += b.next() + time.Duration(b.rand.Int64N(int64(5*time.Millisecond)))
}

// beats lets the worker send so many heartbeats, after these gaps, and returns how often it was
// taken for dead.
func (b *beating) beats(n int, gap func() time.Duration) (alarms int) {
	due := b.now
	for range n {
		for due += gap(); b.now < due; {
			was := b.unresponsive
			if b.step(false); b.unresponsive && !was {
				alarms++
			}
		}
		b.step(true)
	}
	return alarms
}

// found lets the worker stop, and returns after which silence it is taken for dead.
func (b *beating) found() time.Duration {
	for b.quiet < 24*time.Hour && !b.unresponsive {
		b.step(false)
	}
	return b.quiet
}

// about returns a function that returns gaps of d, give or take 5 %.
func (b *beating) about(d time.Duration) func() time.Duration {
	return func() time.Duration { return d*95/100 + time.Duration(b.rand.Int64N(int64(d/10))) }
}

func TestAWorkerThatPromisesHeartbeatsIsMissedWithinSeconds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		every, timeout time.Duration
		beats          int
		want           time.Duration
	}{
		"1 s":                               {time.Second, 30 * time.Second, 5000, 7500 * time.Millisecond},
		"100 ms":                            {100 * time.Millisecond, time.Minute, 5000, 6600 * time.Millisecond},
		"10 s":                              {10 * time.Second, 30 * time.Second, 1200, 16500 * time.Millisecond},
		"without a timeout":                 {time.Second, 0, 1200, 7500 * time.Millisecond},
		"with a shorter timeout":            {time.Second, 5 * time.Second, 1200, 5 * time.Second},
		"before there are enough":           {time.Second, 30 * time.Second, 90, 30 * time.Second},
		"no promise, but regular all along": {0, 30 * time.Second, 1200, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBeating(c.timeout, c.every)
			gap := b.about(max(c.every, 100*time.Millisecond))
			if alarms := b.beats(c.beats, gap); alarms > 0 {
				t.Errorf("taken for dead %d times", alarms)
			}
			if found := b.found(); found < c.want-200*time.Millisecond || found > c.want+300*time.Millisecond {
				t.Errorf("found dead after %v, want about %v", found, c.want)
			}
			if b.expired != b.liveness.timeout {
				t.Errorf("the timeout that had passed is %v, want %v", b.expired, b.liveness.timeout)
			}
		})
	}
}

func TestAFalseAlarmDoublesWhatTheDetectorSays(t *testing.T) {
	t.Parallel()
	b := newBeating(time.Minute, time.Second)
	b.beats(1200, b.about(time.Second))
	var alarms extensions
	b.extended = func(d time.Duration) time.Duration { return alarms.of(workerKey{}, 0).timeout(d, 4, 0) }
	for _, want := range []time.Duration{7500 * time.Millisecond, 15 * time.Second, 30 * time.Second, 30 * time.Second} {
		if found := b.found(); found < want-200*time.Millisecond || found > want+time.Second {
			t.Errorf("found dead after %v, want about %v", found, want)
		}
		alarms.record(workerKey{}, b.expired, 0)
		b.beats(100, b.about(time.Second))
	}
}

// TestWorkOfTheServerIsNoGap: a worker with one connection sends no heartbeat while it waits for an
// answer, and one with a second connection does.
func TestWorkOfTheServerIsNoGap(t *testing.T) {
	t.Parallel()
	b := newBeating(0, time.Second)
	b.owed = true
	b.beats(1000, b.about(30*time.Second))
	if limit, ok := b.heartbeats.Limit(); ok {
		t.Errorf("a worker that waits for answers has a limit of %v", limit)
	}
	b.beats(1000, b.about(time.Second))
	if limit, ok := b.heartbeats.Limit(); !ok || limit > 8*time.Second {
		t.Errorf("the limit of a worker whose heartbeats go on while it waits for answers is %v, %v", limit, ok)
	}
	if b.owed = false; b.found() > 8*time.Second {
		t.Errorf("found dead after %v", b.quiet)
	}
}

func TestOnlyGapsOfThePresentPromiseCount(t *testing.T) {
	t.Parallel()
	b := newBeating(0, time.Second)
	b.beats(200, b.about(time.Second))
	before, _ := b.heartbeats.Limit()
	b.heartbeats.Promise(0)
	b.step(true)
	if _, ok := b.heartbeats.Limit(); ok || b.judged() {
		t.Error("a worker that has taken its promise back is judged by it")
	}
	b.now += time.Hour
	b.heartbeats.Promise(time.Second)
	b.step(true) // its gap is no sample
	if limit, ok := b.heartbeats.Limit(); !ok || limit != before {
		t.Errorf("a worker that repeats its promise has the limit %v, %v; before %v", limit, ok, before)
	}
	b.heartbeats.Promise(2 * time.Second)
	if _, ok := b.heartbeats.Limit(); ok {
		t.Error("a new promise is judged by the gaps of the last one")
	}
}

func TestSettingsSayWhatToChange(t *testing.T) {
	t.Parallel()
	if err := DefaultSettings().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	if trust := DefaultSettings().trust(); trust != 9*time.Second {
		t.Errorf("a lease of 10s is trusted for %v", trust)
	}
	for text, s := range map[string]Settings{
		"ttl":            {},
		"margin":         {TTL: time.Second, Margin: time.Second},
		"worker timeout": {TTL: time.Second, WorkerTimeout: -1},
		"linger":         {TTL: time.Second, Linger: -1},
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want an error about the %s", s, err, text)
		}
	}
}

// counted is a connection that counts how often it is asked what its worker does.
type counted struct {
	idle
	asked int
}

func (c *counted) Activity() (uint64, bool) {
	c.asked++
	return 0, false
}

// TestStepsThatFollowEachOtherTakeOneSample: each connection that comes makes for a step. A worker that is unresponsive is
// sampled in each.
func TestStepsThatFollowEachOtherTakeOneSample(t *testing.T) {
	t.Parallel()
	now := time.Minute
	_, c := resourceElsewhere("w", &now)
	m := &counted{}
	c.mu.add(m, member{campaigns: true, timeout: time.Minute})
	step := func(want int) {
		t.Helper()
		c.sampleInStep(now)
		c.mu.Lock()
		defer c.mu.Unlock()
		if wait := c.nextLocked(now); m.asked != want || c.mu.liveness.skipped && wait > minSample {
			t.Fatalf("it was asked %d times, want %d, and the next step comes in %v", m.asked, want, wait)
		}
	}
	step(1)
	step(1)
	now += minSample / 2
	step(1)
	now += minSample
	step(2)
	c.mu.liveness.unresponsive = true
	step(3)
	c.mu.liveness.unresponsive = true
	step(4)
}
