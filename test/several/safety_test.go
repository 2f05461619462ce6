package several

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// supersede grants another worker an epoch of a resource. Worker w is not told.
func supersede(c *fixture.Cluster, resource string) {
	c.T.Helper()
	grant(c, resource, fmt.Sprintf("successor%d", c.Elector.Next()))
}

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
				"one by one":            {"begin; " + both, q(write("stale")), 1},
				"extended":              {"begin; " + both, cat(run(write("stale")), sync_()), 1},
				"one text":              {"", q("begin; " + both + "; " + write("stale") + "; commit"), 1},
				"one batch":             {"", cat(run("begin"), run(both), run(write("stale")), run("commit"), sync_()), 1},
				"queries":               {"", cat(q("begin"), q(both), q(write("stale")), q("commit")), 3},
				"the session":           {"set fencepost.resource = 'a, b'", q(write("stale")), 1},
				"a function that hides": {"begin; " + both, q("select wr('stale')"), 1},
				"prepared before":       {"begin; " + both + "; prepare s as " + write("stale") + "; commit; begin; " + both, q("execute s"), 1},
				"behind a savepoint":    {"begin; " + both + "; savepoint s; " + write("undone") + "; rollback to s; commit; begin; " + both, q(write("stale")), 1},
				"copy":                  {"begin; " + both, cat(q("copy t (v) from stdin")), 1},
				"behind another":        {"begin; set local fencepost.resource = 'r'; " + write("kept") + "; commit; begin; " + both, q(write("stale")), 1},
			} {
				c := chooserAs(s, another(s), "a", "b", "r")
				// The client knows both, and the transaction begins under what it knows.
				fixture.MustPass(t, c, q("begin; "+both+"; "+write("kept")+"; commit"))
				if w.before != "" {
					fixture.MustPass(t, c, q(w.before))
				}
				supersede(s, lost)
				r := fixture.ReadReply(c, w.replies)
				c.Send(w.messages)
				all, ended := r.Wait()
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
			"rolled back":               {cat(q("begin"), q(set), q(write("in")), q("rollback"), q(write("stale"))), 4},
			"rolled back, nothing done": {cat(q("begin"), q(set), q("rollback"), q(write("stale"))), 3},
			"rolled back and chained":   {cat(q("begin"), q(set), q("rollback and chain"), q(write("stale"))), 3},
			"failed":                    {cat(q("begin"), q(set), q("select 1/0"), q("commit"), q(write("stale"))), 4},
			"committed and chained":     {cat(q("begin"), q(set), q(write("in")), q("commit and chain"), q(write("stale"))), 4},
			"one text":                  {cat(q("begin; " + set + "; " + write("in") + "; commit; " + write("stale"))), 0},
			"one batch":                 {cat(run("begin"), run(set), run(write("in")), run("commit"), run(write("stale")), sync_()), 0},
			"a SET that fails later":    {cat(run("set fencepost.resource = 'b'"), run("select 1/0"), sync_(), q(write("stale"))), 1},
			"a SET that fails":          {cat(q("set fencepost.resource = 'b', 'c'"), q(write("stale"))), 1},
			"discard all":               {cat(q("set fencepost.resource = 'b'"), q("discard all"), q(write("stale"))), 2},
		} {
			c := chooserAs(s, another(s), "b", "r")
			supersede(s, "r")
			all, ended := fixture.ReadReply(c, w.replies+1), false
			c.Send(w.messages)
			got, ended := all.Wait()
			if !ended || fixture.FatalError(t, got)['C'] != fencing.StateSuperseded {
				t.Errorf("%s: %v, ended %v; want FATAL ZF001", name, got, ended)
			}
		}
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d rows were written for a resource that was taken over", n)
		}
	})
}

