package several

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
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
