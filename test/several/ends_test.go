package several

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// skipped are a statement that fails and a COMMIT behind it, which the server skips.
var skipped = map[string][]byte{
	"a batch": Batch(Run("select 1/0"), Run("commit")),
	"a text":  Q("select 1/0; commit"),
}

// TestSafetyACommitThatIsSkippedEndsNoChoice: the transaction goes on behind ROLLBACK TO, as that of a leader of what it
// has chosen, or of a follower, whatever the worker is for the resource of its startup.
func TestSafetyACommitThatIsSkippedEndsNoChoice(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		for name, ends := range skipped {
			s.SupersedeOn("b")
			c := chooserAs(s, another(s), "r")
			fixture.MustPassEach(t, c, "begin", "set local fencepost.resource = 'b'", "savepoint s")
			fixture.MustFail(t, c, "22012", ends)
			fixture.MustPassEach(t, c, "rollback to s")
			fixture.Ask(c, Q("reset transaction_read_only")) // 15 lets it pass
			if all, _ := fixture.Ask(c, Q(write("stale"))); wiretest.ErrorOf(all) == "" {
				t.Errorf("%s: a follower of b wrote: %v", name, all)
			}
			fixture.Ask(c, Q("commit"))
		}
		c := chooserAs(s, another(s), "b")
		fixture.MustPassEach(t, c, "begin", "set local fencepost.resource = 'b'", "savepoint s")
		fixture.MustFail(t, c, "22012", skipped["a text"])
		fixture.MustPassEach(t, c, "rollback to s", write("goes on"), "commit")
		if s.Rows("stale") != 0 || s.Rows("goes on") != 1 {
			t.Errorf("%d stale rows and %d others, want 0 and 1", s.Rows("stale"), s.Rows("goes on"))
		}
	})
}

// TestSafetyWhatIsAnnouncedInATransaction does not count in it, however often it changes, and whatever was skipped
// in between.
func TestSafetyWhatIsAnnouncedInATransaction(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		worker := another(s)
		s.SupersedeOn("b")
		c := chooserAs(s, worker, "r")
		fixture.MustPassEach(t, c, "begin", "set local fencepost.resource = 'b'", "select count(*) from t", "savepoint s")
		s.GrantOn("b", worker)
		fixture.MustFail(t, c, "ZF003", Q(write("stale"))) // which tells the epoch
		fixture.MustPass(t, c, Q("rollback to s"))
		fixture.MustFail(t, c, "22012", Batch(Run("select 1/0"), Run("commit")))
		fixture.MustPass(t, c, Q("rollback to s"))
		candidacy := s.Candidacy(s.DB, "b", worker)
		confirmed := *candidacy.Status()
		lapsed := confirmed
		lapsed.Lapsed, lapsed.Role = true, fencing.Follower
		candidacy.SetStatus(&lapsed)
		fixture.MustPass(t, c, Q("show fencepost.role")) // which tells that there is none
		candidacy.SetStatus(&confirmed)
		if all, _ := fixture.Ask(c, Q("reset transaction_read_only")); wiretest.ErrorOf(all) != "" { // 15 lets it pass
			fixture.MustPass(t, c, Q("rollback to s"))
		}
		fixture.MustFail(t, c, "ZF003", Q(write("stale")))
		fixture.Ask(c, Q("commit"))
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d rows of a transaction that a follower began", n)
		}
	})
}

// TestSafetyAReleaseAfterACommit: the COMMIT of a transaction that has chosen is not answered when the
// RELEASE of the next one is sent, which has not chosen.
func TestSafetyAReleaseAfterACommit(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		chosen := Cat(Q("begin"), Q("set local fencepost.resource = 'b'"), Q(write("chosen")), Q("commit"))
		next := Cat(Run("begin"), Run("savepoint s"), Run("release s"))

		c := chooserAs(s, another(s), "r", "b")
		all, ended := fixture.AskAll(c, 5, chosen, next, Batch(Run("show fencepost.resource"), Run(write("mine")), Run("commit")))
		if state := wiretest.ErrorOf(all); ended || state != "" || s.Rows("chosen") != 1 || s.Rows("mine") != 1 {
			t.Errorf("a leader of both gets %v, ended %v, and %d and %d rows", all, ended, s.Rows("chosen"), s.Rows("mine"))
		}

		s.SupersedeOn("r")
		c = chooserAs(s, another(s), "b")
		all, _ = fixture.AskAll(c, 5, chosen, next, Batch(Run("show fencepost.resource"), Run("reset transaction_read_only"), Run(write("stale")), Run("commit")))
		if wiretest.ErrorOf(all) == "" || s.Rows("stale") != 0 {
			t.Errorf("a follower of its own resource gets %v, and %d rows", all, s.Rows("stale"))
		}
	})
}