// TestSafetyAChoiceBehindACommit: the transaction that chooses begins in the batch or text that ends
// the one before, and what comes next may have been anything. It is checked for what was chosen.
func TestSafetyAChoiceBehindACommit(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		const set = "set local fencepost.resource = 'b'"
		supersede(s, "b")
		for name, w := range map[string]struct {
			messages []byte
			replies  int
		}{
			"a batch":              {cat(run("commit"), run("begin"), run(set), exec("h", 1), run(write("stale")), run("commit"), sync_()), 1},
			"a batch, and another": {cat(run("commit"), run("begin"), run(set), sync_(), shut("none"), exec("h", 1), run(write("stale")), run("commit"), sync_()), 2},
			"a text":               {cat(q("commit; begin; "+set), shut("none"), exec("h", 1), run(write("stale")), run("commit"), sync_()), 2},
			"a text, and a text":   {cat(q("commit; begin; "+set), q(write("stale")+"; commit")), 2},
			"queries":              {cat(q("commit"), q("begin"), q(set), q(write("stale")), q("commit")), 5},
			"a savepoint":          {cat(run("commit"), run("begin"), run(set), run("savepoint s"), run("rollback to s"), run(write("stale")), run("commit"), sync_()), 1},
		} {
			c := chooserAs(s, another(s), "r")
			fixture.MustPass(t, c, q("begin; declare h cursor with hold for select generate_series(1, 9); commit; begin"))
			r := fixture.ReadReply(c, w.replies)
			c.Send(w.messages)
			if all, ended := r.Wait(); ended || wiretest.ErrorOf(all) != "ZF002" {
				t.Errorf("%s: %v, ended %v; want ZF002", name, all, ended)
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
			fixture.MustPass(t, c, q("begin"))
			fixture.MustPass(t, c, q("set local fencepost.resource = 'a,b'"))
			fixture.MustPass(t, c, q(write("late")))
			before := s.Number("select count(*) from t")
			supersede(s, lost) // which returns when the transaction is over
			if n := s.Number("select count(*) from t"); n != before {
				t.Errorf("%d rows more when the grant has returned", n-before)
			}
			f := fixture.MustEnd(t, c, fencing.StateSuperseded, q("commit"))
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
			grant(s, resource, "w")
			supersede(s, resource)
			if !s.Candidacy(s.DB, resource, "w").Advanced(t.Context()) {
				t.Fatal("w does not learn that it is superseded")
			}
			s.Connect("w", "fencepost.resource", resource)
			grant(s, resource, "w")
		}
		c := chooser(s, "d")
		fixture.MustFail(t, c, fencing.StateStartOver, q(set+"'b'; "+write("untold")))
		fixture.MustPass(t, c, q("rollback"))
		fixture.MustPass(t, c, q(set+"'b'; "+write("told")+"; commit"))
		fixture.MustFail(t, c, fencing.StateStartOver, q(set+"'b, c'; "+write("untold"))) // c was not announced
		fixture.MustPass(t, c, q("rollback"))
		fixture.MustPass(t, c, q(set+"'b, c, d'; "+write("told")+"; commit"))

		// A follower reads, and becomes the leader.
		supersede(s, "e")
		fixture.MustPass(t, c, q(set+"'e'"))
		fixture.MustPass(t, c, q("select * from t"))
		grant(s, "e", "w")
		fixture.MustFail(t, c, "ZF003", q(write("untold")))
		fixture.MustPass(t, c, q("rollback"))
		fixture.MustPass(t, c, q(set+"'e'; "+write("told")+"; commit"))

		// SHOW announces, from the next transaction on.
		supersede(s, "f")
		fixture.MustPass(t, c, q("set fencepost.resource = 'f'"))
		grant(s, "f", "w")
		fixture.MustPass(t, c, q("begin"))
		if role := show(t, c, "role"); role != "leader" {
			t.Errorf("the role is %s, want leader", role)
		}
		fixture.MustFail(t, c, "ZF003", q(write("untold")))
		fixture.MustPass(t, c, q("rollback"))
		fixture.MustPass(t, c, q(write("told")))
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
			"a PREPARE":       {"begin", "prepare p as select 1"},
			"a cursor":        {"begin", "declare c cursor for select 1"},
			"a chained block": {"begin; commit and chain", "select 1"},
		} {
			for carrier, choice := range map[string][]byte{"simple": q(set), "extended": cat(run(set), sync_())} {
				worker := another(s)
				conn := chooserAs(s, worker, "r", "b")
				fixture.MustPass(t, conn, q("begin; set local fencepost.resource = 'b'; commit")) // it is told
				supersede(s, "b")
				conn.Send(cat(q(c.before), q(c.first), choice))
				for range 2 {
					conn.Until('Z')
				}
				if all := conn.Until('Z'); wiretest.ErrorOf(all) != "ZF005" {
					t.Errorf("%s, %s: the choice gets %v, want ZF005", name, carrier, all)
				}
				if _, ended := fixture.Ask(conn, q(write("stale"))); !ended {
					fixture.Ask(conn, q("commit"))
					fixture.Ask(conn, q("begin; "+set+"; "+write("stale")+"; commit")) // in time
				}
			}
		}
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d stale rows", n)
		}
	})
}

