package several

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestSafetyATransactionOfTwo: each of its resources is taken over in turn, and with that nothing of
// the transaction is written. The error names the resource.
func TestSafetyATransactionOfTwo(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		const both = "set local fencepost.resource = 'b, a'"
		for _, lost := range []string{"a", "b"} {
			for name, w := range map[string]struct {
				before   string // while it leads both
				messages []byte
				replies  int
			}{
				"one by one":            {"begin; " + both, Q(write("stale")), 1},
				"one text":              {"", Q("begin; " + both + "; " + write("stale") + "; commit"), 1},
				"one batch":             {"", Batch(Run("begin"), Run(both), Run(write("stale")), Run("commit")), 1},
				"the session":           {"set fencepost.resource = 'a, b'", Q(write("stale")), 1},
				"a function that hides": {"begin; " + both, Q("select wr('stale')"), 1},
				"prepared before":       {"begin; " + both + "; prepare s as " + write("stale") + "; commit; begin; " + both, Q("execute s"), 1},
				"copy":                  {"begin; " + both, Cat(Q("copy t (v) from stdin")), 1},
			} {
				c := chooserAs(s, another(s), "a", "b", "r")
				// The client knows both, and the transaction begins under what it knows.
				fixture.MustPass(t, c, Q("begin; "+both+"; "+write("kept")+"; commit"))
				if w.before != "" {
					fixture.MustPass(t, c, Q(w.before))
				}
				s.SupersedeOn(lost)
				all, ended := fixture.AskAll(c, w.replies, w.messages)
				if !ended {
					t.Fatalf("%s taken over, %s: the connection goes on: %v", lost, name, all)
				}
				f := fixture.FatalError(t, all)
				if f['C'] != fencing.StateSuperseded || !names(f, lost) {
					t.Errorf("%s taken over, %s: FATAL %s, %s", lost, name, f['C'], f['M'])
				}
			}
		}
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d rows were written for a resource that was taken over", n)
		}
		for _, r := range s.Audited(t, s.DB) {
			if r.Resource != "a" && r.Resource != "b" || r.Kind != fencing.KindStale || r.Held == 0 || r.Announced != r.Held {
				t.Errorf("audited: %+v", r)
			}
		}
	})
}

// TestSafetyAnUndoneChoice: a SET LOCAL ends with its block, and a SET with the batch in which it
// fails. What comes then is checked for the resource of the startup, which was taken over.
func TestSafetyAnUndoneChoice(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		const set = "set local fencepost.resource = 'b'"
		for name, w := range map[string]struct {
			messages []byte
			replies  int
		}{
			"rolled back":             {Cat(Q("begin"), Q(set), Q(write("in")), Q("rollback"), Q(write("stale"))), 4},
			"rolled back and chained": {Cat(Q("begin"), Q(set), Q("rollback and chain"), Q(write("stale"))), 3},
			"failed":                  {Cat(Q("begin"), Q(set), Q("select 1/0"), Q("commit"), Q(write("stale"))), 4},
			"one text":                {Cat(Q("begin; " + set + "; " + write("in") + "; commit; " + write("stale"))), 0},
			"one batch":               {Batch(Run("begin"), Run(set), Run(write("in")), Run("commit"), Run(write("stale"))), 0},
			"a SET that fails":        {Cat(Q("set fencepost.resource = 'b', 'c'"), Q(write("stale"))), 1},
			"discard all":             {Cat(Q("set fencepost.resource = 'b'"), Q("discard all"), Q(write("stale"))), 2},
		} {
			c := chooserAs(s, another(s), "b", "r")
			s.SupersedeOn("r")
			all, ended := fixture.AskAll(c, w.replies+1, w.messages)
			if !ended || fixture.FatalError(t, all)['C'] != fencing.StateSuperseded {
				t.Errorf("%s: %v, ended %v; want FATAL ZF001", name, all, ended)
			}
		}
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d rows were written for a resource that was taken over", n)
		}
	})
}

