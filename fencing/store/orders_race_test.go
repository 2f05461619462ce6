package store_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

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
			h := newTestDatabase(t, pgtest.Shared(t), func(c *store.Config) { c.Grace = time.Minute })
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

// TestPauseBeforeTheFirstGrant pauses a resource that no one was granted an epoch of, and one
// whose row does not know the epoch of the ledger.
func TestPauseBeforeTheFirstGrant(t *testing.T) {
	t.Parallel()
	t.Run("no grant", func(t *testing.T) {
		t.Parallel()
		h := newTestDatabase(t, pgtest.Shared(t))
		order, err := h.store.Pause(h.ctx(), resource, operator)
		ordered(t, order, err, &fencing.Order{Kind: "pause"})
		_, err = h.fence.Grant(h.ctx(), h.award("one"))
		barred(t, err)
	})
	t.Run("a grant that the row does not know", func(t *testing.T) {
		t.Parallel()
		h := newTestDatabase(t, pgtest.Shared(t))
		one := h.grant("one")
		h.server.Exec(t, pgtest.Control, h.db, "UPDATE fencepost.fence SET epoch = 0, worker = NULL, incarnation = NULL")
		order, err := h.store.Pause(h.ctx(), resource, operator)
		ordered(t, order, err, &fencing.Order{Kind: "pause", Epoch: one.Epoch + 1})
		if err := h.worker(one).check(h.ctx()); stateOf(err) != fencing.StateSuperseded {
			t.Errorf("a write under a pause: %v; want ZF001", err)
		}
	})
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
