package election

import (
	"slices"

	"github.com/fencepost/fencepost/fencing"
)

// roster holds the candidacies of one resource at this proxy.
type roster struct {
	// byWorker holds the candidacies that can be joined: neither superseded nor ended.
	// Those of one worker differ by user or by address.
	byWorker map[string][]*Candidacy
	// loops holds every candidacy whose loop is running.
	loops []*Candidacy
	// departing holds the candidacies that are about to release the lease. A first
	// attempt waits for them instead of failing.
	departing map[*Candidacy]struct{}
	// holder is the candidacy that holds the lease, nil if none of this proxy does.
	holder *Candidacy
}

func newRoster() roster {
	return roster{
		byWorker: map[string][]*Candidacy{}, departing: map[*Candidacy]struct{}{},
	}
}

// add adds a new candidacy.
func (s *roster) add(c *Candidacy) {
	s.byWorker[c.worker] = append(s.byWorker[c.worker], c)
	s.loops = append(s.loops, c)
}

// remove removes a candidacy from those that can be joined.
func (s *roster) remove(c *Candidacy) {
	list := s.byWorker[c.worker]
	for i, other := range list {
		if other == c {
			list = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(s.byWorker, c.worker)
		return
	}
	s.byWorker[c.worker] = list
}

// ended removes a candidacy whose loop has ended.
func (s *roster) ended(c *Candidacy) {
	s.loops = slices.DeleteFunc(s.loops, func(other *Candidacy) bool { return other == c })
}

// runs reports whether the candidacy of an incarnation is one of this proxy. Where several workers bring the token of
// the recorded grant, one that has not been granted a share in its epoch does not count.
func (s *roster) runs(incarnation string, recorded fencing.Record) bool {
	for _, c := range s.loops {
		if c.incarnation == incarnation &&
			(c.token == 0 || recorded.Incarnation != incarnation || recorded.Worker == c.worker || c.Status().Epoch == recorded.Epoch) {
			return true
		}
	}
	return false
}

// servesOthersOnly reports whether there are candidacies, but none of the user.
func (s *roster) servesOthersOnly(user string) bool {
	for _, c := range s.loops {
		if c.user == user {
			return false
		}
	}
	return len(s.loops) > 0
}

// heldByOther reports whether a candidacy other than c holds the lease.
func (s *roster) heldByOther(c *Candidacy) bool { return s.holder != nil && s.holder != c }

// otherDeparting reports whether a candidacy other than c is about to release the lease.
func (s *roster) otherDeparting(c *Candidacy) bool {
	for other := range s.departing {
		if other != c {
			return true
		}
	}
	return false
}

// vacate records that a candidacy holds no lease. It reports whether it held one. If another one leads by the
// same token, or has lapsed and may be confirmed again, that one holds it now.
func (s *roster) vacate(c *Candidacy) bool {
	if s.holder != c {
		return false
	}
	s.holder = nil
	for _, other := range s.loops {
		st := other.Status()
		if other != c && other.incarnation == c.incarnation && (st.CanWrite() || st.Lapsed) && other.termLocked().Epoch != 0 {
			s.holder = other // of several, leads finds one that can write
		}
	}
	return true
}

// leads reports whether the holder can write. If it cannot, and another candidacy that leads by the same token can,
// that one holds the lease from then on.
func (s *roster) leads() bool {
	if s.holder == nil || s.holder.Status().CanWrite() {
		return s.holder != nil
	}
	if s.holder.token == 0 { // no other one has its incarnation
		return false
	}
	for _, other := range s.loops {
		if other.incarnation == s.holder.incarnation && other.Status().CanWrite() {
			s.holder = other
			return true
		}
	}
	return false
}
