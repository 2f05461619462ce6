package drivers

import (
	"testing"
	"time"
)

// tick is how often a watch looks at the clock.
const tick = 10 * time.Millisecond

// stopwatch measures a time, and how busy the machine is meanwhile.
type stopwatch struct {
	began time.Time
	over  chan struct{}
	late  chan time.Duration // by how much all ticks together came late
}

func startWatch(t *testing.T) stopwatch {
	t.Helper()
	w := stopwatch{began: time.Now(), over: make(chan struct{}), late: make(chan time.Duration, 1)}
	go func() {
		var late time.Duration
		defer func() { w.late <- late }()
		for next := time.Now(); ; next = time.Now() {
			select {
			case <-w.over:
				return
			case <-t.Context().Done(): // the test has failed before it stopped the watch
				return
			case <-time.After(tick):
				late += time.Since(next) - tick
			}
		}
	}()
	return w
}

// stop returns the time, and by how much all ticks together came late: almost nothing on an idle
// machine, and half of the time where the processors have several programs each to run.
func (w stopwatch) stop() (took, late time.Duration) {
	took = time.Since(w.began)
	close(w.over)
	return took, <-w.late
}

// exceeds reports whether what took so long, with ticks so late, exceeds its bound. It allows
// for the four programs that have to run one after the other for a write: the application,
// Fencepost, Postgres, and the test, which reads the result.
func exceeds(took, late, bound time.Duration) bool { return took > bound+4*late }

// worksWithin waits until the pool writes, and fails the test if that exceeds the bound.
func (p *pool) worksWithin(t *testing.T, bound time.Duration) {
	t.Helper()
	watch := startWatch(t)
	p.works(t)
	took, late := watch.stop()
	t.Logf("it writes again after %v, with ticks %v late; the bound is %v",
		took.Round(time.Millisecond), late.Round(time.Millisecond), bound.Round(time.Millisecond))
	if exceeds(took, late, bound) {
		t.Error("it wrote again too late")
	}
}

func TestABusyMachineExtendsBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		took, late, bound time.Duration
		want              bool
	}{
		{2 * time.Second, 20 * time.Millisecond, 2 * time.Second, false},
		{3 * time.Second, 30 * time.Millisecond, 2 * time.Second, true},
		{15 * time.Second, 7 * time.Second, 2 * time.Second, false},
	} {
		if got := exceeds(c.took, c.late, c.bound); got != c.want {
			t.Errorf("%v with ticks %v late exceeds %v: %t", c.took, c.late, c.bound, got)
		}
	}
	w := startWatch(t)
	time.Sleep(2 * tick)
	if took, late := w.stop(); took < 2*tick || late < 0 || late > took {
		t.Errorf("took %v, with ticks %v late", took, late)
	}
}
