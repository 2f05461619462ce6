package election

import (
	"fmt"
	"slices"
	"testing"

	"github.com/fencepost/fencepost/fencing"
)

// notified is a connection that notes which epochs end.
type notified struct {
	idle
	ends *[]string
	name string
}

func (m *notified) EpochEnds(d fencing.Drain) {
	*m.ends = append(*m.ends, fmt.Sprint(m.name, " ", d.Epoch))
}

// TestDrainingNotifiesWhoHasThatEpoch, or an older one: the members of a candidacy that has none, or a newer one, are not notified.
func TestDrainingNotifiesWhoHasThatEpoch(t *testing.T) {
	t.Parallel()
	var ends []string
	r := &resource{}
	r.mu.roster = newRoster()
	for _, own := range []fencing.Epoch{0, 3, 4, 5} {
		c := &Candidacy{}
		c.membership = membershipOf(&notified{ends: &ends, name: fmt.Sprint("of ", own)})
		c.current.Store(&fencing.Status{Epoch: own})
		r.mu.loops[c] = struct{}{}
	}
	e := &Elections{}
	e.mu.resources = map[resourceKey]*resource{{"db", "r"}: r}
	for _, resource := range []string{"r", "another"} {
		e.Draining("db", fencing.Drain{Resource: resource, Epoch: 4})
	}
	slices.Sort(ends)
	if want := []string{"of 3 4", "of 4 4"}; !slices.Equal(ends, want) {
		t.Errorf("notified %q, want %q", ends, want)
	}
}

func membershipOf(m fencing.Member) membership {
	s := newMembership()
	s.add(m, member{})
	return s
}
