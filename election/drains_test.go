package election_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

// notified is a connection that notes which epochs end.
type notified struct {
	conn
	ends *[]string
}

func (m *notified) EpochEnds(d fencing.Drain) {
	*m.ends = append(*m.ends, fmt.Sprint(m.worker, " ", d.Epoch))
}

// TestDrainingNotifiesWhoHasThatEpoch, or an older one: the members of a candidacy that has none, or a newer one, are not notified.
func TestDrainingNotifiesWhoHasThatEpoch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, f := newModel(simulatedTTL), &faults{latency: time.Millisecond}
		e := newElections(t, m, election.Backend{
			Provider: provider{m, f},
			Fence:    func(context.Context, string) (election.Fence, error) { return fence{model: m, faults: f}, nil },
		})
		var ends []string
		join := func(worker string) *notified {
			t.Helper()
			c := &notified{conn: conn{worker: worker}, ends: &ends}
			var err error
			if c.Candidacy, err = e.Join(t.Context(), fencing.JoinRequest{Database: "db", User: "app", Resource: "billing", Worker: worker}, c); err != nil {
				t.Fatal(err)
			}
			if err := c.AwaitFirst(t.Context(), time.Minute); err != nil {
				t.Fatal(err)
			}
			return c
		}
		drain := func(resource string, epoch fencing.Epoch, want ...string) {
			t.Helper()
			e.Draining("db", fencing.Drain{Resource: resource, Epoch: epoch})
			slices.Sort(ends)
			if !slices.Equal(ends, want) {
				t.Errorf("a grant that waits for epoch %d of %s has notified %q, want %q", epoch, resource, ends, want)
			}
			ends = nil
		}
		a, b := join("a"), join("b")
		wantRole(t, &a.conn, fencing.Leader)
		drain("billing", 1, "a 1")
		drain("another", 1)
		m.do(func() { m.lease.State, m.barred[a.Incarnation()] = elector.Freed, true })
		time.Sleep(simulatedTTL)
		wantRole(t, &b.conn, fencing.Leader)
		drain("billing", 1, "a 1")
		drain("billing", 2, "a 2", "b 2")
	})
}
