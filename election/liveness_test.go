package election

import (
	"strings"
	"testing"
	"time"
)

func TestSilenceIsWhatNobodyHeardForTheTimeout(t *testing.T) {
	t.Parallel()
	now := time.Hour
	l := liveness{timeout: 2 * time.Second} // eight samples
	l.sample(now, true)
	for range 7 {
		now += l.interval()
		if l.sample(now, false); l.unresponsive {
			t.Fatalf("silent after %v", l.quiet)
		}
	}
	now += l.interval()
	if l.sample(now, false); !l.unresponsive {
		t.Fatalf("not silent after %v", l.quiet)
	}
	now += l.interval()
	if l.sample(now, true); l.unresponsive || l.quiet != 0 {
		t.Errorf("after activity: %+v", l)
	}
}

func TestSuspendedProxyTakesNobodyForDead(t *testing.T) {
	t.Parallel()
	l := liveness{timeout: 8 * time.Second}
	l.sample(time.Hour, true)
	l.sample(2*time.Hour, false) // the machine was suspended
	if l.unresponsive || l.quiet > 2*l.interval() {
		t.Errorf("an hour of suspension counts as %v of inactivity", l.quiet)
	}
}

func TestWorkerWithoutTimeoutIsNeverSilent(t *testing.T) {
	t.Parallel()
	var l liveness
	for now := time.Hour; now < 2*time.Hour; now += time.Minute {
		if l.sample(now, false); l.unresponsive {
			t.Fatal("silent")
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
		"margin":         {TTL: time.Second, Margin: time.Second},
		"worker timeout": {TTL: time.Second, WorkerTimeout: -1},
		"linger":         {TTL: time.Second, Linger: -1},
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want an error about the %s", s, err, text)
		}
	}
}
