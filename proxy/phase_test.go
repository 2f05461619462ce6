package proxy

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/netlooptest"
)

func TestARegistrationIsAddedAndDeletedInTurns(t *testing.T) {
	t.Parallel()
	var r registration
	entry := fencing.Registration{PID: 1, ID: 2}
	if r.beginDelete() {
		t.Error("deletes an entry that was never added")
	}
	for range 2 {
		if !r.add(entry, 1) || r.entry != entry || r.add(fencing.Registration{}, 1) {
			t.Fatalf("not added exactly once: %+v", r)
		}
		if !r.beginDelete() || r.beginDelete() || r.add(entry, 1) {
			t.Fatalf("not deleted exactly once: %+v", r)
		}
		deleted := r.deleted
		r.endDelete(true)
		r.endDelete(true)
		<-deleted
		if r.state != unregistered || r.deleted != nil {
			t.Fatalf("after the deletion: %+v", r)
		}
	}
	r.add(entry, 1)
	r.beginDelete()
	r.endDelete(false)
	if r.state != registrationStuck || r.add(entry, 1) || r.beginDelete() {
		t.Errorf("after a deletion that was not confirmed: %+v", r)
	}
}

// TestASessionThatIsDrainedBeforeItJoinsIsNotPolled: the candidacy's loop may look at it
// before its candidacy is set.
func TestASessionThatIsDrainedBeforeItJoinsIsNotPolled(t *testing.T) {
	t.Parallel()
	client, server := netlooptest.Pair(t)
	s := &Server{crews: newCrews()}
	defer s.crews.close()
	x := newSession(s, client, server, &startup{own: ownParams{workerTimeout: -1}})
	other := newSession(s, client, server, &startup{})
	for _, member := range []*session{x, other} {
		s.crews.join(member, fencing.JoinRequest{Worker: "w"})
		defer s.crews.leave(member)
	}
	x.cancel = func() {}
	x.drain()
	if _, owed := x.Activity(); !owed || x.member.crew.polling.Load() {
		t.Errorf("owed %v, a poll is due: %v", owed, x.member.crew.polling.Load())
	}
}
