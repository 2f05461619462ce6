package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// servers are the server versions on which the predicate is tested.
func servers(t *testing.T) map[string]*pgtest.Server {
	return map[string]*pgtest.Server{"default": pgtest.Shared(t), "18": pgtest.SharedMajor(t, 18)}
}

// TestSafetyAClaimedEpochOpensNoWay covers a superseded candidacy whose proxy does not
// know that yet, and which claims the current epoch.
func TestSafetyAClaimedEpochOpensNoWay(t *testing.T) {
	t.Parallel()
	for name, s := range servers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestDatabase(t, s)
			h.server.Exec(t, pgtest.App, h.db, "CREATE TABLE public.entries (epoch bigint)", batch)
			w := h.worker(h.grant("a"))
			current := h.grant("b")
			if err := w.checkAs(h.ctx(), current.Epoch, w.term.Epoch); stateOf(err) != fencing.StateSuperseded {
				t.Errorf("the check: %v; want ZF001", err)
			}
			entry := w.entry()
			entry.Announced = current.Epoch
			var err error
			if !unfenced {
				_, err = h.fence.RegisterBackend(h.ctx(), entry)
			}
			if err == nil {
				_, err = w.Exec(h.ctx(), "CALL public.batch($1, 1, 0)", int64(w.term.Epoch))
			}
			if stateOf(err) != fencing.StateSuperseded {
				t.Errorf("the registry: %v; want ZF001", err)
			}
			if n := ask[int](h, "SELECT count(*) FROM public.entries"); n != 0 {
				t.Errorf("%d rows of the old epoch were committed", n)
			}
		})
	}
}

// eachClaim calls try for a candidacy that is over, the current one, which has epoch 2, and one that has never led,
// with each pair of epochs that it may have been told and hold.
func (h *testDatabase) eachClaim(try func(w *worker, told, held fencing.Epoch, current bool)) {
	over, current := h.grant("a"), h.grant("b")
	for _, term := range []fencing.Term{over, current, {Award: h.award("c")}} {
		w := h.worker(term)
		for told := range fencing.Epoch(4) {
			for held := range fencing.Epoch(4) {
				try(w, told, held, term.Incarnation == current.Incarnation)
			}
		}
	}
}

// TestCheckRegistryAndRefusalAgree checks that the check, the registry and
// fencepost.refuse accept the same connections and refuse the others with the same
// SQLSTATE.
func TestCheckRegistryAndRefusalAgree(t *testing.T) {
	t.Parallel()
	for name, s := range servers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestDatabase(t, s)
			h.eachClaim(func(w *worker, told, held fencing.Epoch, current bool) {
				h.agree(w, told, held, current && told == 2 && held == 2)
			})
			if left := ask[int](h, "SELECT count(*) FROM fencepost.running"); left != 0 {
				t.Errorf("%d registrations were left", left)
			}
		})
	}
}

// agree tries the check, the registry and fencepost.refuse for a connection. The check
// does not read the row, so the caller must exclude a connection that claims another
// candidacy's epoch as its own; Verify detects that one when it connects.
func (h *testDatabase) agree(w *worker, told, held fencing.Epoch, may bool) {
	h.t.Helper()
	ctx, term := context.Background(), w.term
	check := stateOf(w.checkAs(h.ctx(), told, held))
	_, err := w.Exec(ctx, fencing.RefuseSQL(w.fence, term.Worker, term.Incarnation, told, held, false))
	refusal := stateOf(err)
	entry := w.entry()
	entry.Announced, entry.Held = told, held
	note, err := h.fence.RegisterBackend(h.ctx(), entry)
	registry := stateOf(err)
	if err == nil {
		if err := h.fence.UnregisterBackend(h.ctx(), note); err != nil {
			h.t.Error(err)
		}
	}
	what := fmt.Sprintf("%s, told %d, holds %d", term.Worker, told, held)
	if (registry == "") != may || registry != refusal {
		h.t.Errorf("%s: the registry says %q, refuse %q; it may pass: %t", what, registry, refusal, may)
	}
	if fast := told == 2 && held == 2; (check == "") != fast || !fast && check != refusal {
		h.t.Errorf("%s: the check says %q, refuse %q", what, check, refusal)
	}
}

// TestOnlyWhoHasLedIsDiscarded checks that a verdict discards what is refused as superseded, if the
// candidacy has had an epoch, and otherwise raises what fencepost.refuse raises.
func TestOnlyWhoHasLedIsDiscarded(t *testing.T) {
	t.Parallel()
	for name, s := range servers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestDatabase(t, s)
			found := map[string]int{}
			h.eachClaim(func(w *worker, told, held fencing.Epoch, current bool) {
				if told != 2 || held != 2 || current { // see agree
					found[h.verdict(w, told, held, w.term.Epoch != 0 || held != 0)]++
				}
			})
			for _, outcome := range []string{"discarded", "", fencing.StateSuperseded, fencing.StateNotLeader, fencing.StateStartOver} {
				if found[outcome] == 0 {
					t.Errorf("no verdict was %q: %v", outcome, found)
				}
			}
		})
	}
}

