package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestOrdersThatRaceWithARemoval gives an order while another connection removes the
// resource, and creates it again or not.
func TestOrdersThatRaceWithARemoval(t *testing.T) {
	t.Parallel()
	for _, anew := range []bool{false, true} {
		t.Run(fmt.Sprintf("made anew %t", anew), func(t *testing.T) {
			t.Parallel()
			h := newTestDatabase(t, pgtest.Shared(t))
			h.grant("one")
			removal, err := h.server.Connect(t, pgtest.Control, h.db).Begin(h.ctx())
			if err != nil {
				t.Fatal(err)
			}
			statements := []string{fmt.Sprintf("SELECT fencepost.remove(%d, true, 'ops', '', '1s', '1s')", h.fence.ID())}
			if anew {
				statements = append(statements, "SELECT fencepost.register('billing')")
			}
			for _, sql := range statements {
				if _, err := removal.Exec(h.ctx(), sql); err != nil {
					t.Fatal(err)
				}
			}
			paused := make(chan error, 1)
			go func() {
				_, err := h.store.Pause(h.ctx(), resource, operator)
				paused <- err
			}()
			eventually(t, "the order waits", func() bool {
				return ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%fencepost.pause%' AND datname = current_database())")
			})
			if err := removal.Commit(h.ctx()); err != nil {
				t.Fatal(err)
			}
			err = <-paused
			if !anew {
				if !errors.Is(err, store.ErrNoResource) {
					t.Errorf("the order to a removed resource: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			fence, err := h.store.Fence(h.ctx(), resource)
			if err != nil {
				t.Fatal(err)
			}
			_, err = fence.Grant(h.ctx(), h.award("two"))
			barred(t, err)
		})
	}
}

// TestPauseBeforeTheFirstGrant pauses a resource that nobody was granted an epoch of, and one
// whose row does not know the epoch of its sequence, as after a restore across a grant.
func TestPauseBeforeTheFirstGrant(t *testing.T) {
	t.Parallel()
	t.Run("no grant", func(t *testing.T) {
		t.Parallel()
		h := newTestDatabase(t, pgtest.Shared(t))
		order, err := h.store.Pause(h.ctx(), resource, operator)
		ordered(t, order, err, &fencing.Order{Kind: fencing.OrderPause})
		_, err = h.fence.Grant(h.ctx(), h.award("one"))
		barred(t, err)
	})
	t.Run("a grant that the row does not know", func(t *testing.T) {
		t.Parallel()
		h := newTestDatabase(t, pgtest.Shared(t))
		one := h.grant("one")
		h.server.Exec(t, pgtest.Control, h.db, "UPDATE fencepost.fence SET epoch = 0, worker = NULL, incarnation = NULL", "DELETE FROM fencepost.grants")
		order, err := h.store.Pause(h.ctx(), resource, operator)
		ordered(t, order, err, &fencing.Order{Kind: fencing.OrderPause, Epoch: one.Epoch + 1})
		if err := h.worker(one).check(h.ctx()); stateOf(err) != fencing.StateSuperseded {
			t.Errorf("a write under a pause: %v; want ZF001", err)
		}
	})
}

// TestRemoveNamesWhoReadsTheSequence removes a resource while a transaction is open that has
// read its sequence, as pg_dump does.
func TestRemoveNamesWhoReadsTheSequence(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	one := h.grant("one")
	working := h.worker(one)
	if _, err := working.Exec(h.ctx(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	if err := working.check(h.ctx()); err != nil {
		t.Fatal(err)
	}
	conn := h.server.Connect(t, pgtest.Control, h.db)
	tx, err := conn.Begin(h.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(h.ctx(), fmt.Sprintf("SELECT * FROM fencepost.epoch_%d", h.fence.ID())); err != nil {
		t.Fatal(err)
	}
	_, err = h.store.Remove(h.ctx(), resource, true, operator)
	if stateOf(err) != fencing.StateInUse || !strings.Contains(hintOf(err), "pg_terminate_backend") {
		t.Errorf("the removal: %v, hint %q; want ZF009", err, hintOf(err))
	}
	mustContain(t, err, fmt.Sprintf("backend %d of role %q", conn.PgConn().PID(), pgtest.Control), "idle in transaction")
	if _, err := working.Exec(h.ctx(), "COMMIT"); err != nil {
		t.Errorf("the leader's transaction was ended by a removal that was given up: %v", err)
	}
	if err := h.worker(one).check(h.ctx()); err != nil {
		t.Errorf("the leader's check after a removal that was given up: %v", err)
	}
	if err := tx.Rollback(h.ctx()); err != nil {
		t.Fatal(err)
	}
	if order, err := h.store.Remove(h.ctx(), resource, true, operator); err != nil || order == nil {
		t.Errorf("the removal afterwards: %v, %v", order, err)
	}
}

// removal removes the resource with this grace, and returns the error.
func (h *testDatabase) removal(grace time.Duration) <-chan error {
	st := h.open(func(c *store.Config) { c.Grace = grace })
	over := make(chan error, 1)
	go func() {
		_, err := st.Remove(h.ctx(), resource, true, operator)
		over <- err
	}()
	return over
}

// reader connects somebody who then reads the sequence of the fence in a transaction that stays open.
func (h *testDatabase) reader() (read func()) {
	h.t.Helper()
	conn := h.server.Connect(h.t, pgtest.Control, h.db)
	return func() {
		h.t.Helper()
		if _, err := conn.Exec(h.ctx(), fmt.Sprintf("BEGIN; SELECT * FROM fencepost.epoch_%d", h.fence.ID())); err != nil {
			h.t.Fatal(err)
		}
	}
}

// TestRemoveSparesTheLeaderIfItMustFail begins to read the sequence while a removal waits
// for the leader's transaction.
func TestRemoveSparesTheLeaderIfItMustFail(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	leader := h.worker(h.grant("leader"))
	tx := leader.begin(h.ctx(), t, pgx.ReadCommitted)
	read := h.reader()
	waiting(h) // connects, so that what follows fits into the 10 s
	over := h.removal(10 * time.Second)
	eventually(t, "the removal waits", func() bool { return waiting(h) })
	read()
	if err := <-over; stateOf(err) != fencing.StateInUse || strings.Contains(fmt.Sprint(err), "ended") {
		t.Errorf("the removal: %v; want ZF009, and nobody ended", err)
	}
	if err := tx.Commit(h.ctx()); err != nil {
		t.Errorf("the leader's transaction: %v", err)
	}
	if err := leader.check(h.ctx()); err != nil {
		t.Errorf("the leader's next check: %v", err)
	}
}

// TestRemoveSaysWhomItHasEnded begins to read the sequence while a removal waits for a
// registered backend, which it ends.
func TestRemoveSaysWhomItHasEnded(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	leader := h.worker(h.grant("leader"))
	h.mustEnter(leader)
	read := h.reader()
	locked := func() bool {
		return ask[bool](h, fmt.Sprintf(`SELECT EXISTS (SELECT FROM pg_locks WHERE granted AND mode = 'ShareRowExclusiveLock'
			AND relation = 'fencepost.epoch_%d'::regclass)`, h.fence.ID()))
	}
	locked() // connects, so that what follows fits into the 10 s
	over := h.removal(10 * time.Second)
	eventually(t, "the removal has the sequence", locked)
	read()
	err := <-over
	if stateOf(err) != fencing.StateInUse {
		t.Errorf("the removal: %v; want ZF009", err)
	}
	mustContain(t, err, "before that, 1 of its workers' backends were ended")
}

// TestRegistrationsOfTheGoneAreSwept opens a fence, as a proxy does that replaces one that
// has died.
func TestRegistrationsOfTheGoneAreSwept(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	term := h.grant("a")
	gone, lives := h.worker(term), h.worker(term)
	h.mustEnter(gone)
	h.mustEnter(lives)
	if err := gone.Close(h.ctx()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the registration of the backend that is gone is deleted", func() bool {
		if _, err := h.store.Fence(h.ctx(), "another"); err != nil {
			t.Fatal(err)
		}
		return ask[int](h, "SELECT count(*) FROM fencepost.running") == 1
	})
	if pid := ask[uint32](h, "SELECT pid FROM fencepost.running"); pid != lives.PgConn().PID() {
		t.Errorf("the registration of backend %d is left, want that of %d", pid, lives.PgConn().PID())
	}
}
