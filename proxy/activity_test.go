package proxy

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/netlooptest"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/startup"
	"github.com/fencepost/fencepost/proxy/workers"
)

// supersededCandidacy is one that is over.
type supersededCandidacy struct{ fencing.Candidacy }

func (supersededCandidacy) Status() *fencing.Status {
	return &fencing.Status{Role: fencing.Superseded}
}

// TestNoOneWaitsForASession: the candidacy's loop, which starts renewals, goes
// on whatever the session is doing for its client.
func TestNoOneWaitsForASession(t *testing.T) {
	t.Parallel()
	client, server := netlooptest.Pair(t)
	s := &Server{workers: workers.New()}
	defer s.workers.Close()
	x := newSession(s, client, server, &startup.Request{})
	x.m = protocol.New(protocol.Config{Mode: protocol.ModeFenced, Version: 15, Candidacy: protocol.Candidacy{Status: func() *fencing.Status { return &fencing.Status{} }}, Cache: sqltext.NewCache(1 << 10)})
	x.member.place = s.workers.Join(x, fencing.JoinRequest{Worker: "w"})
	defer x.member.place.Leave()
	x.setStartupResource("r")
	x.member.startup.joinedTo.Store(&joinedCandidacy{Candidacy: supersededCandidacy{}})
	x.member.state.Store(joined)
	x.sending.Lock()
	defer x.sending.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.life.advance(phaseServing)
	x.active.busy.Store(false)
	if _, err := server.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.active.pending.Store(true)
		if received, owed := x.member.startup.Activity(); received != 1 || !owed {
			t.Errorf("%d bytes received, owed %v", received, owed)
		}
		x.member.startup.StatusChanged()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the candidacy's loop waits for a session that is at work")
	}
	if x.isSuperseded() != fencing.Checking {
		t.Error("the session does not know that it is superseded")
	}
}
