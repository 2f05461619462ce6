// Package stopwatch lets tests check time limits on a machine that has other work to do.
package stopwatch

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// Watch distinguishes what was late by itself from what waited for a processor. It extends a
// time limit by the time during which something on this machine was runnable but not running
// since the watch was started.
type Watch struct{ stalled time.Duration }

// Start starts a watch.
func Start(t testing.TB) Watch { return Watch{stalled(t)} }

// Late reports whether something that began no earlier than the watch, and took so long,
// exceeds its limit.
func (w Watch) Late(t testing.TB, took, bound time.Duration) bool {
	t.Helper()
	const updated = 3 * time.Second // the kernel updates its figure every 2 s
	for deadline := time.Now().Add(updated); took > bound+stalled(t)-w.stalled; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return true
		}
	}
	return false
}

// Eventually polls until holds returns true. It fails the test if that takes longer than a limit,
// which is extended as by Late.
func Eventually(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	for w, began := Start(t), time.Now(); !holds(); time.Sleep(5 * time.Millisecond) {
		if took := time.Since(began); took > limit && w.Late(t, took, limit) {
			t.Fatalf("after %v this does not hold: %s", took, what)
		}
	}
}

var cpuPressure = regexp.MustCompile(`(?m)^some .* total=(\d+)$`)

// stalled returns for how long, since the machine started, at least one task waited for
// a processor. If the kernel does not provide that, it returns the elapsed time, so
// that no limit is ever exceeded: what is awaited must then only happen eventually.
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