// TestSafetyAChoiceAfterACommit: the transaction that chooses begins in the batch or text that ends
// the one before, and what comes next may have been anything. It is fenced for what was chosen.
func TestSafetyAChoiceAfterACommit(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		const set = "set local fencepost.resource = 'b'"
		s.SupersedeOn("b")
		for name, w := range map[string]struct {
			messages []byte
			replies  int
			state    string
		}{
			"a batch":              {Batch(Run("commit"), Run("begin"), Run(set), Exec("h", 1), Run(write("stale")), Run("commit")), 1, "ZF002"},
			"a batch, and another": {Cat(Run("commit"), Run("begin"), Run(set), Sync(), Shut('P', "none"), Exec("h", 1), Run(write("stale")), Run("commit"), Sync()), 2, "ZF002"},
			"a text":               {Cat(Q("commit; begin; "+set), Shut('P', "none"), Exec("h", 1), Run(write("stale")), Run("commit"), Sync()), 2, "ZF002"},
			"a text, and a text":   {Cat(Q("commit; begin; "+set), Q(write("stale")+"; commit")), 2, "ZF002"},
			"queries":              {Cat(Q("commit"), Q("begin"), Q(set), Q(write("stale")), Q("commit")), 5, "ZF002"},
			"a savepoint":          {Batch(Run("commit"), Run("begin"), Run(set), Run("savepoint s"), Run("rollback to s"), Run(write("stale")), Run("commit")), 1, "ZF002"},
		} {
			c := chooserAs(s, another(s), "r")
			fixture.MustPass(t, c, Q("begin; declare h cursor with hold for select generate_series(1, 9); commit; begin"))
			if all, ended := fixture.AskAll(c, w.replies, w.messages); ended || wiretest.ErrorOf(all) != w.state {
				t.Errorf("%s: %v, ended %v; want %s", name, all, ended, w.state)
			}
		}
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d rows were written for a resource that the worker does not lead", n)
		}
	})
}

// TestSafetyAGrantWaitsForAChoice: an open transaction that was checked for two resources keeps the
// grants of both waiting, until they end it. A later commit fails.
func TestSafetyAGrantWaitsForAChoice(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		for _, lost := range []string{"a", "b"} {
			c := chooserAs(s, another(s), "a", "b")
			fixture.MustPass(t, c, Q("begin"))
			fixture.MustPass(t, c, Q("set local fencepost.resource = 'a,b'"))
			fixture.MustPass(t, c, Q(write("late")))
			before := s.Number("select count(*) from t")
			s.SupersedeOn(lost) // which returns when the transaction is over
			if n := s.Number("select count(*) from t"); n != before {
				t.Errorf("%d rows more when the grant has returned", n-before)
			}
			f := fixture.MustEnd(t, c, fencing.StateSuperseded, Q("commit"))
			if !names(f, lost) {
				t.Errorf("the client is told %s, want that it names %s", f['M'], lost)
			}
		}
		if n := s.Rows("late"); n != 0 {
			t.Errorf("%d rows were committed behind a grant", n)
		}
	})
}

// TestSafetyAResourceIsAnnounced: the first time that a connection names a resource, it knows the
// epoch as at startup: not if the worker was superseded before. Each resource is announced by itself,
// and a transaction keeps what was announced when it began.
func TestSafetyAResourceIsAnnounced(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		const set = "begin; set local fencepost.resource = "
		// w has led b and c, and leads them again.
		for _, resource := range []string{"b", "c"} {
			s.GrantOn(resource, "w")
			s.SupersedeOn(resource)
			if !s.Candidacy(s.DB, resource, "w").CheckSuperseded(t.Context()) {
				t.Fatal("w does not learn that it is superseded")
			}
			s.Connect("w", "fencepost.resource", resource)
			s.GrantOn(resource, "w")
		}
		c := chooser(s, "d")
		fixture.MustFail(t, c, fencing.StateStartOver, Q(set+"'b'; "+write("untold")))
		fixture.MustPass(t, c, Q("rollback"))
		fixture.MustPass(t, c, Q(set+"'b'; "+write("told")+"; commit"))
		fixture.MustFail(t, c, fencing.StateStartOver, Q(set+"'b, c'; "+write("untold"))) // c was not announced
		fixture.MustPass(t, c, Q("rollback"))
		fixture.MustPass(t, c, Q(set+"'b, c, d'; "+write("told")+"; commit"))

		// A follower reads, and becomes the leader.
		s.SupersedeOn("e")
		fixture.MustPass(t, c, Q(set+"'e'"))
		fixture.MustPass(t, c, Q("select * from t"))
		s.GrantOn("e", "w")
		fixture.MustFail(t, c, "ZF003", Q(write("untold")))
		fixture.MustPass(t, c, Q("rollback"))
		fixture.MustPass(t, c, Q(set+"'e'; "+write("told")+"; commit"))

		// SHOW announces, from the next transaction on.
		s.SupersedeOn("f")
		fixture.MustPass(t, c, Q("set fencepost.resource = 'f'"))
		s.GrantOn("f", "w")
		fixture.MustPass(t, c, Q("begin"))
		if role := show(t, c, "role"); role != "leader" {
			t.Errorf("the role is %s, want leader", role)
		}
		fixture.MustFail(t, c, "ZF003", Q(write("untold")))
		fixture.MustPass(t, c, Q("rollback"))
		fixture.MustPass(t, c, Q(write("told")))
		if s.Rows("untold") != 0 || s.Rows("told") != 4 {
			t.Errorf("%d rows untold and %d told, want 0 and 4", s.Rows("untold"), s.Rows("told"))
		}
	})
}

