package election

import "testing"

func TestStrayAwardIsOneOfAnUncertainAcquire(t *testing.T) {
	t.Parallel()
	mine := LeaseObservation{State: Held, Incarnation: "a", Index: 7}
	for name, c := range map[string]struct {
		l    leftovers
		o    LeaseObservation
		want bool
	}{
		"no Acquire is uncertain":  {leftovers{}, mine, false},
		"held by this incarnation": {leftovers{uncertain: true}, mine, true},
		"an earlier one released":  {leftovers{uncertain: true, stray: 6}, mine, true},
		"released already":         {leftovers{uncertain: true, stray: 7}, mine, false},
		"held by another one":      {leftovers{uncertain: true}, LeaseObservation{State: Held, Incarnation: "b", Index: 7}, false},
		"free":                     {leftovers{uncertain: true}, LeaseObservation{State: Freed, Incarnation: "a", Index: 7}, false},
	} {
		if got := c.l.strayed(c.o, "a"); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWhatAReleaseLeaves(t *testing.T) {
	t.Parallel()
	awarded, unknown := &Lease{Index: 7}, &Lease{}
	for name, c := range map[string]struct {
		before leftovers
		lease  *Lease
		why    Reason
		after  leftovers
		again  bool
	}{
		"left":                     {leftovers{}, awarded, ReasonLeft, leftovers{}, false},
		"unresponsive":             {leftovers{}, awarded, ReasonUnresponsive, leftovers{unresponsive: awarded}, false},
		"unresponsive, then left":  {leftovers{unresponsive: awarded}, awarded, ReasonLeft, leftovers{}, true},
		"an award of many":         {leftovers{uncertain: true}, awarded, ReasonLeft, leftovers{uncertain: true}, false},
		"whatever it may have got": {leftovers{uncertain: true}, unknown, ReasonLeft, leftovers{}, false},
	} {
		l := c.before
		if again := l.released(c.lease, c.why); again != c.again || l != c.after {
			t.Errorf("%s: %+v, again is %v; want %+v", name, l, again, c.after)
		}
	}
}
