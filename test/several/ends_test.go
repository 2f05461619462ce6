package several

import (
	"slices"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// skipped are a statement that fails and a COMMIT behind it, which the server skips.
var skipped = map[string][]byte{
	"a batch": Batch(Run("select 1/0"), Run("commit")),
	"a text":  Q("select 1/0; commit"),
}

// idle are messages that the server answers without an error in a block that has failed.
var idle = map[string][]byte{
	"nothing":        nil,
	"a Sync":         Sync(),
	"an empty Query": Q(""),
	"a Close":        Batch(Shut('S', "none")),
}

// TestACommitThatIsSkippedEndsNoChoice: the transaction goes on behind ROLLBACK TO, and it is still
// checked for what it has chosen.
func TestACommitThatIsSkippedEndsNoChoice(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.SupersedeOn("r")
		for name, ends := range skipped {
			for between, message := range idle {
				c := chooserAs(s, another(s), "b")
				fixture.MustPassEach(t, c, "begin", "set local fencepost.resource = 'b'", "savepoint s")
				fixture.MustFail(t, c, "22012", ends)
				if message != nil {
					if all := fixture.MustPass(t, c, message); parameters(all) != "" {
						t.Errorf("%s, %s: the client is told %s", name, between, parameters(all))
					}
				}
				fixture.MustPassEach(t, c, "rollback to s", write("goes on"))
				if r := show(t, c, "resource"); r != "b" {
					t.Errorf("%s, %s: the transaction's resource is %s, want b", name, between, r)
				}
				fixture.MustPassEach(t, c, "commit")
			}
		}
		if n := s.Rows("goes on"); n != len(skipped)*len(idle) {
			t.Errorf("%d rows, want %d", n, len(skipped)*len(idle))
		}
	})
}

// TestSafetyACommitThatIsSkippedEndsNoChoice: the worker does not lead what the transaction has
// chosen, but the resource of its startup.
func TestSafetyACommitThatIsSkippedEndsNoChoice(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.SupersedeOn("b")
		for _, ends := range skipped {
			for _, message := range idle {
				c := chooserAs(s, another(s), "r")
				fixture.MustPassEach(t, c, "begin", "set local fencepost.resource = 'b'", "savepoint s")
				fixture.MustFail(t, c, "22012", ends)
				if message != nil {
					fixture.MustPass(t, c, message)
				}
				fixture.MustPassEach(t, c, "rollback to s")
				fixture.Ask(c, Q("reset transaction_read_only")) // 14 and 15 let it pass
				if all, _ := fixture.Ask(c, Q(write("stale"))); wiretest.ErrorOf(all) == "" {
					t.Errorf("a follower of b wrote: %v", all)
				}
				fixture.Ask(c, Q("commit"))
			}
		}
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d stale rows", n)
		}
	})
}

