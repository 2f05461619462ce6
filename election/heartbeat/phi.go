package heartbeat

import (
	"math"
	"time"
)

// Config is what a Detector counts as surprising. All of it must be positive, except that
// Pause may be 0.
type Config struct {
	// Threshold is the phi at which the process counts as dead. It is at most 14, because
	// of the precision of the arithmetic.
	Threshold float64
	// LeastDeviation is the least standard deviation that is assumed. Without it, a very
	// regular process would count as dead at the first small delay.
	LeastDeviation time.Duration
	// Pause is how much longer than an average gap the process may always be silent.
	Pause time.Duration
	// Window is how many gaps count, the last ones, and Least how many there must be.
	Window, Least int
	// Longest is what longer gaps are counted as, so that one that had another cause does
	// not make the detector slow for a whole window. It is at most two minutes, so that
	// the sum of the squares of 1000 gaps fits into 64 bits.
	Longest time.Duration
}

// Ideal returns the silence at which a process whose gaps all last as given counts as dead.
func (c Config) Ideal(gap time.Duration) time.Duration {
	return c.Pause + gap + time.Duration(c.deviations()*float64(c.LeastDeviation))
}

// deviations returns how many standard deviations above the mean a gap is as improbable as
// the threshold says: more than z of them have the probability erfc(z/√2)/2.
func (c Config) deviations() float64 { return math.Sqrt2 * math.Erfcinv(2*math.Pow(10, -c.Threshold)) }

// Detector is a phi accrual failure detector (Hayashibara and others, 2004). It learns from
// the gaps between the signs of a process how long a gap can be expected to last. Phi is how
// surprising the current silence is: the probability that a running process is silent for so
// long is 10^-phi, if the gaps have a normal distribution. Gaps of ordinary traffic do not
// have one, so a Detector is only for a process that has promised signs at regular times. It
// must not be used by two goroutines at once.
type Detector struct {
	cfg        Config
	deviations float64 // of the threshold
	// gaps is a ring, in microseconds. sum and squares are exact, so they do not drift.
	gaps         []uint64
	next         int
	sum, squares uint64
}

// New returns a Detector that knows no gap yet.
func New(cfg Config) *Detector { return &Detector{cfg: cfg, deviations: cfg.deviations()} }

// Add tells the detector how long a gap between two signs was.
func (d *Detector) Add(gap time.Duration) {
	g := uint64(max(0, min(gap, d.cfg.Longest)).Microseconds())
	if len(d.gaps) < d.cfg.Window {
		d.gaps = append(d.gaps, g)
	} else {
		old := d.gaps[d.next]
		d.sum, d.squares = d.sum-old, d.squares-old*old
		d.gaps[d.next] = g
		d.next = (d.next + 1) % d.cfg.Window
	}
	d.sum, d.squares = d.sum+g, d.squares+g*g
}

// Gaps returns how many gaps count.
func (d *Detector) Gaps() int { return len(d.gaps) }

// Limit returns the silence at which phi reaches the threshold: a process that has been
// silent for so long counts as dead. It reports false while there are too few gaps.
func (d *Detector) Limit() (silence time.Duration, ok bool) {
	if len(d.gaps) < d.cfg.Least {
		return 0, false
	}
	mean, deviation := d.distribution()
	return d.cfg.Pause + time.Duration((mean+d.deviations*deviation)*float64(time.Microsecond)), true
}

// Phi returns phi after such a silence. It reports false while there are too few gaps.
func (d *Detector) Phi(silence time.Duration) (phi float64, ok bool) {
	if len(d.gaps) < d.cfg.Least {
		return 0, false
	}
	mean, deviation := d.distribution()
	z := (float64((silence - d.cfg.Pause).Microseconds()) - mean) / deviation
	if z > 30 { // erfc would soon be 0: its asymptotic expansion
		return (z*z/2 + math.Log(z*math.Sqrt(2*math.Pi))) / math.Ln10, true
	}
	return math.Abs(math.Log10(math.Erfc(z/math.Sqrt2) / 2)), true // Abs: not -0
}

// distribution returns the mean and the standard deviation of the gaps, in microseconds.
func (d *Detector) distribution() (mean, deviation float64) {
	n := float64(len(d.gaps))
	mean = float64(d.sum) / n
	deviation = math.Sqrt(max(0, float64(d.squares)/n-mean*mean))
	return mean, max(deviation, float64(d.cfg.LeastDeviation.Microseconds()))
}
