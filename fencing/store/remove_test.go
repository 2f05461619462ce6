package store_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// remakeFence removes the resource, which is in use, and recreates it.
func (h *testDatabase) remakeFence(t *testing.T) *fencing.Order {
	t.Helper()
	if _, err := h.store.Remove(h.ctx(), resource, false, operator); stateOf(err) != fencing.StateInUse {
		t.Fatalf("a resource in use was removed: %v", err)
	}
	order, err := h.store.Remove(h.ctx(), resource, true, operator)
	if err != nil || order == nil {
		t.Fatalf("remove: %+v, %v", order, err)
	}
	h.fence = h.newFence(h.store)
	return order
}

// TestSafetyRemovedResourceRefusesItsFormerLeader removes a resource whose leader is
// frozen, and recreates it under another leader. The old one's write is refused.
func TestSafetyRemovedResourceRefusesItsFormerLeader(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	h.server.Exec(t, pgtest.App, h.db, "CREATE TABLE public.entries (what text)")
	stale := h.worker(h.grant("stale"))
	h.remakeFence(t)
	fresh := h.worker(h.grant("fresh"))
	write := func(w *worker) error {
		return pgx.BeginFunc(h.ctx(), w.Conn, func(tx pgx.Tx) error {
			if err := w.check(h.ctx()); err != nil {
				return err
			}
			_, err := tx.Exec(h.ctx(), "INSERT INTO public.entries VALUES ($1)", w.term.Worker)
			return err
		})
	}
	if err := write(stale); stateOf(err) != fencing.StateNoFence {
		t.Errorf("a write of the former leader: %v; want ZF004", err)
	}
	if err := write(fresh); err != nil {
		t.Errorf("a write of the leader: %v", err)
	}
	if written := ask[string](h, "SELECT string_agg(what, ' ') FROM public.entries"); written != "worker-fresh" {
		t.Errorf("written by %s", written)
	}
}

// TestSafetyRemoveEndsTransactionsOfTheLastEpoch removes a resource while its leader has
// written in a transaction. When the removal has returned, the transaction cannot commit.
func TestSafetyRemoveEndsTransactionsOfTheLastEpoch(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	h.server.Exec(t, pgtest.App, h.db, "CREATE TABLE public.entries (what text)")
	stale := h.worker(h.grant("stale"))
	tx := stale.begin(h.ctx(), t, pgx.ReadCommitted)
	if _, err := tx.Exec(h.ctx(), "INSERT INTO public.entries VALUES ('stale')"); err != nil {
		t.Fatal(err)
	}
	h.remakeFence(t)
	if err := tx.Commit(h.ctx()); err == nil {
		t.Error("the transaction committed after the resource had been removed")
	}
	if n := ask[int](h, "SELECT count(*) FROM public.entries"); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// TestSafetyRemoveEndsRegisteredBackends removes a resource while a backend may write
// outside the check.
func TestSafetyRemoveEndsRegisteredBackends(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	stale := h.worker(h.grant("stale"))
	if !unfenced {
		if _, err := h.fence.RegisterBackend(h.ctx(), stale.entry()); err != nil {
			t.Fatal(err)
		}
	}
	h.remakeFence(t)
	if _, err := stale.Exec(h.ctx(), "CREATE TABLE public.stale ()"); err == nil {
		t.Error("the registered backend wrote after the resource had been removed")
	}
}

func TestRemovedResourceBeginsAboveItsLastEpoch(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	one := h.grant("one")
	old := h.fence
	order := h.remakeFence(t)
	if order.Kind != "remove" || order.Worker != one.Worker || order.Epoch != one.Epoch+1 {
		t.Errorf("the order is %+v", order)
	}
	if rec, err := h.fence.Record(h.ctx()); err != nil || rec.Epoch != order.Epoch || rec.Worker != "" {
		t.Errorf("the new fence: %+v, %v; want epoch %d and nobody", rec, err, order.Epoch)
	}
	if two := h.grant("two"); two.Epoch != order.Epoch+1 {
		t.Errorf("the first grant has epoch %d, want %d", two.Epoch, order.Epoch+1)
	}
	other, err := h.store.Fence(h.ctx(), "another resource")
	if err != nil {
		t.Fatal(err)
	}
	if rec, err := other.Record(h.ctx()); err != nil || rec.Epoch != order.Epoch {
		t.Errorf("another new fence: %+v, %v; want epoch %d", rec, err, order.Epoch)
	}

	_, recordErr := old.Record(h.ctx())
	_, grantErr := old.Grant(h.ctx(), h.award("three"))
	for what, err := range map[string]error{"record": recordErr, "grant": grantErr, "verify": old.Verify(h.ctx(), fencing.Term{})} {
		if !errors.Is(err, fencing.ErrRemoved) || stateOf(err) != fencing.StateNoFence {
			t.Errorf("%s of the old fence: %v; want ErrRemoved and ZF004", what, err)
		}
	}
}

func TestRemoveRefusesWhatIsInUse(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	refused := func(what string) {
		t.Helper()
		_, err := h.store.Remove(h.ctx(), resource, false, operator)
		if stateOf(err) != fencing.StateInUse {
			t.Errorf("removed: %v", err)
		}
		mustContain(t, err, what)
	}
	h.grant("one")
	refused("was granted epoch 1 within the last hour")
	h.server.Exec(t, pgtest.Control, h.db, "UPDATE fencepost.fence SET granted_at = now() - interval '2 hours'",
		`INSERT INTO fencepost.lease (resource, incarnation, vacancy, expires_at) VALUES ('billing', 'incarnation-one', 'held', now() + interval '1 hour')`)
	refused("holds epoch 1 and its lease")
	h.server.Exec(t, pgtest.Control, h.db, "UPDATE fencepost.lease SET expires_at = now()")
	if _, err := h.store.Pause(h.ctx(), resource, operator); err != nil {
		t.Fatal(err)
	}
	refused("it is paused")
	if _, err := h.store.Resume(h.ctx(), resource, "", operator); err != nil {
		t.Fatal(err)
	}
	order, err := h.store.Remove(h.ctx(), resource, false, operator)
	ordered(t, order, err, &fencing.Order{Kind: "remove", Epoch: 3})
	if _, err := h.store.Remove(h.ctx(), resource, false, operator); !errors.Is(err, store.ErrNoResource) {
		t.Errorf("removed twice: %v", err)
	}
	left := ask[int](h, `SELECT (SELECT count(*) FROM fencepost.fence) + (SELECT count(*) FROM fencepost.grants)
		+ (SELECT count(*) FROM fencepost.lease) + (SELECT count(*) FROM fencepost.bars)`)
	if left != 0 {
		t.Errorf("%d rows of the resource are left", left)
	}
}

// TestRegisterWaitsForARemoval recreates a resource while the floor is being raised.
func TestRegisterWaitsForARemoval(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	removal, err := h.server.Connect(t, pgtest.Control, h.db).Begin(h.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := removal.Exec(h.ctx(), "UPDATE fencepost.floor SET epoch = 7"); err != nil {
		t.Fatal(err)
	}
	made := make(chan error, 1)
	go func() {
		_, err := h.store.Fence(h.ctx(), "new")
		made <- err
	}()
	eventually(t, "the registration waits", func() bool {
		return ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%register%' AND datname = current_database())")
	})
	if err := removal.Commit(h.ctx()); err != nil {
		t.Fatal(err)
	}
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	if epoch := ask[int](h, "SELECT epoch FROM fencepost.fence WHERE resource = 'new'"); epoch != 7 {
		t.Errorf("the new fence begins with epoch %d, want 7", epoch)
	}
}
