package fence_test

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// eachClaim calls try for a candidacy that is over, the current one, which has epoch 2, and one that has never led,
// with each pair of epochs that may have been announced to it and that it may hold.
func eachClaim(h *fencetest.Database, try func(w *fencetest.Worker, told, held fencing.Epoch, current bool)) {
	over, current := h.Grant("a"), h.Grant("b")
	for _, term := range []fencing.Term{over, current, {Award: h.Award("c")}} {
		w := h.Worker(term)
		for told := range fencing.Epoch(4) {
			for held := range fencing.Epoch(4) {
				try(w, told, held, term.Incarnation == current.Incarnation)
			}
		}
	}
}

// TestTheRegistryTakesNoOnesWord: only the candidacy that was granted the current epoch, and that it was announced to, is registered.
func TestTheRegistryTakesNoOnesWord(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	eachClaim(h, func(w *fencetest.Worker, told, held fencing.Epoch, current bool) {
		may := current && told == 2 && held == 2
		if err := w.CheckAs(h.Ctx(), told, held); (err == nil) != may {
			t.Errorf("%s, told %d, holds %d: %v; it may pass: %t", w.Term.Worker, told, held, err, may)
		}
	})
	if left := fencetest.Ask[int](h, "SELECT count(*) FROM fencepost.running"); left != 0 {
		t.Errorf("%d registrations were left", left)
	}
}

// TestALateDeletionMeetsNoOtherNote checks that a deletion identifies its registration.
// A late deletion must not remove the next registration of the same backend, nor that
// of a backend that reuses the process id.
func TestALateDeletionMeetsNoOtherNote(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	w := h.Worker(h.Grant("a"))
	first := h.MustEnter(w)
	second := h.MustEnter(w)
	for range 2 {
		if err := h.Fence.UnregisterBackend(h.Ctx(), first); err != nil {
			t.Fatal(err)
		}
	}
	if got := fencetest.Ask[int64](h, "SELECT note FROM fencepost.running WHERE pid = $1", int32(w.PgConn().PID())); got != second.ID {
		t.Errorf("registration %d is left, want %d", got, second.ID)
	}
	h.Grant("b")
	if _, err := w.Exec(h.Ctx(), "SELECT 1"); fencetest.StateOf(err) != "57P01" {
		t.Errorf("the registered backend: %v; want 57P01", err)
	}
}
