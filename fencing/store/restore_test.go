package store_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// copied opens a copy of the database in its current state, as a restored
// backup would be.
func (h *testDatabase) copied(t *testing.T) *testDatabase {
	t.Helper()
	h.store.Close()
	old := &testDatabase{t: t, server: h.server, db: h.db + "_restored", index: h.index}
	h.server.Exec(t, pgtest.Superuser, "postgres",
		fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", old.db, h.db), fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s", old.db, pgtest.Control))
	t.Cleanup(func() { h.server.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+old.db+" WITH (FORCE)") })
	h.store = h.open()
	h.fence = h.newFence(h.store)
	old.store = old.open()
	old.fence = old.newFence(old.store)
	return old
}

// TestACopyEndsNoBackendOfTheOriginal: a dump contains the registrations of backends that run.
func TestACopyEndsNoBackendOfTheOriginal(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	h.grant("a")
	old := h.copied(t)
	w := h.worker(h.grant("b"))
	h.mustEnter(w)
	for _, end := range []struct {
		how string
		do  func() error
	}{
		{"a grant", func() error { _, err := old.fence.Grant(old.ctx(), old.award("c")); return err }},
		{"a registration", func() error { old.mustEnter(old.worker(old.grant("d"))); return nil }},
	} {
		old.server.Exec(t, pgtest.Control, old.db, fmt.Sprintf("INSERT INTO fencepost.running (pid, backend_start, fence, epoch) VALUES (%d, '%s', %d, 1)",
			w.PgConn().PID(), ask[string](h, "SELECT backend_start::text FROM pg_stat_activity WHERE pid = $1", int32(w.PgConn().PID())), ask[int](old, "SELECT id FROM fencepost.fence")))
		if list, err := old.store.Status(old.ctx()); err != nil || len(list) != 1 || list[0].Running != 0 {
			t.Errorf("%s: the copy shows %+v: %v", end.how, list, err)
		}
		if err := end.do(); err != nil {
			t.Fatalf("%s in the copy: %v", end.how, err)
		}
		if left := ask[int](old, "SELECT count(*) FROM fencepost.running WHERE pid = $1", int32(w.PgConn().PID())); left != 0 {
			t.Errorf("%s: the copy keeps the registration", end.how)
		}
	}
	if err := w.check(h.ctx()); err != nil {
		t.Errorf("a write of the registered worker: %v", err)
	}
}

func TestARestoredDatabaseGrantsNothingUntilItsEpochsAreRaised(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	h.grant("a")
	old := h.copied(t)
	lost := h.grant("b") // epoch 2, which the copy does not contain
	old.index = h.index
	hint := fencing.RestoredHint(old.db, lost.Epoch)

	if err := old.fence.Verify(h.ctx(), lost); stateOf(err) != fencing.StateNoFence {
		t.Errorf("verify the lost term: %v; want ZF004", err)
	} else {
		mustContain(t, err, "restored")
	}
	if err := old.worker(lost).check(h.ctx()); stateOf(err) != fencing.StateNoFence || hintOf(err) != hint {
		t.Errorf("a write under the lost epoch: %v, hint %q; want ZF004, %q", err, hintOf(err), hint)
	}
	for name, change := range map[string]func(*fencing.Award){
		"a proxy that saw the lost epoch": func(a *fencing.Award) { a.HighestObserved = lost.Epoch },
		"the candidacy that held it":      func(a *fencing.Award) { a.Held = lost.Epoch },
	} {
		a := old.award("c")
		change(&a)
		_, err := old.fence.Grant(h.ctx(), a)
		if stateOf(err) != fencing.StateNoFence || hintOf(err) != hint {
			t.Errorf("a grant asked by %s: %v, hint %q; want ZF004, %q", name, err, hintOf(err), hint)
		}
	}

	raised, err := old.store.RaiseEpochs(h.ctx(), lost.Epoch, operator)
	if err != nil || raised[resource] != (store.RaisedEpoch{Epoch: lost.Epoch + 1, Raised: true, Worker: "worker-a"}) {
		t.Fatalf("raised to %v, %v; want %d", raised, err, lost.Epoch+1)
	}
	again, err := old.store.RaiseEpochs(h.ctx(), lost.Epoch, operator)
	if err != nil || again[resource] != (store.RaisedEpoch{Epoch: lost.Epoch + 1}) {
		t.Errorf("raised again to %v, %v; want no change", again, err)
	}
	if err := old.worker(lost).check(h.ctx()); stateOf(err) != fencing.StateSuperseded {
		t.Errorf("a write under the lost epoch, raised: %v; want ZF001", err)
	} else if d := parseDetail(t, err); d.CurrentWorker != "" || d.CurrentEpoch != raised[resource].Epoch {
		t.Errorf("detail %+v", d)
	}
	a := old.award("c")
	a.HighestObserved = lost.Epoch
	if epoch, err := old.fence.Grant(h.ctx(), a); err != nil || epoch != lost.Epoch+2 {
		t.Errorf("epoch %d, %v; want %d", epoch, err, lost.Epoch+2)
	}
	far, err := old.store.RaiseEpochs(h.ctx(), 0, operator)
	if err != nil || far[resource].Epoch < 1_000_000 {
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
			h := newTestDatabase(t, pgtest.Shared(t))
			h.grant("a")
			old := h.copied(t)
			lost, err := h.store.Fence(h.ctx(), "late")
			if err != nil {
				t.Fatal(err)
			}
			award := h.awardOf(lost, "stale")
			epoch, err := lost.Grant(h.ctx(), award)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := old.store.RaiseEpochs(h.ctx(), above, operator); err != nil {
				t.Fatal(err)
			}
			anew, err := old.store.Fence(h.ctx(), "late")
			if err != nil {
				t.Fatal(err)
			}
			fresh, err := anew.Grant(h.ctx(), old.awardOf(anew, "fresh"))
			if err != nil {
				t.Fatal(err)
			}
			if anew.ID() == lost.ID() || fresh <= epoch {
				t.Errorf("fence %d has epoch %d, the lost fence %d had epoch %d", anew.ID(), fresh, lost.ID(), epoch)
			}
			stale := old.worker(fencing.Term{Award: award, Epoch: epoch})
			stale.fence = lost
			if err := stale.check(h.ctx()); err == nil {
				t.Error("a session of the lost resource passes the check of the one made anew")
			}
		})
	}
}

