package fence_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestACopyEndsNoBackendOfTheOriginal: a dump contains the registrations of backends that run.
func TestACopyEndsNoBackendOfTheOriginal(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	h.Grant("a")
	old := h.Copy()
	w := h.Worker(h.Grant("b"))
	h.MustEnter(w)
	for _, end := range []struct {
		how string
		do  func() error
	}{
		{"a grant", func() error { _, err := old.Fence.Grant(old.Ctx(), old.Award("c")); return err }},
		{"a registration", func() error { old.MustEnter(old.Worker(old.Grant("d"))); return nil }},
	} {
		old.Server.Exec(t, pgtest.Control, old.DB, fmt.Sprintf("INSERT INTO fencepost.running (pid, backend_start, fence, epoch) VALUES (%d, '%s', %d, 1)",
			w.PgConn().PID(), fencetest.Ask[string](h, "SELECT backend_start::text FROM pg_stat_activity WHERE pid = $1", int32(w.PgConn().PID())), fencetest.Ask[int](old, "SELECT id FROM fencepost.fence")))
		if err := end.do(); err != nil {
			t.Fatalf("%s in the copy: %v", end.how, err)
		}
		if left := fencetest.Ask[int](old, "SELECT count(*) FROM fencepost.running WHERE pid = $1", int32(w.PgConn().PID())); left != 0 {
			t.Errorf("%s: the copy keeps the registration", end.how)
		}
	}
	if err := w.Check(h.Ctx()); err != nil {
		t.Errorf("a write of the registered worker: %v", err)
	}
}

func TestAMissingSchemaIsZF004(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	term := h.Grant("a")
	h.Server.Exec(t, pgtest.Control, h.DB, "DROP SCHEMA fencepost CASCADE")
	_, grantErr := h.Fence.Grant(h.Ctx(), h.Award("b"))
	_, recordErr := h.Fence.Record(h.Ctx())
	_, fenceErr := h.Fences.Fence(h.Ctx(), "x")
	_, enterErr := h.Fence.RegisterBackend(h.Ctx(), fencing.RegisterRequest{PID: 1, Started: "0", Announced: 1, Held: 1})
	for name, err := range map[string]error{"grant": grantErr, "record": recordErr, "fence": fenceErr,
		"verify": h.Fence.Verify(h.Ctx(), term), "enter": enterErr} {
		if fencetest.StateOf(err) != fencing.StateNoFence {
			t.Errorf("%s: %v; want ZF004", name, err)
		}
	}
}

// TestAnEpochGrantedTwiceIsNoticed covers a restore that was not reported: another
// candidacy was then granted the same epoch again.
func TestAnEpochGrantedTwiceIsNoticed(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	h.Grant("a")
	old := h.Copy()
	lost := h.Grant("b")
	old.Index = h.Index
	again := old.Grant("c")
	if again.Epoch != lost.Epoch {
		t.Fatalf("epochs %d and %d differ, so the test proves nothing", lost.Epoch, again.Epoch)
	}
	if err := old.Fence.Verify(h.Ctx(), lost); fencetest.StateOf(err) != fencing.StateNoFence {
		t.Errorf("verify: %v; want ZF004", err)
	}
	w := old.Worker(lost)
	if _, err := w.BeginTx(h.Ctx(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}); err != nil {
		t.Fatal(err)
	}
	if err := w.Check(h.Ctx()); fencetest.StateOf(err) != fencing.StateNoFence {
		t.Errorf("the check: %v; want ZF004", err)
	} else {
		fencetest.MustContain(t, err, "another candidacy", "worker-c")
	}
}

// TestAFenceIsThatOfItsResource: a database that was recreated from a template has the
// identity of the old one, and may give the number of a fence to another resource.
func TestAFenceIsThatOfItsResource(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	term := h.Grant("a")
	h.Server.Exec(t, pgtest.Control, h.DB, "UPDATE fencepost.fence SET resource = 'mail'", "UPDATE fencepost.grants SET resource = 'mail'")
	if _, err := h.Fence.Record(h.Ctx()); !errors.Is(err, fencing.ErrReplaced) {
		t.Errorf("the record of another resource: %v", err)
	}
	for _, known := range []fencing.Term{term, {}} {
		if err := h.Fence.Verify(h.Ctx(), known); !errors.Is(err, fencing.ErrReplaced) {
			t.Errorf("epoch %d in the fence of another resource: %v", known.Epoch, err)
		}
	}
	if epoch, err := h.Fence.Grant(h.Ctx(), h.Award("b")); !errors.Is(err, fencing.ErrReplaced) {
		t.Errorf("a grant in the fence of another resource: epoch %d, %v", epoch, err)
	}
}
