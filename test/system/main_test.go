package system

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/redistest"
)

// slack is added to tested time limits, because several servers, proxies and workers
// share two cores here. stopwatch allows for other load on the machine.
const slack = time.Second

// stopServers ends the servers that all tests share, and which do not end by themselves.
var stopServers = []func(){etcdtest.StopShared, redistest.StopShared}

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		os.Exit(workerMain(os.Stdin, os.Stdout))
	}
	pgtest.Main(m, stopServers...)
}

// stopwatch distinguishes what was late by itself from what waited for a processor. It
// extends a time limit by the time during which something on this machine was runnable
// but not running since the watch was started.
type stopwatch struct{ stalled time.Duration }

func startWatch(t testing.TB) stopwatch { return stopwatch{stalled(t)} }

// late reports whether something that took so long exceeds its limit.
func (w stopwatch) late(t testing.TB, took, bound time.Duration) bool {
	t.Helper()
	if took <= bound+slack {
		return false
	}
	const updated = 3 * time.Second // the kernel updates its figure every 2 s
	return !process.Holds(updated, func() bool { return took <= bound+slack+stalled(t)-w.stalled })
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
