package stopwatch

import (
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// another is a test of its own.
type another struct{ testing.TB }

// took returns for how long a room held another test back.
func took(t *testing.T, r *room) time.Duration {
	t.Helper()
	test, began := &another{t}, time.Now()
	r.await(test)
	held := time.Since(began)
	r.await(test)
	if again := time.Since(began); again != held {
		t.Errorf("a test that has begun was held back for %v", again-held)
	}
	return held
}

func TestARoomHoldsTestsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		busyUntil := time.Now().Add(5 * time.Second)
		r := &room{limit: 2, ready: func() float64 {
			if time.Now().Before(busyUntil) {
				return 3
			}
			return 1
		}}
		for i, want := range []time.Duration{5 * time.Second, 0, appears} { // the third waits until the first shows
			if held := took(t, r); held < want || held > want+100*time.Millisecond {
				t.Errorf("test %d was held back for %v, want %v", i, held, want)
			}
		}
		busyUntil = time.Now().Add(time.Hour)
		if held := took(t, r); held < roomPatience || held > roomPatience+100*time.Millisecond {
			t.Errorf("on a machine that stays busy, a test was held back for %v, want %v", held, roomPatience)
		}
	})
}

func TestTasksAreCounted(t *testing.T) {
	t.Parallel()
	_, unknown := os.Stat("/proc/stat")
	if n := ready(); (unknown == nil) != (n >= 1) { // this one runs
		t.Errorf("%v tasks are ready; /proc/stat: %v", n, unknown)
	}
}