// TestABeginThatFailsBeginsNothing: SET LOCAL behind it stands outside a block.
func TestABeginThatFailsBeginsNothing(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		for name, fails := range map[string][]byte{
			"an isolation level behind a query": Batch(Parse("", "select 1"), Bind("", ""), Run("begin isolation level serializable")),
			"a syntax error in front":           Batch(Parse("", "selec"), Run("begin")),
		} {
			for _, chooses := range [][]byte{Q("set local fencepost.resource = 'b'"), Batch(Run("set local fencepost.resource = 'b'"))} {
				c := chooserAs(s, another(s), "r")
				all, ended := fixture.AskAll(c, 2, fails, chooses)
				if ended || wiretest.ErrorOf(all[len(all)-3:]) != "ZF005" || parameters(all) != "" {
					t.Errorf("%s: got %v, ended %v; want ZF005 at the end", name, all, ended)
				}
				fixture.MustPass(t, c, Q(write("mine")))
			}
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
			"queries":                 {5, [][]byte{Q(write("before")), Q("begin"), Q(chooses), Q(write("mine")), Q(commit)}},
			"a batch":                 {5, [][]byte{Batch(Run(write("before"))), Q("begin"), Q(chooses), Q(write("mine")), Q(commit)}},
			"one batch":               {2, [][]byte{Q(write("before")), Batch(Run("begin"), Run(chooses), Run(write("mine")), Run(commit))}},
			"a text":                  {2, [][]byte{Q(write("before")), Q("begin;" + chooses + ";" + write("mine") + ";" + commit)}},
			"a text in two":           {3, [][]byte{Q(write("before") + ";" + commit + "; begin"), Q(chooses + ";" + write("mine")), Q(commit)}},
			"a block":                 {4, [][]byte{Q("begin;" + write("before") + ";" + commit), Q("begin"), Batch(Run(chooses), Run(write("mine"))), Q(commit)}},
			"a chain":                 {5, [][]byte{Q("begin"), Q(write("before") + "; commit and chain"), Q(chooses), Q(write("mine")), Q(commit)}},
			"a chain in messages":     {2, [][]byte{Q("begin"), Batch(Run(write("before")), Run("commit and chain"), Run(chooses), Run(write("mine")), Run(commit))}},
			"a checked block":         {3, [][]byte{Q("begin"), Q(write("before")), Q(commit + "; begin;" + chooses + ";" + write("mine") + ";" + commit)}},
			"a checked chain":         {4, [][]byte{Q("begin"), Q(write("before")), Q(commit + " and chain;" + chooses + ";" + write("mine")), Q(commit)}},
			"a block, by a savepoint": {6, [][]byte{Q("begin;" + write("before") + ";" + commit), Q("begin"), Q(chooses), Q("savepoint s"), Q(write("mine")), Q(commit)}},
			"a block, by a cursor":    {6, [][]byte{Q("begin;" + write("before") + ";" + commit), Batch(Run("begin"), Run(chooses)), Q("declare c cursor for select 1"), Q("fetch c"), Q(write("mine")), Q(commit)}},
			"a block, by a DO":        {5, [][]byte{Q("begin"), Q(chooses), Q("do $$begin insert into t (v) values ('before'); end$$"), Q(write("mine")), Q(commit)}},
			"a DO in messages":        {1, [][]byte{Batch(Run("begin"), Run(chooses), Run("do $$begin insert into t (v) values ('before'); end$$"), Run(write("mine")), Run(commit))}},
			"a SHOW":                  {5, [][]byte{Q("begin"), Q("show fencepost.resource"), Q(chooses), Q(write("before") + ";" + write("mine")), Q(commit)}},
			"a Query in a batch":      {3, [][]byte{Q("begin;" + chooses + ";" + write("before")), Run("set transaction read write"), Q(write("mine")), Q(commit)}},
			"a block of a text":       {5, [][]byte{Q("begin"), Q(commit + "; begin;" + chooses + ";" + write("before") + "; savepoint s; select 1/0; commit; begin"), Q("rollback to s"), Q(write("mine")), Q(commit)}},
			"a statement that fails":  {5, [][]byte{Q("select 1/0"), Q("begin"), Q(chooses), Q(write("before") + ";" + write("mine")), Q(commit)}},
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
			"a skipped COMMIT":       {4, [][]byte{Q("begin; savepoint s;" + write("before")), Batch(Run("select 1/0"), Run(commit)), Q("rollback to s"), Q(chooses)}},
		} {
			c := chooserAs(s, another(s), "r", "b")
			all, ended := fixture.AskAll(c, sent.readies, sent.parts...)
			if refused := slices.ContainsFunc(all, func(m wiretest.Message) bool { return m.Type == 'E' && m.Fields()['C'] == "ZF005" }); ended || !refused {
				t.Errorf("behind %s: got %v, ended %v, want ZF005", name, all, ended)
			}
		}
	})
}