// TestSafetyTheServerDisagrees: a transaction whose fencepost.resource was changed behind
// Fencepost's back is refused.
func TestSafetyTheServerDisagrees(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Exec("create function chooses(r text) returns text language sql as $$select set_config('fencepost.resource', r, false)$$")
		c := chooser(s, "b", "c")
		fixture.MustPass(t, c, q("set fencepost.resource = 'b'"))
		fixture.MustPass(t, c, q("select chooses('c')"))
		fixture.MustFail(t, c, "ZF005", q(write("refused")))
		fixture.MustFail(t, c, "ZF005", run(write("refused")), sync_())
		fixture.MustPass(t, c, q("set fencepost.resource = 'c'"))
		fixture.MustPass(t, c, q(write("chosen")))
		if s.Rows("refused") != 0 || s.Rows("chosen") != 1 {
			t.Errorf("%d rows refused and %d chosen, want 0 and 1", s.Rows("refused"), s.Rows("chosen"))
		}
	})
}

// TestAChosenResourceIsTakenOver: a session that has chosen for itself ends when one of its resources
// is taken over, and for no other. What it has named before ends it when it is used again.
func TestAChosenResourceIsTakenOver(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		worker := another(s)
		takeOver := func(resource string) {
			supersede(s, resource)
			s.Candidacy(s.DB, resource, worker).Advanced(t.Context())
		}
		c := chooserAs(s, worker, "r", "a", "b")
		fixture.MustPass(t, c, q("set fencepost.resource = 'a'"))
		fixture.MustPass(t, c, q("set fencepost.resource = 'b'"))
		takeOver("r")
		takeOver("a")
		fixture.MustPass(t, c, q(write("goes on")))
		fixture.MustPass(t, c, q("begin; set local fencepost.resource = 'a'"))
		fixture.MustPass(t, c, q("select * from t")) // as a follower
		f := fixture.MustEnd(t, c, fencing.StateSuperseded, q(write("stale")))
		if !names(f, "a") {
			t.Errorf("the client is told %s, want that it names a", f['M'])
		}

		worker = another(s)
		c = chooserAs(s, worker, "r", "b")
		fixture.MustPass(t, c, q("set fencepost.resource = 'b'"))
		takeOver("b")
		f = fixture.MustEnd(t, c, fencing.StateSuperseded, q("select 1"))
		if !names(f, "b") {
			t.Errorf("the client is told %s, want that it names b", f['M'])
		}

		worker = another(s)
		c = chooserAs(s, worker, "r", "b")
		fixture.MustPass(t, c, q("set fencepost.resource = 'b'"))
		takeOver("r")
		fixture.MustPass(t, c, q(write("goes on")))
		f = fixture.MustEnd(t, c, fencing.StateSuperseded, q("reset fencepost.resource"))
		if !names(f, "r") {
			t.Errorf("the client is told %s, want that it names r", f['M'])
		}
		if s.Rows("stale") != 0 || s.Rows("goes on") != 2 {
			t.Errorf("%d stale rows and %d others, want 0 and 2", s.Rows("stale"), s.Rows("goes on"))
		}
		fixture.Eventually(t, "the session leaves its candidacy", func() bool { return s.Elector.Members(s.DB, "b", worker) == 1 })
	})
}