// TestSafetyAChoiceComesTooLate: the first statement of the transaction, which was checked for the
// resource of the startup, is not answered when the choice is sent.
func TestSafetyAChoiceComesTooLate(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		const set = "set local fencepost.resource = 'b'"
		for name, c := range map[string]struct{ before, first string }{
			"an insert":       {"begin", write("first")},
			"a read":          {"begin", "select 1"},
			"a savepoint":     {"begin", "savepoint s"},
			"a chained block": {"begin; commit and chain", "select 1"},
		} {
			for carrier, choice := range map[string][]byte{"simple": Q(set), "extended": Batch(Run(set))} {
				worker := another(s)
				conn := chooserAs(s, worker, "r", "b")
				fixture.MustPass(t, conn, Q("begin; set local fencepost.resource = 'b'; commit")) // it is told
				s.SupersedeOn("b")
				conn.Send(Cat(Q(c.before), Q(c.first), choice))
				for range 2 {
					conn.Until('Z')
				}
				if all := conn.Until('Z'); wiretest.ErrorOf(all) != "ZF005" {
					t.Errorf("%s, %s: the choice gets %v, want ZF005", name, carrier, all)
				}
				if _, ended := fixture.Ask(conn, Q(write("stale"))); !ended {
					fixture.Ask(conn, Q("commit"))
					fixture.Ask(conn, Q("begin; "+set+"; "+write("stale")+"; commit")) // in time
				}
			}
		}
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d stale rows", n)
		}
	})
}

// TestSafetyAChoiceAfterARead: a setting that may undo read-only mode, or a fast path call, does not
// make it come in time. What the worker has read was decided before it led the other resource.
func TestSafetyAChoiceAfterARead(t *testing.T) {
	t.Parallel()
	backendPID := wiretest.Msg('F', binary.BigEndian.AppendUint32(nil, 2026), make([]byte, 6))
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		for name, c := range map[string]struct {
			leads  bool
			before [][]byte
		}{
			"a follower's read":      {false, [][]byte{Q("select count(*) from t"), Q("set work_mem = '5MB'")}},
			"a follower's RELEASE":   {false, [][]byte{Q("savepoint s"), Q("select count(*) from t"), Q("release s")}},
			"messages of a follower": {false, [][]byte{Batch(Run("select count(*) from t")), Batch(Run("reset work_mem"))}},
			"a leader's call":        {true, [][]byte{backendPID}},
			"a leader's read":        {true, [][]byte{Q("select count(*) from t"), Q("reset work_mem")}},
		} {
			worker := another(s)
			if s.SupersedeOn("r"); c.leads {
				s.GrantOn("r", worker)
			}
			conn := s.Connect(worker)
			fixture.MustPass(t, conn, Q("begin"))
			for _, message := range c.before {
				fixture.MustPass(t, conn, message)
			}
			s.GrantOn("b", worker)
			all, _ := fixture.Ask(conn, Q("set local fencepost.resource = 'b'"))
			if wiretest.ErrorOf(all) != "ZF005" {
				t.Errorf("%s: the choice gets %v, want ZF005", name, all)
			}
			fixture.Ask(conn, Q(write("stale")))
			fixture.Ask(conn, Q("commit"))
		}
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d rows of transactions that had read before", n)
		}
	})
}

