package several

import (
	"slices"
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

// TestAChoiceBehindAnotherTransaction: what has run in a transaction that is over, or in a batch of its
// own, is no work of the block in which SET LOCAL chooses, although all of it is sent at once.
func TestAChoiceBehindAnotherTransaction(t *testing.T) {
	t.Parallel()
	const chooses, commit = "set local fencepost.resource = 'b'", "commit"
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		for name, sent := range map[string]struct {
			readies int
			parts   [][]byte
		}{
			"queries":                {5, [][]byte{Q(write("before")), Q("begin"), Q(chooses), Q(write("mine")), Q(commit)}},
			"a batch":                {5, [][]byte{Batch(Run(write("before"))), Q("begin"), Q(chooses), Q(write("mine")), Q(commit)}},
			"one batch":              {2, [][]byte{Q(write("before")), Batch(Run("begin"), Run(chooses), Run(write("mine")), Run(commit))}},
			"a text":                 {2, [][]byte{Q(write("before")), Q("begin;" + chooses + ";" + write("mine") + ";" + commit)}},
			"a text in two":          {3, [][]byte{Q(write("before") + ";" + commit + "; begin"), Q(chooses + ";" + write("mine")), Q(commit)}},
			"a block":                {4, [][]byte{Q("begin;" + write("before") + ";" + commit), Q("begin"), Batch(Run(chooses), Run(write("mine"))), Q(commit)}},
			"a chain":                {5, [][]byte{Q("begin"), Q(write("before") + "; commit and chain"), Q(chooses), Q(write("mine")), Q(commit)}},
			"a checked block":        {3, [][]byte{Q("begin"), Q(write("before")), Q(commit + "; begin;" + chooses + ";" + write("mine") + ";" + commit)}},
			"a checked chain":        {4, [][]byte{Q("begin"), Q(write("before")), Q(commit + " and chain;" + chooses + ";" + write("mine")), Q(commit)}},
			"a block, by a DO":       {5, [][]byte{Q("begin"), Q(chooses), Q("do $$begin insert into t (v) values ('before'); end$$"), Q(write("mine")), Q(commit)}},
			"a DO in messages":       {1, [][]byte{Batch(Run("begin"), Run(chooses), Run("do $$begin insert into t (v) values ('before'); end$$"), Run(write("mine")), Run(commit))}},
			"a prepared BEGIN":       {2, [][]byte{Batch(Parse("b1", "begin")), Batch(Bind("", "b1"), Exec("", 0), Run(chooses), Run(write("before")), Run(write("mine")), Run(commit))}},
			"a SHOW":                 {5, [][]byte{Q("begin"), Q("show fencepost.resource"), Q(chooses), Q(write("before") + ";" + write("mine")), Q(commit)}},
			"a block of a text":      {5, [][]byte{Q("begin"), Q(commit + "; begin;" + chooses + ";" + write("before") + "; savepoint s; select 1/0; commit; begin"), Q("rollback to s"), Q(write("mine")), Q(commit)}},
			"a statement that fails": {5, [][]byte{Q("select 1/0"), Q("begin"), Q(chooses), Q(write("before") + ";" + write("mine")), Q(commit)}},
		} {
			c := chooserAs(s, another(s), "r", "b")
			before, mine := s.Rows("before"), s.Rows("mine")
			all, ended := fixture.AskAll(c, sent.readies, sent.parts...)
			state, rows := wiretest.ErrorOf(all), s.Rows("before")-before+s.Rows("mine")-mine
			if ended || state != "" && state != "22012" || rows != 2 {
				t.Errorf("%s: got %v, ended %v, and %d rows", name, all, ended, rows)
			}
		}

		for name, sent := range map[string]struct {
			readies int
			parts   [][]byte
		}{
			"a write":                {3, [][]byte{Q("begin"), Q(write("before")), Q(chooses)}},
			"a write in messages":    {2, [][]byte{Q("begin"), Batch(Run(write("before")), Run(chooses))}},
			"a write behind a chain": {3, [][]byte{Q("begin"), Q("commit and chain;" + write("before")), Q(chooses)}},
			"a ROLLBACK TO":          {3, [][]byte{Q("begin"), Q("savepoint s;" + write("before")), Q("rollback to s;" + chooses)}},
			"a Parse":                {3, [][]byte{Q("begin"), Batch(Parse("", write("before"))), Q("set work_mem = '5MB';" + chooses)}},
			"an implicit block":      {1, [][]byte{Batch(Run(write("before")), Run("begin"), Run(chooses))}},
		} {
			c := chooserAs(s, another(s), "r", "b")
			all, ended := fixture.AskAll(c, sent.readies, sent.parts...)
			if refused := slices.ContainsFunc(all, func(m wiretest.Message) bool { return m.Type == 'E' && m.Fields()['C'] == "ZF005" }); ended || !refused {
				t.Errorf("behind %s: got %v, ended %v, want ZF005", name, all, ended)
			}
		}
	})
}

// TestSafetyWhatIsToldInATransaction does not count in it, however often it changes, and whatever was skipped
// in between.
func TestSafetyWhatIsToldInATransaction(t *testing.T) {
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

// TestSafetyAReleaseBehindACommit: the COMMIT of a transaction that has chosen is not answered when the
// RELEASE of the next one is sent, which has not chosen.
func TestSafetyAReleaseBehindACommit(t *testing.T) {
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

// TestDiscardAllEndsAChoice, although what follows it in its batch fails: Postgres commits it at once.
func TestDiscardAllEndsAChoice(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		c := chooserAs(s, another(s), "r", "b")
		fixture.MustPass(t, c, Q("set fencepost.resource = 'b'"))
		fixture.MustFail(t, c, "ZF005", Batch(Run("discard all"), Run("select 1/0")))
		fixture.MustPass(t, c, Q(write("mine")))
		if r := show(t, c, "resource"); r != "r" {
			t.Errorf("the session's resource is %s, want r", r)
		}
	})
}

// TestACommitThatHasRunEndsItsChoice, although a later statement of its text or batch has failed.
func TestACommitThatHasRunEndsItsChoice(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		c := chooserAs(s, another(s), "r", "b")
		for _, more := range []string{"", "; commit"} {
			fixture.MustFail(t, c, "22012", Q("begin; select 1; commit; begin; set local fencepost.resource = 'b'; savepoint s; select 1/0"+more))
			fixture.MustPassEach(t, c, "rollback to s", write("chosen"))
			if r := show(t, c, "resource"); r != "b" {
				t.Errorf("behind a text that ends with %q, the transaction's resource is %s, want b", more, r)
			}
			fixture.MustPassEach(t, c, "commit")
		}
		fixture.MustPassEach(t, c, "begin", "set local fencepost.resource = 'b'")
		fixture.MustFail(t, c, "ZF005", Batch(Run(write("chosen")), Run("commit"), Run("begin"), Run("select 1"))) // only BEGIN may follow
		fixture.MustPass(t, c, Q("rollback"))
		if r := show(t, c, "resource"); r != "r" {
			t.Errorf("behind a batch, the transaction's resource is %s, want r", r)
		}
		fixture.MustPassEach(t, c, write("own"))
		if s.Rows("chosen") != 3 || s.Rows("own") != 1 {
			t.Errorf("%d and %d rows, want 3 and 1", s.Rows("chosen"), s.Rows("own"))
		}
	})
}
