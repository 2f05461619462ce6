package election

import "testing"

func TestRosterKeepsARemovedCandidacyUntilItsLoopEnds(t *testing.T) {
	t.Parallel()
	s := newRoster()
	one, two := &Candidacy{worker: "w"}, &Candidacy{worker: "w"}
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