func TestAMissingSchemaIsZF004(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	term := h.grant("a")
	h.server.Exec(t, pgtest.Control, h.db, "DROP SCHEMA fencepost CASCADE")
	_, grantErr := h.fence.Grant(h.ctx(), h.award("b"))
	_, recordErr := h.fence.Record(h.ctx())
	_, fenceErr := h.store.Fence(h.ctx(), "x")
	_, enterErr := h.fence.RegisterBackend(h.ctx(), fencing.RegisterRequest{PID: 1, Started: "0", Announced: 1, Held: 1})
	for name, err := range map[string]error{"grant": grantErr, "record": recordErr, "fence": fenceErr,
		"verify": h.fence.Verify(h.ctx(), term), "enter": enterErr} {
		if stateOf(err) != fencing.StateNoFence {
			t.Errorf("%s: %v; want ZF004", name, err)
		}
	}
}

// TestAnEpochGrantedTwiceIsNoticed covers a restore that was not reported: another
// candidacy was then granted the same epoch again.
func TestAnEpochGrantedTwiceIsNoticed(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	h.grant("a")
	old := h.copied(t)
	lost := h.grant("b")
	old.index = h.index
	again := old.grant("c")
	if again.Epoch != lost.Epoch {
		t.Fatalf("epochs %d and %d differ, so the test proves nothing", lost.Epoch, again.Epoch)
	}
	if err := old.fence.Verify(h.ctx(), lost); stateOf(err) != fencing.StateNoFence {
		t.Errorf("verify: %v; want ZF004", err)
	}
	w := old.worker(lost)
	if _, err := w.BeginTx(h.ctx(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}); err != nil {
		t.Fatal(err)
	}
	if err := w.check(h.ctx()); stateOf(err) != fencing.StateNoFence {
		t.Errorf("the check: %v; want ZF004", err)
	} else {
		mustContain(t, err, "another candidacy", "worker-c")
	}
}

// TestAFenceIsThatOfItsResource: a database that was recreated from a template has the
// identity of the old one, and may give the number of a fence to another resource.
func TestAFenceIsThatOfItsResource(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	term := h.grant("a")
	h.server.Exec(t, pgtest.Control, h.db, "UPDATE fencepost.fence SET resource = 'mail'", "UPDATE fencepost.grants SET resource = 'mail'")
	if _, err := h.fence.Record(h.ctx()); !errors.Is(err, fencing.ErrReplaced) {
		t.Errorf("the record of another resource: %v", err)
	}
	for _, known := range []fencing.Term{term, {}} {
		if err := h.fence.Verify(h.ctx(), known); !errors.Is(err, fencing.ErrReplaced) {
			t.Errorf("epoch %d in the fence of another resource: %v", known.Epoch, err)
		}
	}
	if epoch, err := h.fence.Grant(h.ctx(), h.award("b")); !errors.Is(err, fencing.ErrReplaced) {
		t.Errorf("a grant in the fence of another resource: epoch %d, %v", epoch, err)
	}
}