// TestSafetyALockThatIsSkippedLocksNothing: the server skips a COMMIT and a LOCK TABLE behind a statement
// that fails after they were sent, so the transaction of a follower goes on. What follows does not stand
// behind a LOCK that has begun its transaction.
func TestSafetyALockThatIsSkippedLocksNothing(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		worker := another(s)
		c := s.Connect(worker)
		fixture.MustPassEach(t, c, "begin", "select count(*) from t", "savepoint s")
		s.GrantOn("r", worker)
		fixture.MustPassEach(t, c, "show fencepost.role")
		// The LOCK is sent when the backend is registered, while the first statement still runs.
		fixture.MustFail(t, c, "22P02", Batch(Run("select pg_sleep(1)::text::int"), Run("commit"), Run("lock table t in share row exclusive mode")))
		fixture.MustPassEach(t, c, "rollback to s")
		if all, _ := fixture.Ask(c, Q("reset transaction_read_only")); wiretest.ErrorOf(all) != "" { // 14 and 15 would let it pass
			fixture.MustPassEach(t, c, "rollback to s")
		}
		if all, _ := fixture.Ask(c, Q(write("stale"))); wiretest.ErrorOf(all) == "" {
			t.Errorf("a transaction of a follower wrote: %v", all)
		}
		fixture.Ask(c, Q("commit"))
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d rows of a transaction of a follower", n)
		}
	})
}

// TestSafetyACommitOfAnOlderPortal: the portal of an earlier batch may have been replaced, so that it is not
// known before its answer that its Execute is a COMMIT. What follows stands in no block then, where a
// CALL commits inside, on 14 to 17, and goes on behind the check.
func TestSafetyACommitOfAnOlderPortal(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Exec("create procedure goes_on() language plpgsql as $$begin insert into t (v) values ('first'); commit; perform pg_sleep(1); insert into t (v) values ('stale'); end$$")
		for name, end := range map[string]string{"COMMIT": "commit", "ROLLBACK": "rollback"} {
			for between, parts := range map[string][]byte{"nothing": nil, "a read": Run("select 1")} {
				worker := another(s)
				c := chooserAs(s, worker, "r", "b")
				fixture.MustPass(t, c, Q("set fencepost.resource = 'b'"))
				fixture.MustPass(t, c, Batch(Run("begin"), Parse("c1", end), Bind("q1", "c1")))
				all, _ := fixture.Ask(c, Exec("q1", 0), parts, Run("call goes_on()"), Sync())
				if got := wiretest.ErrorOf(all); got != "ZF005" {
					t.Errorf("%s, and %s in between: a CALL that no registration covers is answered by %q: %v", name, between, got, all)
				}
				fixture.Ask(c, Q("rollback"))
			}
		}
		// The portal is one whose Close was skipped.
		c := chooserAs(s, another(s), "r", "b")
		fixture.MustPass(t, c, Q("set fencepost.resource = 'b'"))
		fixture.MustPass(t, c, Batch(Run("begin"), Parse("c1", "commit"), Bind("q1", "c1"), Run("savepoint s")))
		fixture.MustFail(t, c, "22012", Batch(Run("select 1/0"), Shut('P', "q1")))
		fixture.MustPass(t, c, Q("rollback to s"))
		fixture.MustFail(t, c, "ZF005", Exec("q1", 0), Run("select 1"), Run("call goes_on()"), Sync())
		if n := s.Rows("first") + s.Rows("stale"); n != 0 {
			t.Errorf("%d rows of a procedure that commits inside", n)
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
		if all, _ := fixture.Ask(c, Q("reset transaction_read_only")); wiretest.ErrorOf(all) != "" { // 14 and 15 let it pass
			fixture.MustPass(t, c, Q("rollback to s"))
		}
		fixture.MustFail(t, c, "ZF003", Q(write("stale")))
		fixture.Ask(c, Q("commit"))
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d rows of a transaction that a follower began", n)
		}
	})
}

