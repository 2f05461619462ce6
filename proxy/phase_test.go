package proxy

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/netlooptest"
	"github.com/fencepost/fencepost/proxy/startup"
)

// TestASessionThatIsDrainedBeforeItJoinsIsNotPolled: the candidacy's loop may look at it
// before its candidacy is set.
func TestASessionThatIsDrainedBeforeItJoinsIsNotPolled(t *testing.T) {
	t.Parallel()
	client, server := netlooptest.Pair(t)
	s := &Server{crews: newCrews()}
	defer s.crews.close()
	x := newSession(s, client, server, &startup.Request{Own: startup.Own{WorkerTimeout: -1}})
	other := newSession(s, client, server, &startup.Request{})
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
