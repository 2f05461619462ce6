package heartbeat

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// ours are the parameters that Fencepost uses.
var ours = Config{Threshold: 12, LeastDeviation: 500 * time.Millisecond, Pause: 3 * time.Second, Window: 1000, Least: 100, Longest: 2 * time.Minute}

// traffic returns a function that returns the gaps of a process in seconds, one after
// another.
type traffic func(r *rand.Rand) (next func() float64)

func heartbeat(r *rand.Rand) func() float64 {
	return func() float64 { return 0.95 + 0.1*r.Float64() }
}

// pauses is a heartbeat of a process that pauses for 2 to 5 s now and then.
func pauses(r *rand.Rand) func() float64 {
	beat := heartbeat(r)
	return func() float64 {
		if r.IntN(2000) == 0 {
			return 2 + 3*r.Float64()
		}
		return beat()
	}
}

func poisson(r *rand.Rand) func() float64 {
	return func() float64 { return r.ExpFloat64() / 5 }
}

func lognormal(r *rand.Rand) func() float64 {
	return func() float64 { return 0.1 * math.Exp(1.5*r.NormFloat64()) }
}

// both is a heartbeat beside traffic, Poisson 1 every 3 s.
func both(r *rand.Rand) func() float64 {
	beat := heartbeat(r)
	now, nextBeat, nextMessage := 0.0, 0.0, 0.0
	return func() float64 {
		last := now
		if now = min(nextBeat, nextMessage); now == nextBeat {
			nextBeat += beat()
		} else {
			nextMessage += 3 * r.ExpFloat64()
		}
		return now - last
	}
}

// figures say when a process is found dead, in seconds and on average, and how often a
// living one is, in a day.
type figures struct{ found, alarms float64 }

// simulate lets a Detector judge a process with 300,000 gaps.
func simulate(cfg Config, next func() float64) (f figures) {
	d := New(cfg)
	var judged, days float64
	for range 300_000 {
		gap := next()
		if limit, ok := d.Limit(); ok {
			judged++
			days += gap / (24 * 60 * 60)
			f.found += limit.Seconds()
			if gap >= limit.Seconds() {
				f.alarms++
			}
		}
		d.Add(time.Duration(gap * float64(time.Second)))
	}
	return figures{f.found / judged, f.alarms / days}
}

// TestSimulation compares the detector with the figures of an independent simulation.
func TestSimulation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		traffic traffic
		want    figures
	}{
		{"heartbeat 1 s ± 5 %", heartbeat, figures{7.5, 0}},
		{"the same, 1 in 2000 pauses 2 to 5 s", pauses, figures{7.5, 0}},
		{"traffic, Poisson 5/s", poisson, figures{6.7, 0}},
		{"traffic, lognormal", lognormal, figures{8.7, 395}},
		{"traffic and heartbeat 1 s", both, figures{7.3, 0}},
	} {
		got := simulate(ours, c.traffic(rand.New(rand.NewPCG(1, 2))))
		t.Logf("%s: found after %.2f s, %.0f false alarms a day", c.name, got.found, got.alarms)
		if math.Abs(got.found-c.want.found) > 0.08*c.want.found+0.05 {
			t.Errorf("%s: found after %.2f s, want about %v s", c.name, got.found, c.want.found)
		}
		if math.Abs(got.alarms-c.want.alarms) > 0.2*c.want.alarms {
			t.Errorf("%s: %.1f false alarms a day, want about %v", c.name, got.alarms, c.want.alarms)
		}
	}
}

// filled returns a Detector that has seen so many gaps of this length.
func filled(cfg Config, n int, gap time.Duration) *Detector {
	d := New(cfg)
	for range n {
		d.Add(gap)
	}
	return d
}

func TestNoVerdictBeforeThereAreEnoughGaps(t *testing.T) {
	t.Parallel()
	d := filled(ours, ours.Least-1, time.Second)
	if limit, ok := d.Limit(); ok {
		t.Errorf("a limit of %v after %d gaps", limit, d.Gaps())
	}
	if phi, ok := d.Phi(time.Hour); ok {
		t.Errorf("a phi of %v after %d gaps", phi, d.Gaps())
	}
	d.Add(time.Second)
	if limit, ok := d.Limit(); !ok || (limit-ours.Ideal(time.Second)).Abs() > time.Microsecond {
		t.Errorf("after %d equal gaps the limit is %v, %v; want %v", d.Gaps(), limit, ok, ours.Ideal(time.Second))
	}
}

func TestPhiReachesTheThresholdAtTheLimit(t *testing.T) {
	t.Parallel()
	d, next := New(ours), lognormal(rand.New(rand.NewPCG(3, 4)))
	for range ours.Window {
		d.Add(time.Duration(next() * float64(time.Second)))
	}
	limit, _ := d.Limit()
	if phi, _ := d.Phi(limit); math.Abs(phi-ours.Threshold) > 0.01 {
		t.Errorf("phi is %v at the limit %v, want %v", phi, limit, ours.Threshold)
	}
}

func TestPhiGrowsWithTheSilence(t *testing.T) {
	t.Parallel()
	d := filled(ours, ours.Window, time.Second)
	last := -1.0
	for silence := time.Duration(0); silence < time.Hour; silence += 100 * time.Millisecond {
		phi, ok := d.Phi(silence)
		if !ok || math.IsNaN(phi) || math.IsInf(phi, 0) || phi < last || math.Signbit(phi) {
			t.Fatalf("phi is %v after a silence of %v, and was %v before", phi, silence, last)
		}
		last = phi
	}
	if phi, _ := d.Phi(0); phi > 1e-9 {
		t.Errorf("phi is %v without any silence", phi)
	}
}

func TestOnlyTheLastGapsCount(t *testing.T) {
	t.Parallel()
	d := filled(ours, 3*ours.Window/2, time.Minute)
	for range ours.Window {
		d.Add(time.Second)
	}
	if limit, _ := d.Limit(); (limit-ours.Ideal(time.Second)).Abs() > time.Microsecond || d.Gaps() != ours.Window {
		t.Errorf("after a window of gaps of a second the limit is %v, from %d gaps", limit, d.Gaps())
	}
}

func TestALongGapCountsAsTheLongest(t *testing.T) {
	t.Parallel()
	cfg := ours
	cfg.Longest = cfg.Ideal(time.Second)
	d := filled(cfg, cfg.Window, time.Second)
	d.Add(24 * time.Hour)
	d.Add(-time.Second) // a clock that went back
	if limit, _ := d.Limit(); limit > 7600*time.Millisecond {
		t.Errorf("after one gap of a day the limit is %v", limit)
	}
}

// TestAPromiseMayBeKeptAtLast: a worker that has sent far more often than it has promised is not
// dead when it sends only as often as that.
func TestAPromiseMayBeKeptAtLast(t *testing.T) {
	t.Parallel()
	const promised = 20 * time.Second
	var w Worker
	w.Promise(promised)
	for range 2000 {
		w.Pass(100*time.Millisecond, true, false)
	}
	if limit, ok := w.Limit(); !ok || limit < promised+3*time.Second || limit > promised+10*time.Second {
		t.Errorf("it counts as dead after %v (%v)", limit, ok)
	}
	w.Promise(time.Second)
	for range 2000 {
		w.Pass(time.Second, true, false)
	}
	if limit, ok := w.Limit(); !ok || limit < 7*time.Second || limit > 8*time.Second {
		t.Errorf("with regular heartbeats it counts as dead after %v (%v)", limit, ok)
	}
}