// TestSafetyASnapshotByAForgottenPortal: the server skips a Close, so a portal that imports a snapshot still
// exists. What follows its Execute is checked, although its transaction has begun with a LOCK TABLE, and
// also where no check can stand in front of it.
func TestSafetyASnapshotByAForgottenPortal(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		for _, sql := range []string{write("stale"), "insert into t (v) select 'stale' where current_query() is not null"} {
			worker := another(s)
			s.SupersedeOn("r")
			exporter := s.PG.Connect(t, pgtest.Superuser, s.DB)
			if _, err := exporter.Exec(t.Context(), "begin isolation level repeatable read"); err != nil {
				t.Fatal(err)
			}
			var snapshot string
			if err := exporter.QueryRow(t.Context(), "select pg_export_snapshot()").Scan(&snapshot); err != nil {
				t.Fatal(err)
			}
			s.Exec("insert into t (v) values ('by the one before')")
			s.GrantOn("r", worker)
			c := s.Connect(worker)
			fixture.MustPassEach(t, c, "begin isolation level repeatable read", "lock table t in row exclusive mode")
			fixture.MustPass(t, c, Batch(Parse("c1", "set transaction snapshot '"+snapshot+"'"), Bind("p1", "c1")))
			fixture.MustPassEach(t, c, "savepoint s")
			fixture.MustFail(t, c, "22023", Batch(Run("set work_mem = 'bogus'"), Shut('P', "p1")))
			fixture.MustPassEach(t, c, "rollback to s", "release s")
			fixture.MustPass(t, c, Batch(Exec("p1", 0)))
			if all, _ := fixture.Ask(c, Q(sql)); wiretest.ErrorOf(all) == "" {
				t.Errorf("%s is answered by %v", sql, all)
			}
			fixture.Ask(c, Q("commit"))
		}
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d rows by a snapshot from before the grant", n)
		}
	})
}

// TestACallBehindARollbackToStandsInItsBlock, also under a choice, in one batch.
func TestACallBehindARollbackToStandsInItsBlock(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Exec("create procedure writes() language plpgsql as $$begin insert into t (v) values ('led'); end$$")
		c := chooserAs(s, another(s), "r", "b")
		fixture.MustPass(t, c, Q("set fencepost.resource = 'b'"))
		fixture.MustPass(t, c, Batch(Run("begin"), Run("savepoint s"), Run("call writes()"), Run("rollback to s"), Run("call writes()"), Run("commit")))
		for _, sent := range [][]byte{Q("begin; savepoint s"), Batch(Run("rollback to s"), Run("call writes()")), Q("call writes()"), Q("commit")} {
			fixture.MustPass(t, c, sent)
		}
		if n := s.Rows("led"); n != 3 {
			t.Errorf("%d rows, want 3", n)
		}
	})
}

// TestAChoiceBehindAParse: the worker does not lead the resource of its startup, so read-only mode stands
// in front of what it has prepared. A SET may undo that, and it has taken the transaction's snapshot all
// the same.
func TestAChoiceBehindAParse(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.SupersedeOn("r")
		c := chooserAs(s, another(s), "b")
		fixture.MustPassEach(t, c, "begin")
		fixture.MustPass(t, c, Parse("", "select count(*) from t"), Sync())
		fixture.MustPassEach(t, c, "set work_mem = '5MB'")
		fixture.MustFail(t, c, "ZF005", Q("set local fencepost.resource = 'b'"))
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
		fixture.MustFail(t, c, "22012", Batch(Run("discard all"), Run("select 1/0")))
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
			fixture.MustFail(t, c, "22012", Q("begin; "+write("first")+"; commit; begin; set local fencepost.resource = 'b'; savepoint s; select 1/0"+more))
			fixture.MustPassEach(t, c, "rollback to s", write("second"))
			if r := show(t, c, "resource"); r != "b" {
				t.Errorf("behind a text that ends with %q, the transaction's resource is %s, want b", more, r)
			}
			fixture.MustPassEach(t, c, "commit")
		}

		fixture.MustPassEach(t, c, "begin", "set local fencepost.resource = 'b'")
		fixture.MustFail(t, c, "22012", Batch(Run(write("second")), Run("commit"), Run("begin"), Run("savepoint s"), Run("select 1/0")))
		fixture.MustPassEach(t, c, "rollback to s", write("first"))
		if r := show(t, c, "resource"); r != "r" {
			t.Errorf("behind a batch, the transaction's resource is %s, want r", r)
		}
		fixture.MustPassEach(t, c, "commit")
		if s.Rows("first") != 3 || s.Rows("second") != 3 {
			t.Errorf("%d and %d rows, want 3 of each", s.Rows("first"), s.Rows("second"))
		}
	})
}
