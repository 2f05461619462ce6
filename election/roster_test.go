package election

import (
	"errors"
	"testing"

	"github.com/fencepost/fencepost/fencing"
)

func TestRosterKeepsARemovedCandidacyUntilItsLoopEnds(t *testing.T) {
	t.Parallel()
	s := newRoster()
	one, two := &Candidacy{identity: identity{worker: "w"}}, &Candidacy{identity: identity{worker: "w"}}
	s.add(one)
	s.add(two)
	s.remove(one)
	if list := s.byWorker["w"]; len(list) != 1 || list[0] != two || len(s.running()) != 2 {
		t.Errorf("after the first: %d can be joined, %d run", len(list), len(s.running()))
	}
	s.remove(one)
	s.remove(two)
	if len(s.byWorker) != 0 {
		t.Errorf("after both: %v", s.byWorker)
	}
}

func TestOnlyOthersHoldAndDepart(t *testing.T) {
	t.Parallel()
	s := newRoster()
	one, two := &Candidacy{}, &Candidacy{}
	if s.heldByOther(one) || s.otherDeparts(one) || s.vacate(one) || s.departed(one) {
		t.Error("an empty roster has a holder or a departing candidacy")
	}
	s.holder = one
	s.depart(one)
	if s.heldByOther(one) || s.otherDeparts(one) || !s.heldByOther(two) || !s.otherDeparts(two) {
		t.Errorf("%+v", s)
	}
	if s.vacate(two) || !s.vacate(one) || s.departed(two) || !s.departed(one) || s.heldByOther(two) || s.otherDeparts(two) {
		t.Errorf("afterwards: %+v", s)
	}
}

func TestOnlyAHigherGrantShowsThatTheFenceWorks(t *testing.T) {
	t.Parallel()
	fault := errors.New("restored")
	for _, c := range []struct {
		epoch    fencing.Epoch
		recorded bool
		fault    error
	}{
		{4, false, fault},
		{5, true, fault},
		{6, true, nil},
	} {
		f := fenceFacts{record: fencing.Record{Epoch: 5}, fault: fault}
		recorded := f.observe(fencing.Record{Epoch: c.epoch, Worker: "w"})
		if recorded != c.recorded || (f.record.Worker == "w") != c.recorded || f.fault != c.fault {
			t.Errorf("epoch %d after 5: recorded is %v, %+v", c.epoch, recorded, f)
		}
	}
}

// TestAnUnconfirmedGrantMakesNoLeader: a recorded epoch of an incarnation that has the lease means
// that it leads, unless it is one of this proxy, which would know.
func TestAnUnconfirmedGrantMakesNoLeader(t *testing.T) {
	t.Parallel()
	for incarnation, want := range map[string]leader{"here": leaderNone, "elsewhere": leaderElsewhere} {
		var r resource
		r.mu.roster = newRoster()
		r.mu.add(&Candidacy{identity: identity{worker: "w", incarnation: "here"}})
		r.mu.observation = LeaseObservation{State: Held, Incarnation: incarnation}
		r.mu.record.Incarnation = incarnation
		if got := r.leaderLocked(); got != want {
			t.Errorf("%s: the leader is %d, want %d", incarnation, got, want)
		}
	}
}
