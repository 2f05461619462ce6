package system

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// stopwatch tells what was late by itself from what waited for a processor: a bound
// grows by the time, since the watch was started, in which something on this machine
// could run and did not.
type stopwatch struct{ stalled time.Duration }

func startWatch(t testing.TB) stopwatch { return stopwatch{stalled(t)} }

// late reports whether something that took so long exceeds its bound.
func (w stopwatch) late(t testing.TB, took, bound time.Duration) bool {
	t.Helper()
	if took <= bound+slack {
		return false
	}
	const updated = 3 * time.Second // the kernel updates its figure every 2 s
	return !holds(updated, func() bool { return took <= bound+slack+stalled(t)-w.stalled })
}

var cpuPressure = regexp.MustCompile(`(?m)^some .* total=(\d+)$`)

// stalled is for how long, since the machine started, at least one task waited for a
// processor. Where the kernel does not say, it is the time itself, so that no bound
// is ever exceeded: what is awaited must then only happen.
func stalled(t testing.TB) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/pressure/cpu")
	m := cpuPressure.FindSubmatch(text)
	if err != nil || m == nil {
		return time.Since(started)
	}
	micros, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatalf("read the pressure on processors: %v", err)
	}
	return time.Duration(micros) * time.Microsecond
}

var started = time.Now()
