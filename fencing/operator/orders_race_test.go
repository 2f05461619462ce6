package operator_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestOrdersThatRaceWithARemoval gives an order while another connection removes the
// resource, and creates it again or not.
func TestOrdersThatRaceWithARemoval(t *testing.T) {
	t.Parallel()
	for _, anew := range []bool{false, true} {
		t.Run(fmt.Sprintf("made anew %t", anew), func(t *testing.T) {
			t.Parallel()
			h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace = time.Minute })
			h.Grant("one")
			removal, err := h.Server.Connect(t, pgtest.Control, h.DB).Begin(h.Ctx())
			if err != nil {
				t.Fatal(err)
			}
			statements := []string{fmt.Sprintf("SELECT fencepost.remove(%d, true, 'ops', '', '1s', '1s')", h.Fence.ID())}
			if anew {
				statements = append(statements, "SELECT fencepost.register('billing')")
			}
			for _, sql := range statements {
				if _, err := removal.Exec(h.Ctx(), sql); err != nil {
					t.Fatal(err)
				}
			}
			paused := make(chan error, 1)
			go func() {
				_, err := operator.New(h.Fences).Pause(h.Ctx(), fencetest.Resource, ops)
				paused <- err
			}()
			fixture.Eventually(t, "the order waits", func() bool {
				return fencetest.Ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%fencepost.pause%' AND datname = current_database())")
			})
			if err := removal.Commit(h.Ctx()); err != nil {
				t.Fatal(err)
			}
			err = <-paused
			if !anew {
				if !errors.Is(err, fence.ErrNoResource) {
					t.Errorf("the order to a removed resource: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			fence, err := h.Fences.Fence(h.Ctx(), fencetest.Resource)
			if err != nil {
				t.Fatal(err)
			}
			_, err = fence.Grant(h.Ctx(), h.Award("two"))
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
		h := fencetest.New(t, pgtest.Shared(t))
		order, err := operator.New(h.Fences).Pause(h.Ctx(), fencetest.Resource, ops)
		ordered(t, order, err, &fencing.Order{Kind: "pause"})
		_, err = h.Fence.Grant(h.Ctx(), h.Award("one"))
		barred(t, err)
	})
	t.Run("a grant that the row does not know", func(t *testing.T) {
		t.Parallel()
		h := fencetest.New(t, pgtest.Shared(t))
		one := h.Grant("one")
		h.Server.Exec(t, pgtest.Control, h.DB, "UPDATE fencepost.fence SET epoch = 0, worker = NULL, incarnation = NULL")
		order, err := operator.New(h.Fences).Pause(h.Ctx(), fencetest.Resource, ops)
		ordered(t, order, err, &fencing.Order{Kind: "pause", Epoch: one.Epoch + 1})
		if err := h.Worker(one).Check(h.Ctx()); fencetest.StateOf(err) != fencing.StateSuperseded {
			t.Errorf("a write under a pause: %v; want ZF001", err)
		}
	})
}
