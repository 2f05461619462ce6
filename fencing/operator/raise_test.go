package operator_test

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestARestoredDatabaseGrantsNothingUntilItsEpochsAreRaised(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	h.Grant("a")
	old := h.Copy()
	lost := h.Grant("b") // epoch 2, which the copy does not contain
	old.Index = h.Index
	hint := fencing.RestoredHint(old.DB, lost.Epoch)

	if err := old.Fence.Verify(h.Ctx(), lost); fencetest.StateOf(err) != fencing.StateNoFence {
		t.Errorf("verify the lost term: %v; want ZF004", err)
	} else {
		fencetest.MustContain(t, err, "restored")
	}
	if err := old.Worker(lost).Check(h.Ctx()); fencetest.StateOf(err) != fencing.StateNoFence || fencetest.HintOf(err) != hint {
		t.Errorf("a write under the lost epoch: %v, hint %q; want ZF004, %q", err, fencetest.HintOf(err), hint)
	}
	for name, change := range map[string]func(*fencing.Award){
		"a proxy that saw the lost epoch": func(a *fencing.Award) { a.HighestObserved = lost.Epoch },
		"the candidacy that held it":      func(a *fencing.Award) { a.Held = lost.Epoch },
	} {
		a := old.Award("c")
		change(&a)
		_, err := old.Fence.Grant(h.Ctx(), a)
		if fencetest.StateOf(err) != fencing.StateNoFence || fencetest.HintOf(err) != hint {
			t.Errorf("a grant asked by %s: %v, hint %q; want ZF004, %q", name, err, fencetest.HintOf(err), hint)
		}
	}

	raised, err := operator.New(old.Fences).RaiseEpochs(h.Ctx(), lost.Epoch, ops)
	if err != nil || raised[fencetest.Resource] != (operator.RaisedEpoch{Epoch: lost.Epoch + 1, Raised: true, Worker: "worker-a"}) {
		t.Fatalf("raised to %v, %v; want %d", raised, err, lost.Epoch+1)
	}
	again, err := operator.New(old.Fences).RaiseEpochs(h.Ctx(), lost.Epoch, ops)
	if err != nil || again[fencetest.Resource] != (operator.RaisedEpoch{Epoch: lost.Epoch + 1}) {
		t.Errorf("raised again to %v, %v; want no change", again, err)
	}
	if err := old.Worker(lost).Check(h.Ctx()); fencetest.StateOf(err) != fencing.StateSuperseded {
		t.Errorf("a write under the lost epoch, raised: %v; want ZF001", err)
	} else if d := fencetest.DetailOf(t, err); d.CurrentWorker != "" || d.CurrentEpoch != raised[fencetest.Resource].Epoch {
		t.Errorf("detail %+v", d)
	}
	a := old.Award("c")
	a.HighestObserved = lost.Epoch
	if epoch, err := old.Fence.Grant(h.Ctx(), a); err != nil || epoch != lost.Epoch+2 {
		t.Errorf("epoch %d, %v; want %d", epoch, err, lost.Epoch+2)
	}
	far, err := operator.New(old.Fences).RaiseEpochs(h.Ctx(), 0, ops)
	if err != nil || far[fencetest.Resource].Epoch < 1_000_000 {
		t.Errorf("raised without a floor to %v, %v; want far ahead", far, err)
	}
}

// TestSafetyALostResourceRepeatsNothing covers a resource that was created after the state
// to which the database was restored, and is created again there.
func TestSafetyALostResourceRepeatsNothing(t *testing.T) {
	t.Parallel()
	for name, above := range map[string]fencing.Epoch{"above the lost epoch": 1, "above an unknown epoch": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := fencetest.New(t, pgtest.Shared(t))
			h.Grant("a")
			old := h.Copy()
			lost, err := h.Fences.Fence(h.Ctx(), "late")
			if err != nil {
				t.Fatal(err)
			}
			award := h.AwardOf(lost, "stale")
			epoch, err := lost.Grant(h.Ctx(), award)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := operator.New(old.Fences).RaiseEpochs(h.Ctx(), above, ops); err != nil {
				t.Fatal(err)
			}
			anew, err := old.Fences.Fence(h.Ctx(), "late")
			if err != nil {
				t.Fatal(err)
			}
			fresh, err := anew.Grant(h.Ctx(), old.AwardOf(anew, "fresh"))
			if err != nil {
				t.Fatal(err)
			}
			if anew.ID() == lost.ID() || fresh <= epoch {
				t.Errorf("fence %d has epoch %d, the lost fence %d had epoch %d", anew.ID(), fresh, lost.ID(), epoch)
			}
			stale := old.Worker(fencing.Term{Award: award, Epoch: epoch})
			stale.Fence = lost
			if err := stale.Check(h.Ctx()); err == nil {
				t.Error("a session of the lost resource passes the check of the one made anew")
			}
		})
	}
}
