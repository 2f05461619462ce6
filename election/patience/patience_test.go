package patience_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/patience"
)

var w = patience.Worker{Database: "d", Resource: "r", User: "u", Worker: "w"}

// TestAFalseAlarmDoublesTheTimeout, within limits, and for an hour.
func TestAFalseAlarmDoublesTheTimeout(t *testing.T) {
	t.Parallel()
	const asked = 10 * time.Second
	var all patience.Extensions
	if got := all.Of(w, 0); got.Alarms != 0 || got.Timeout(asked, 4, 0) != asked {
		t.Errorf("before any alarm: %+v", got)
	}
	all.Record(w, asked, time.Minute)
	for name, c := range map[string]struct {
		factor int
		most   time.Duration
		want   time.Duration
	}{
		"once":               {4, 0, 20 * time.Second},
		"not extended":       {1, 0, asked},
		"up to a limit":      {4, 15 * time.Second, 15 * time.Second},
		"a limit below that": {4, 5 * time.Second, asked},
	} {
		if got := all.Of(w, time.Minute).Timeout(asked, c.factor, c.most); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if got := all.Record(w, 20*time.Second, 30*time.Minute); got.Alarms != 2 || got.Timeout(asked, 3, 0) != 30*time.Second {
		t.Errorf("after the second alarm: %+v", got)
	}
	if got := all.Of(w, 90*time.Minute-1); got.Alarms != 2 {
		t.Errorf("within an hour: %+v", got)
	}
	if got := all.Of(w, 90*time.Minute); got.Alarms != 0 {
		t.Errorf("after an hour: %+v", got)
	}
}

// TestARoleDisplacesOnlyItsOwnWorkers: each remembers some, and forgets first whose extension ends first.
func TestARoleDisplacesOnlyItsOwnWorkers(t *testing.T) {
	t.Parallel()
	var all patience.Extensions
	first, other := w, w
	other.User = "other"
	all.Record(first, time.Second, 0)
	all.Record(other, time.Second, 0)
	for i := range 64 {
		next := w
		next.Worker = fmt.Sprint("w", i)
		all.Record(next, time.Second, time.Minute)
	}
	if got := all.Of(first, time.Minute); got.Alarms != 0 {
		t.Errorf("the first of 65 workers is remembered: %+v", got)
	}
	if got := all.Of(other, time.Minute); got.Alarms != 1 {
		t.Errorf("the worker of another role: %+v", got)
	}
}
