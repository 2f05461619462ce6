package proxy

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/netlooptest"
	"github.com/fencepost/fencepost/proxy/startup"
	"github.com/fencepost/fencepost/proxy/workers"
)

// poll is a session that a worker polls.
type poll struct{ began chan struct{} }

func (*poll) Poll() (uint32, bool) { return 0, false }

func (*poll) SetStuck(bool) {}

func (p *poll) Fence() fencing.Fence {
	close(p.began)
	return nil
}

// TestASessionThatIsDrainedBeforeItJoinsIsNotPolled: the candidacy's loop may look at it
// before its candidacy is set, which a poll would use.
func TestASessionThatIsDrainedBeforeItJoinsIsNotPolled(t *testing.T) {
	t.Parallel()
	client, server := netlooptest.Pair(t)
	s := &Server{workers: workers.New()}
	w, other := fencing.JoinRequest{Worker: "w", WorkerTimeout: -1}, fencing.JoinRequest{Worker: "other", WorkerTimeout: -1}
	x := newSession(s, client, server, &startup.Request{})
	for _, member := range []*session{x, newSession(s, client, server, &startup.Request{})} {
		member.member.place = s.workers.Join(member, w)
	}
	x.setStartupResource("r")
	x.cancel = func() {}
	x.drain()
	if _, owed := x.member.startup.Activity(); !owed {
		t.Error("a session in its startup is not at work")
	}
	next := &poll{began: make(chan struct{})}
	s.workers.Join(&poll{}, other)
	s.workers.Join(next, other).RequestPoll()
	<-next.began // a poll that was requested before has begun, and Close waits for it
	s.workers.Close()
}