// verdict tries a verdict for a connection whose candidacy has led or not, and returns "discarded" or
// the SQLSTATE that it raised.
func (h *testDatabase) verdict(w *worker, told, held fencing.Epoch, led bool) string {
	h.t.Helper()
	_, err := w.Exec(h.ctx(), fencing.RefuseSQL(w.fence, w.term.Worker, w.term.Incarnation, told, held, false))
	want := stateOf(err)
	if want == fencing.StateSuperseded && led {
		want = "discarded"
	}
	tx, err := w.Begin(h.ctx())
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(h.ctx()) }()
	tag, err := tx.Exec(h.ctx(), fencing.InlineVerdictSQL(w.fence, w.term.Worker, w.term.Incarnation, false, told, held))
	got := stateOf(err)
	if tag.RowsAffected() == 1 {
		got = "discarded"
		if _, err := tx.Exec(h.ctx(), "CREATE TABLE public.written ()"); stateOf(err) != "25006" {
			h.t.Errorf("a transaction to be discarded is not read-only: %v", err)
		}
	}
	if got != want {
		h.t.Errorf("%s, told %d, holds %d: the verdict is %q, want %q", w.term.Worker, told, held, got, want)
	}
	return got
}

// TestThePredicateCostsTheCheckNothing checks that Postgres inlines the function, both
// in the prepared check and in the one with its parameters in the text.
func TestThePredicateCostsTheCheckNothing(t *testing.T) {
	t.Parallel()
	for name, s := range servers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestDatabase(t, s)
			term := h.grant("a")
			w := h.worker(term)
			for what, sql := range map[string]string{
				"inline":   fencing.InlineCheckSQL(w.fence, "w", "i", false, 1, 1),
				"prepared": "EXECUTE c(1, 1)",
				"front":    "EXECUTE f",
			} {
				for _, setup := range []string{"DEALLOCATE ALL", "PREPARE c AS " + fencing.CheckSQL(w.fence, "w", "i", false),
					"PREPARE f AS " + fencing.FrontCheckSQL(w.fence, "w", "i", false, 1), "SET plan_cache_mode = force_generic_plan", "SET search_path = public"} {
					if _, err := w.Exec(h.ctx(), setup); err != nil {
						t.Fatal(err)
					}
				}
				rows, err := w.Query(h.ctx(), "EXPLAIN (VERBOSE) "+sql)
				if err != nil {
					t.Fatal(err)
				}
				var plan strings.Builder
				for rows.Next() {
					var line string
					if err := rows.Scan(&line); err != nil {
						t.Fatal(err)
					}
					plan.WriteString(line + "\n")
				}
				if err := rows.Err(); err != nil {
					t.Fatal(err)
				}
				if strings.Contains(plan.String(), "current(") || !strings.Contains(plan.String(), "pg_sequence_last_value(") {
					t.Errorf("%s:\n%s", what, plan.String())
				}
			}
		})
	}
}

// TestEnterNamesWhoItRefuses checks that the error names the worker and its epoch, and
// that a backend that does not exist cannot be registered.
func TestEnterNamesWhoItRefuses(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	w := h.worker(fencing.Term{Award: h.award("a")})
	if _, err := h.fence.RegisterBackend(h.ctx(), w.entry()); stateOf(err) != fencing.StateNotLeader {
		t.Errorf("before any grant: %v; want ZF002", err)
	}
	w.term = h.grant("a")
	gone := w.entry()
	gone.PID = 1 << 30
	if _, err := h.fence.RegisterBackend(h.ctx(), gone); stateOf(err) != fencing.StateNoFence {
		t.Errorf("a backend that is not there: %v; want ZF004", err)
	}
	h.grant("b")
	_, err := h.fence.RegisterBackend(h.ctx(), w.entry())
	mustContain(t, err, "worker-a", "worker-b")
	if got := ask[int](h, "SELECT count(*) FROM fencepost.running"); got != 0 {
		t.Errorf("%d registrations were made", got)
	}
}

// TestALateDeletionMeetsNoOtherNote checks that a deletion identifies its registration.
// A late deletion must not remove the next registration of the same backend, nor that
// of a backend that reuses the process id.
func TestALateDeletionMeetsNoOtherNote(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	w := h.worker(h.grant("a"))
	first := h.mustEnter(w)
	second := h.mustEnter(w)
	for range 2 {
		if err := h.fence.UnregisterBackend(h.ctx(), first); err != nil {
			t.Fatal(err)
		}
	}
	if got := ask[int64](h, "SELECT note FROM fencepost.running WHERE pid = $1", int32(w.PgConn().PID())); got != second.ID {
		t.Errorf("registration %d is left, want %d", got, second.ID)
	}
	h.grant("b")
	if _, err := w.Exec(h.ctx(), "SELECT 1"); stateOf(err) != "57P01" {
		t.Errorf("the registered backend: %v; want 57P01", err)
	}
}
