package several

import (
	"context"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// TestSafetyAGrantForTheSessionDuringAnotherChoice: the transaction has chosen another resource than the session, whose
// backend a grant of either ends. The error says so, and names the resource.
func TestSafetyAGrantForTheSessionDuringAnotherChoice(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		for _, lost := range []string{"b", "c"} {
			c := chooserAs(s, another(s), "b", "c")
			fixture.MustPassEach(t, c, "set fencepost.resource = 'b'", write("kept"), "begin", "set local fencepost.resource = 'c'", write("late"))
			s.SupersedeOn(lost)
			if f := fixture.MustEnd(t, c, fencing.StateSuperseded, Q("commit")); !names(f, lost) {
				t.Errorf("the client is told %s, want that it names %s", f['M'], lost)
			}
		}
		if n := s.Rows("late"); n != 0 {
			t.Errorf("%d rows were committed behind a grant", n)
		}
	})
}

// TestAnAdministratorEndsABackendOfAnotherChoice: that the worker was superseded for the resource of its startup, which
// the session does not go by any more, is not why its connection ends.
func TestAnAdministratorEndsABackendOfAnotherChoice(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		c := chooserAs(s, another(s), "r", "b")
		fixture.MustPassEach(t, c, "set fencepost.resource = 'b'", write("kept"))
		s.SupersedeOn("r")
		pid := fixture.FirstValue(t, fixture.MustPass(t, c, Q("select pg_backend_pid()")))
		s.Exec("select pg_terminate_backend(" + pid + ", 5000)")
		if all, ended := fixture.AskAll(c, 1, Q(write("late"))); !ended || fixture.FatalError(t, all)['C'] != "57P01" {
			t.Errorf("%v, ended %v; want FATAL 57P01", all, ended)
		}
	})
}

// heldJoin is elections where a connection joins the candidacy of resource c only once drained is closed: when a grant
// has notified one of resource b.
type heldJoin struct {
	fencing.Candidates
	joining, drained chan struct{}
}

func (e *heldJoin) Join(ctx context.Context, c fencing.JoinRequest, m fencing.Member) (fencing.Candidacy, error) {
	switch c.Resource {
	case "b":
		m = drainedMember{m, e.drained}
	case "c":
		close(e.joining)
		<-e.drained
	}
	return e.Candidates.Join(ctx, c, m)
}

type drainedMember struct {
	fencing.Member
	drained chan struct{}
}

func (m drainedMember) EpochEnds(d fencing.Drain) {
	m.Member.EpochEnds(d)
	close(m.drained)
}

// TestAGrantOfWhatTheSessionLeaves: a grant begins while the client chooses another resource for its session, after
// which the grant no longer waits for the backend. The session goes on.
func TestAGrantOfWhatTheSessionLeaves(t *testing.T) {
	t.Parallel()
	held := &heldJoin{joining: make(chan struct{}), drained: make(chan struct{})}
	s := fixture.NewCluster(t, pgtest.Shared(t), func(cfg *proxy.Config) {
		held.Candidates, cfg.Candidates = cfg.Candidates, held
	})
	s.PG.DrainsPatiently(t, s.DB)
	s.Elector.SetGrace(fixture.Patience)
	c := chooser(s, "b", "c")
	fixture.MustPassEach(t, c, "set fencepost.resource = 'b'", write("kept"))
	c.Send(Q("set fencepost.resource = 'c'"))
	<-held.joining
	s.SupersedeOn("b")
	c.Until('Z')
	fixture.MustPassEach(t, c, write("kept"))
	if n := s.Rows("kept"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}
