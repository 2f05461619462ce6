package operator_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// remakeFence removes the resource, which is in use, and recreates it.
func remakeFence(t *testing.T, h *fencetest.Database) *fencing.Order {
	t.Helper()
	if _, err := operator.New(h.Fences).Remove(h.Ctx(), fencetest.Resource, false, ops); fencetest.StateOf(err) != fencing.StateInUse {
		t.Fatalf("a resource in use was removed: %v", err)
	}
	order, err := operator.New(h.Fences).Remove(h.Ctx(), fencetest.Resource, true, ops)
	if err != nil || order == nil {
		t.Fatalf("remove: %+v, %v", order, err)
	}
	h.Fence = h.NewFence(h.Fences)
	return order
}

// TestSafetyRemovedResourceRefusesItsFormerLeader removes a resource whose leader is
// frozen, and recreates it under another leader. The old one's write is refused.
func TestSafetyRemovedResourceRefusesItsFormerLeader(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	h.Server.Exec(t, pgtest.App, h.DB, "CREATE TABLE public.entries (what text)")
	stale := h.Worker(h.Grant("stale"))
	remakeFence(t, h)
	fresh := h.Worker(h.Grant("fresh"))
	write := func(w *fencetest.Worker) error {
		return pgx.BeginFunc(h.Ctx(), w.Conn, func(tx pgx.Tx) error {
			if err := w.Check(h.Ctx()); err != nil {
				return err
			}
			_, err := tx.Exec(h.Ctx(), "INSERT INTO public.entries VALUES ($1)", w.Term.Worker)
			return err
		})
	}
	if err := write(stale); fencetest.StateOf(err) != fencing.StateNoFence {
		t.Errorf("a write of the former leader: %v; want ZF004", err)
	}
	if err := write(fresh); err != nil {
		t.Errorf("a write of the leader: %v", err)
	}
	if written := fencetest.Ask[string](h, "SELECT string_agg(what, ' ') FROM public.entries"); written != "worker-fresh" {
		t.Errorf("written by %s", written)
	}
}

// TestSafetyRemoveEndsTransactionsOfTheLastEpoch removes a resource while its leader has
// written in a transaction. When the removal has returned, the transaction cannot commit.
func TestSafetyRemoveEndsTransactionsOfTheLastEpoch(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	h.Server.Exec(t, pgtest.App, h.DB, "CREATE TABLE public.entries (what text)")
	stale := h.Worker(h.Grant("stale"))
	tx := stale.Claim(h.Ctx(), t, pgx.ReadCommitted)
	if _, err := tx.Exec(h.Ctx(), "INSERT INTO public.entries VALUES ('stale')"); err != nil {
		t.Fatal(err)
	}
	remakeFence(t, h)
	if err := tx.Commit(h.Ctx()); err == nil {
		t.Error("the transaction committed after the resource had been removed")
	}
	if n := fencetest.Ask[int](h, "SELECT count(*) FROM public.entries"); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// TestSafetyRemoveEndsRegisteredBackends removes a resource while a backend may write
// outside the check.
func TestSafetyRemoveEndsRegisteredBackends(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	stale := h.Worker(h.Grant("stale"))
	if !fencetest.Unfenced {
		if _, err := h.Fence.RegisterBackend(h.Ctx(), stale.Request()); err != nil {
			t.Fatal(err)
		}
	}
	remakeFence(t, h)
	if _, err := stale.Exec(h.Ctx(), "CREATE TABLE public.stale ()"); err == nil {
		t.Error("the registered backend wrote after the resource had been removed")
	}
}

func TestRemovedResourceBeginsAboveItsLastEpoch(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	one := h.Grant("one")
	old := h.Fence
	order := remakeFence(t, h)
	if order.Kind != "remove" || order.Worker != one.Worker || order.Epoch != one.Epoch+1 {
		t.Errorf("the order is %+v", order)
	}
	if rec, err := h.Fence.Record(h.Ctx()); err != nil || rec.Epoch != order.Epoch || rec.Worker != "" {
		t.Errorf("the new fence: %+v, %v; want epoch %d and nobody", rec, err, order.Epoch)
	}
	if two := h.Grant("two"); two.Epoch != order.Epoch+1 {
		t.Errorf("the first grant has epoch %d, want %d", two.Epoch, order.Epoch+1)
	}
	other, err := h.Fences.Fence(h.Ctx(), "another resource")
	if err != nil {
		t.Fatal(err)
	}
	if rec, err := other.Record(h.Ctx()); err != nil || rec.Epoch != order.Epoch {
		t.Errorf("another new fence: %+v, %v; want epoch %d", rec, err, order.Epoch)
	}

	_, recordErr := old.Record(h.Ctx())
	_, grantErr := old.Grant(h.Ctx(), h.Award("three"))
	for what, err := range map[string]error{"record": recordErr, "grant": grantErr, "verify": old.Verify(h.Ctx(), fencing.Term{})} {
		if !errors.Is(err, fencing.ErrRemoved) || fencetest.StateOf(err) != fencing.StateNoFence {
			t.Errorf("%s of the old fence: %v; want ErrRemoved and ZF004", what, err)
		}
	}
}

func TestRemoveRefusesWhatIsInUse(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	refused := func(what string) {
		t.Helper()
		_, err := operator.New(h.Fences).Remove(h.Ctx(), fencetest.Resource, false, ops)
		if fencetest.StateOf(err) != fencing.StateInUse {
			t.Errorf("removed: %v", err)
		}
		fencetest.MustContain(t, err, what)
	}
	h.Grant("one")
	refused("was granted epoch 1 within the last hour")
	h.Server.Exec(t, pgtest.Control, h.DB, "UPDATE fencepost.fence SET granted_at = now() - interval '2 hours'",
		`INSERT INTO fencepost.lease (resource, incarnation, vacancy, expires_at) VALUES ('billing', 'incarnation-one', 'held', now() + interval '1 hour')`)
	refused("holds epoch 1 and its lease")
	h.Server.Exec(t, pgtest.Control, h.DB, "UPDATE fencepost.lease SET expires_at = now()")
	if _, err := operator.New(h.Fences).Pause(h.Ctx(), fencetest.Resource, ops); err != nil {
		t.Fatal(err)
	}
	refused("it is paused")
	if _, err := operator.New(h.Fences).Resume(h.Ctx(), fencetest.Resource, "", ops); err != nil {
		t.Fatal(err)
	}
	order, err := operator.New(h.Fences).Remove(h.Ctx(), fencetest.Resource, false, ops)
	ordered(t, order, err, &fencing.Order{Kind: "remove", Epoch: 3})
	if _, err := operator.New(h.Fences).Remove(h.Ctx(), fencetest.Resource, false, ops); !errors.Is(err, fence.ErrNoResource) {
		t.Errorf("removed twice: %v", err)
	}
	left := fencetest.Ask[int](h, `SELECT (SELECT count(*) FROM fencepost.fence) + (SELECT count(*) FROM fencepost.grants)
		+ (SELECT count(*) FROM fencepost.lease) + (SELECT count(*) FROM fencepost.bars)`)
	if left != 0 {
		t.Errorf("%d rows of the resource are left", left)
	}
}