// TestAChoiceThatIsUndoneEndsNoSession: a SET that was undone with its batch does not decide by whose
// takeover the session ends.
func TestAChoiceThatIsUndoneEndsNoSession(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		takeOver := func(resource, worker string) {
			supersede(s, resource)
			s.Candidacy(s.DB, resource, worker).Advanced(t.Context())
		}
		undone := func(set string) []byte { return cat(run(set), run("select 1/0"), sync_()) }

		worker := another(s)
		c := chooserAs(s, worker, "r", "b")
		backend := fixture.FirstValue(t, fixture.MustPass(t, c, q("select pg_backend_pid()")))
		fixture.MustFail(t, c, "22012", undone("set fencepost.resource = 'b'"))
		takeOver("b", worker)
		fixture.MustPass(t, c, q(write("goes on")))
		takeOver("r", worker)
		fixture.Eventually(t, "the session's end", func() bool {
			return s.Number("select count(*) from pg_stat_activity where pid = "+backend) == 0
		})
		if f := fixture.MustEnd(t, c, fencing.StateSuperseded, q("select 1")); !names(f, "r") {
			t.Errorf("the client is told %s, want that it names r", f['M'])
		}

		worker = another(s)
		c = chooserAs(s, worker, "r", "b")
		fixture.MustPass(t, c, q("set fencepost.resource = 'b'"))
		fixture.MustFail(t, c, "22012", undone("reset fencepost.resource"))
		takeOver("r", worker)
		fixture.MustPass(t, c, q(write("goes on")))
		takeOver("b", worker)
		if f := fixture.MustEnd(t, c, fencing.StateSuperseded, q("select 1")); !names(f, "b") {
			t.Errorf("the client is told %s, want that it names b", f['M'])
		}
		if s.Rows("goes on") != 2 {
			t.Errorf("%d rows, want 2", s.Rows("goes on"))
		}
	})
}

// names reports whether an error is about that resource.
func names(fields map[byte]string, resource string) bool {
	return strings.Contains(strings.ReplaceAll(fields['M'], `"`, ""), "resource "+resource+":")
}

// TestSafetyNothingFollowsAChoiceOfTheSession: what stands behind it in its batch could undo it on
// the server, or keep it there although its batch fails. Writes would then be checked for another
// resource than the one that the server shows.
func TestSafetyNothingFollowsAChoiceOfTheSession(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		supersede(s, "b")
		const set, reset = "set fencepost.resource = 'b'", "reset fencepost.resource"
		for name, c := range map[string]struct {
			before   string
			messages []byte
			stays    string // what the server has for fencepost.resource
		}{
			"a COMMIT and a failure": {"", cat(run(set), run("commit"), run("select 1/0"), sync_()), "r"},
			"a ROLLBACK":             {"", cat(run(set), run("rollback"), sync_()), "r"},
			"a BEGIN":                {"", cat(run(set), run("begin"), sync_()), "r"},
			"a Query":                {"", cat(run(set), q("rollback")), "r"},
			"a RESET and a ROLLBACK": {set, cat(run(reset), run("rollback"), sync_()), "b"},
			"a RESET and a BEGIN":    {set, cat(run(reset), run("begin"), sync_()), "b"},
		} {
			conn := chooserAs(s, another(s), "r")
			if c.before != "" {
				fixture.MustPass(t, conn, q(c.before))
			}
			all, ended := fixture.Ask(conn, c.messages)
			if ended || wiretest.ErrorOf(all) != "ZF005" {
				t.Errorf("%s: %v, ended %v; want ZF005", name, all, ended)
			}
			value := fixture.FirstValue(t, fixture.MustPass(t, conn, q("select coalesce(nullif(current_setting('fencepost.resource', true), ''), 'r')")))
			if value != c.stays || show(t, conn, "resource") != c.stays {
				t.Errorf("%s: the server has %s, want %s", name, value, c.stays)
			}
			want := ""
			if c.stays == "b" {
				want = "ZF002"
			}
			if got, _ := fixture.Ask(conn, q(write("behind"))); wiretest.ErrorOf(got) != want {
				t.Errorf("%s: a write behind it gets %v, want %q", name, got, want)
			}
		}
	})
}