// TestSafetyOnlySETChooses: where fencepost.resource was changed behind Fencepost's back, a transaction is fenced for what
// the client has chosen, or for the resource of the startup, all the same.
func TestSafetyOnlySETChooses(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Exec("create function chooses(r text) returns text language sql as $$select set_config('fencepost.resource', r, false)$$")
		for _, set := range []string{"set fencepost.resource = 'b'", "reset fencepost.resource"} {
			c := chooserAs(s, another(s), "b", "c", "r")
			fixture.MustPassEach(t, c, set, "select chooses('c')")
			s.SupersedeOn("c")
			fixture.MustPass(t, c, Q(write("chosen")))
			fixture.MustPass(t, c, Batch(Run(write("chosen"))))
			s.SupersedeOn("b")
			s.SupersedeOn("r")
			if all, _ := fixture.Ask(c, Q(write("stale"))); wiretest.ErrorOf(all) != "ZF001" {
				t.Errorf("%s: a superseded worker gets %v", set, all)
			}
		}
		if s.Rows("chosen") != 4 || s.Rows("stale") != 0 {
			t.Errorf("%d rows and %d stale ones, want 4 and 0", s.Rows("chosen"), s.Rows("stale"))
		}
	})
}

// TestAChosenResourceIsTakenOver: a session that has chosen for itself ends when one of its resources
// is taken over, and for no other. What it has named before ends it when it is used again.
func TestAChosenResourceIsTakenOver(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.SharedMajor(t, 18))
	worker := another(s)
	takeOver := func(resource string) {
		s.SupersedeOn(resource)
		s.Candidacy(s.DB, resource, worker).CheckSuperseded(t.Context())
	}
	c := chooserAs(s, worker, "r", "a", "b")
	fixture.MustPass(t, c, Q("set fencepost.resource = 'a'"))
	fixture.MustPass(t, c, Q("set fencepost.resource = 'b'"))
	takeOver("r")
	takeOver("a")
	fixture.MustPass(t, c, Q(write("goes on")))
	fixture.MustPass(t, c, Q("begin; set local fencepost.resource = 'a'"))
	fixture.MustPass(t, c, Q("select * from t")) // as a follower
	f := fixture.MustEnd(t, c, fencing.StateSuperseded, Q(write("stale")))
	if !names(f, "a") {
		t.Errorf("the client is told %s, want that it names a", f['M'])
	}

	worker = another(s)
	c = chooserAs(s, worker, "r", "b")
	fixture.MustPass(t, c, Q("set fencepost.resource = 'b'"))
	takeOver("b")
	f = fixture.MustEnd(t, c, fencing.StateSuperseded, Q("select 1"))
	if !names(f, "b") {
		t.Errorf("the client is told %s, want that it names b", f['M'])
	}

	worker = another(s)
	c = chooserAs(s, worker, "r", "b")
	fixture.MustPass(t, c, Q("set fencepost.resource = 'b'"))
	takeOver("r")
	fixture.MustPass(t, c, Q(write("goes on")))
	f = fixture.MustEnd(t, c, fencing.StateSuperseded, Q("reset fencepost.resource"))
	if !names(f, "r") {
		t.Errorf("the client is told %s, want that it names r", f['M'])
	}
	if s.Rows("stale") != 0 || s.Rows("goes on") != 2 {
		t.Errorf("%d stale rows and %d others, want 0 and 2", s.Rows("stale"), s.Rows("goes on"))
	}
	fixture.Eventually(t, "the session leaves its candidacy", func() bool { return s.Elector.Members(s.DB, "b", worker) == 0 })
}

// names reports whether an error is about that resource.
func names(fields map[byte]string, resource string) bool {
	return strings.Contains(strings.ReplaceAll(fields['M'], `"`, ""), "resource "+resource+":")
}
