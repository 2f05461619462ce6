package election

import (
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

func TestSilenceIsWhatNoOneHeardForTheTimeout(t *testing.T) {
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

func TestSuspendedProxyTakesNoOneForDead(t *testing.T) {
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

// TestAWorkerContinuesUnderItsEpoch after a silence that counts if it is the longest.
func TestAWorkerContinuesUnderItsEpoch(t *testing.T) {
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
		if got := l.resumed(c.silence, c.status); got != c.want {
			t.Errorf("%d: it resumed: %v, want %v", i, got, c.want)
		}
	}
}

// A promise of heartbeats can only shorten what a worker may be silent, and a false alarm doubles that too.
func TestAWorkerThatPromisesHeartbeatsIsMissedWithinSeconds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		every, timeout, want time.Duration
		alarms               int
	}{
		"1 s":                    {time.Second, 30 * time.Second, 7500 * time.Millisecond, 0},
		"10 s":                   {10 * time.Second, 30 * time.Second, 16500 * time.Millisecond, 0},
		"without a timeout":      {time.Second, 0, 7500 * time.Millisecond, 0},
		"with a shorter timeout": {time.Second, 5 * time.Second, 5 * time.Second, 0},
		"no promise":             {0, 30 * time.Second, 30 * time.Second, 0},
		"after a false alarm":    {time.Second, 30 * time.Second, 15 * time.Second, 1},
	} {
		e := &Elections{}
		candidacy := &Candidacy{r: &resource{e: e}}
		candidacy.members = map[fencing.Member]*member{nil: {campaigns: true, heartbeat: c.every, timeout: c.timeout}}
		for range c.alarms {
			e.extensions.Record(candidacy.patienceKey(), candidacy.allowedSilence(0), 0)
		}
		if got := candidacy.allowedSilence(0); got != c.want {
			t.Errorf("%s: it may be silent for %v, want %v", name, got, c.want)
		}
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
	c.add(m, member{campaigns: true, timeout: time.Minute})
	step := func(want int) {
		t.Helper()
		c.sampleInStepLocked(now)
		c.r.mu.Lock()
		defer c.r.mu.Unlock()
		if wait := c.wait(now); m.asked != want || c.liveness.skipped && wait > minSample {
			t.Fatalf("it was asked %d times, want %d, and the next step comes in %v", m.asked, want, wait)
		}
	}
	step(1)
	step(1)
	now += minSample / 2
	step(1)
	now += minSample
	step(2)
	c.liveness.unresponsive = true
	step(3)
	c.liveness.unresponsive = true
	step(4)
}