// TestNothingChoosesUnseen: Fencepost does not know which statement runs, or not what it says,
// so that it would check what follows for another resource than the one that the server shows.
func TestNothingChoosesUnseen(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		supersede(s, "b")
		const set, local = "set fencepost.resource = 'b'", "set local fencepost.resource = 'b'"
		typed := wiretest.Msg('P', []byte("\x00"+set+"\x00\x00\x01\x00\x00\x00\x17"))
		for name, c := range map[string]struct {
			state    string
			before   [][]byte
			messages []byte
		}{
			"a name that is not ASCII":      {"ZF005", [][]byte{cat(parse("é", set), sync_())}, cat(bind("", "é"), exec("", 0), sync_())},
			"a name that may be another's":  {"ZF005", [][]byte{cat(parse("s", set), sync_()), q("do $$ begin perform 'deallocate'; end $$")}, cat(bind("", "s"), exec("", 0), sync_())},
			"a SET of one transaction":      {"ZF005", [][]byte{cat(parse("é", local), sync_()), q("begin")}, cat(bind("", "é"), exec("", 0), sync_())},
			"a text that is long":           {"ZF005", [][]byte{cat(parse("s", local+strings.Repeat(" ", 1<<10)), sync_()), q("begin")}, cat(bind("", "s"), exec("", 0), sync_())},
			"a text with a backslash":       {"ZF005", [][]byte{cat(parse("s", `set fencepost.resource = E'\x62'`), sync_()), q("select 1")}, cat(bind("", "s"), exec("", 0), sync_())},
			"EXECUTE of a SET of the token": {"ZF005", [][]byte{cat(parse("s", "set fencepost.token = '3'"), sync_())}, q("execute s")},
			"EXECUTE":                       {"ZF005", [][]byte{cat(parse("s", set), sync_())}, q("execute s")},
			"EXECUTE in a text":             {"ZF005", [][]byte{cat(parse("s", local), sync_())}, q("begin; execute s; " + write("unknown"))},
			"EXECUTE, as messages":          {"ZF005", [][]byte{cat(parse("s", local), sync_()), q("begin")}, cat(run("execute s"), sync_())},
			"EXECUTE of another's name":     {"ZF005", [][]byte{cat(parse("é", set), sync_())}, q("execute é")},
			"a statement with a parameter":  {"ZF005", nil, cat(typed, bind("", "", "7"), exec("", 0), sync_())},
			"FROM CURRENT":                  {"22023", [][]byte{q("select set_config('fencepost.resource', 'b', false)")}, q("set fencepost.resource from current")},
			"FROM CURRENT, as messages":     {"22023", nil, cat(run("set fencepost.resource from current"), sync_())},
			"FROM CURRENT of a transaction": {"22023", [][]byte{q("begin")}, q("set local fencepost.resource from current")},
		} {
			conn := chooserAs(s, another(s), "r")
			for _, messages := range c.before {
				fixture.MustPass(t, conn, messages)
			}
			t.Log(name)
			fixture.MustFail(t, conn, c.state, c.messages)
		}

		// Names that are not known are only refused if one of them may choose.
		conn := chooserAs(s, another(s), "r")
		fixture.MustPass(t, conn, cat(parse("é", write("unknown")), parse("s", set), sync_()))
		fixture.MustPass(t, conn, cat(bind("", "é"), exec("", 0), sync_()))
		fixture.MustPass(t, conn, q("prepare p as "+write("unknown")+"; execute p"))
		fixture.MustPass(t, conn, cat(parse("ö", set), sync_()))
		fixture.MustFail(t, conn, "ZF005", cat(bind("", "é"), exec("", 0), sync_()))
		fixture.MustPass(t, conn, cat(run(write("known")), sync_()))
		if s.Rows("unknown") != 2 || s.Rows("known") != 1 {
			t.Errorf("%d rows by unknown statements and %d by a known one, want 2 and 1", s.Rows("unknown"), s.Rows("known"))
		}
	})
}
