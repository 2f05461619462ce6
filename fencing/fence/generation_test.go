package fence_test

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestSafetyAwardOfALifeThatNoOneSaw covers a lease service that lost its state and
// started a new instance before this database had seen the old one. A late award of the
// old instance must not count as newer than those of the new one.
func TestSafetyAwardOfALifeThatNoOneSaw(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	h.Server.Exec(t, pgtest.App, h.DB, "CREATE TABLE public.entries (epoch bigint)")
	late := h.Award("late")
	late.InstanceID, late.Index = "instance-0", 7
	rightful := h.Grant("rightful")

	if epoch, err := h.Fence.Grant(h.Ctx(), late); fencetest.StateOf(err) != fencing.StateUnnumbered {
		t.Errorf("the late award: epoch %d, %v; want ZF007", epoch, err)
	}
	if n := fencetest.Ask[int](h, "SELECT count(*) FROM fencepost.generations WHERE marker = 'instance-0'"); n != 0 {
		t.Error("a grant numbered the instance of its award")
	}
	// The holder of that lease writes as if the grant had succeeded.
	stale := h.Worker(fencing.Term{Award: late, Epoch: rightful.Epoch + 1})
	leader := h.Worker(rightful)
	for _, w := range []*fencetest.Worker{stale, leader} {
		tx, err := w.Begin(h.Ctx())
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Check(h.Ctx()); err == nil {
			_, err = tx.Exec(h.Ctx(), "INSERT INTO public.entries VALUES ($1)", int64(w.Term.Epoch))
			if err != nil {
				t.Error(err)
			}
		} else if w == leader {
			t.Errorf("the leader's check: %v", err)
		}
		_ = tx.Commit(h.Ctx()) // a refused transaction is rolled back
	}
	if n := fencetest.Ask[int](h, "SELECT count(*) FROM public.entries WHERE epoch <> $1", int64(rightful.Epoch)); n != 0 {
		t.Errorf("%d stale rows were committed", n)
	}
	// The rightful order continues without an operator.
	if next := h.Grant("next"); next.Epoch != rightful.Epoch+1 {
		t.Errorf("the next award has epoch %d", next.Epoch)
	}
}

func TestLivesKeepTheNumberThatTheyWereFirstGiven(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	other := h.NewFence(h.Open()) // another proxy
	numbers := func() (list []int64) {
		return fencetest.Ask[[]int64](h, "SELECT array_agg(number ORDER BY number) FROM fencepost.generations WHERE source = 'test'")
	}
	h.Number(h.Fence, "instance-2")
	before := numbers()
	if len(before) != 2 {
		t.Fatalf("the instances have the numbers %v", before)
	}
	done := make(chan error)
	for range 8 { // several proxies see them concurrently, in any order
		for _, marker := range []string{"instance-1", "instance-2", "instance-3"} {
			go func() { done <- other.Number(h.Ctx(), "test", marker) }()
		}
	}
	for range 24 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if after := numbers(); len(after) != 3 || after[0] != before[0] || after[1] != before[1] || after[2] <= before[1] {
		t.Errorf("the numbers changed from %v to %v", before, after)
	}
}

func TestGenerationsAreNumberedAsTheyAreFirstSeen(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	h.Index = 100
	h.Grant("a")
	rebuilt := h.Award("b")
	rebuilt.InstanceID, rebuilt.Index = "instance-2", 3 // indexes start over
	h.Number(h.Fence, rebuilt.InstanceID)
	if epoch, err := h.Fence.Grant(h.Ctx(), rebuilt); err != nil || epoch != 2 {
		t.Fatalf("the first award of a new instance: epoch %d, %v", epoch, err)
	}
	old := h.Award("c")
	if _, err := h.Fence.Grant(h.Ctx(), old); fencetest.StateOf(err) != fencing.StateAwardNotNewer {
		t.Errorf("an award of the older instance: %v; want ZF006", err)
	}
}
