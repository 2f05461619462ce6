package stopwatch

import (
	"os"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
)

const (
	// roomFor is how many tasks may be ready to run on each processor while another test begins. With more of them,
	// servers need seconds for what has to be answered within seconds.
	roomFor = 8
	// roomPatience bounds how long a test is held back: what keeps the machine busy may be no test.
	roomPatience = time.Minute
	// appears is how long a test needs until what it has started shows in the number of tasks.
	appears = time.Second
)

// A room lets in one test after the other.
type room struct {
	limit float64        // how many tasks may be ready to run when a test begins
	ready func() float64 // how many are
	known sync.Map       // testing.TB -> struct{}: the tests that were let in
	mu    sync.Mutex
	begun []time.Time // when tests were let in, as far as they may not show yet
}

var machine = room{limit: float64(roomFor * runtime.NumCPU()), ready: ready}

// AwaitRoom holds a test back while this machine has far more to do than it has processors, for a minute at most. The
// servers of a test call it before they start, so that as many tests run at a time as the machine can serve, whatever
// else runs there. The first call of a test or subtest counts: one that has begun is not held back. Without /proc, only
// the tests that have just begun are counted.
func AwaitRoom(t testing.TB) {
	t.Helper()
	machine.await(t)
}

func (r *room) await(t testing.TB) {
	if _, begun := r.known.LoadOrStore(t, struct{}{}); begun {
		return
	}
	t.Cleanup(func() { r.known.Delete(t) })
	late := time.Now().Add(roomPatience)
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.ready()+r.hidden() > r.limit && time.Now().Before(late) {
		time.Sleep(10 * time.Millisecond) // between two looks
	}
	r.begun = append(r.begun, time.Now())
}

// hidden counts the tests that have begun and may not show yet. r.mu is held.
func (r *room) hidden() float64 {
	for len(r.begun) > 0 && time.Since(r.begun[0]) >= appears {
		r.begun = r.begun[1:]
	}
	return float64(len(r.begun))
}

var runnable = regexp.MustCompile(`(?m)^procs_running (\d+)$`)

// ready returns how many tasks run or are ready to run on this machine, on average of a few looks, and 0 if the kernel
// does not say.
func ready() float64 {
	const looks = 5
	sum := 0
	for range looks {
		stat, err := os.ReadFile("/proc/stat")
		found := runnable.FindSubmatch(stat)
		if err != nil || found == nil {
			return 0
		}
		n, _ := strconv.Atoi(string(found[1])) // digits
		sum += n
		time.Sleep(10 * time.Millisecond)
	}
	return float64(sum) / looks
}
