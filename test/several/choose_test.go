package several

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestATransactionChooses: SET LOCAL in a block has this transaction checked for another resource,
// and the next one for that of the startup, however the messages come.
func TestATransactionChooses(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.SharedMajor(t, 18))
	c := chooser(s, "b", "\u00e9") // it does not lead r
	const set = "set local fencepost.resource = 'b'"
	for name, messages := range map[string][][]byte{
		"one by one":         {Q("begin"), Q(set), Q(write("one by one")), Q("commit")},
		"one text":           {Q("begin; " + set + "; " + write("one text") + "; commit")},
		"extended":           {Batch(Run("begin")), Batch(Run(set)), Batch(Run(write("extended"))), Batch(Run("commit"))},
		"one batch":          {Batch(Run("begin"), Run(set), Run(write("one batch")), Run("commit"))},
		"behind a setting":   {Q("begin isolation level repeatable read"), Q("set local work_mem = '1MB'"), Q("show work_mem"), Q(set), Q(write("behind a setting")), Q("commit")},
		"twice":              {Q("begin"), Q("set local fencepost.resource = 'r'"), Q(set), Q(write("twice")), Q("commit")},
		"behind a savepoint": {Q("begin"), Q(set), Q("savepoint s"), Q(write("undone")), Q("rollback to s"), Q(write("behind a savepoint")), Q("commit")},
		"not ASCII":          {Q("begin"), Q("set local fencepost.resource = 'b\u00a0, \u00e9'"), Q(write("not ASCII")), Q("commit")},
		"shows its text":     {Q("begin"), Q(set), Q("insert into t (v) select 'shows its text' where current_query() not like '%fence' || 'post%'"), Q("commit")},
	} {
		for _, m := range messages {
			fixture.MustPass(t, c, m)
		}
		if n := s.Rows(name); n != 1 {
			t.Errorf("%s: %d rows, want 1", name, n)
		}
		fixture.MustFail(t, c, "ZF002", Q(write("outside")))
		fixture.MustFail(t, c, "ZF002", Run(write("outside")), Sync())
		fixture.MustFail(t, c, "ZF002", Q("begin; "+write("outside")))
		fixture.MustPass(t, c, Q("rollback"))
	}
	if s.Rows("outside") != 0 || s.Rows("undone") != 0 {
		t.Error("what was refused or undone has rows")
	}
	if n := s.Elector.Members(s.DB, "b", "w"); n != 1 {
		t.Errorf("%d connections belong to the candidacy, want 1", n)
	}
}

// TestTheSessionChooses: SET outside a block counts until RESET, RESET ALL or DISCARD ALL, unless it
// is undone with its batch.
func TestTheSessionChooses(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.SharedMajor(t, 18))
	c := chooser(s, "b")
	for _, reset := range []string{"reset fencepost.resource", "set fencepost.resource = ''", "reset all", "discard all"} {
		for _, how := range []func(sql string) []byte{Q, func(sql string) []byte { return Batch(Run(sql)) }} {
			fixture.MustFail(t, c, "ZF002", how(write("before")))
			fixture.MustPass(t, c, how("set fencepost.resource = 'b'"))
			before := s.Rows("chosen")
			fixture.MustPass(t, c, how(write("chosen")))
			fixture.MustPass(t, c, Q("begin; "+write("chosen")+"; commit"))
			fixture.MustPass(t, c, Q("begin"))
			fixture.MustPass(t, c, Q("set local fencepost.resource = 'r'"))
			fixture.MustFail(t, c, "ZF002", how(write("before")))
			fixture.MustPass(t, c, Q("rollback"))
			fixture.MustPass(t, c, how(write("chosen")))
			if n := s.Rows("chosen") - before; n != 3 {
				t.Errorf("%d rows, want 3", n)
			}
			if shown := show(t, c, "resource"); shown != "b" {
				t.Errorf("the session's resource is %s, want b", shown)
			}
			fixture.MustPass(t, c, how(reset))
			if shown := show(t, c, "resource"); shown != "r" {
				t.Errorf("after %s, the session's resource is %s, want r", reset, shown)
			}
		}
	}
	for name, p := range map[string]struct {
		messages []byte
		replies  int
	}{
		"an error in its batch":                     {Cat(Run("set fencepost.resource = 'b'"), Run("select 1/0"), Sync(), Run(write("undone")), Sync()), 2},
		"a write and an error":                      {Cat(Run("set fencepost.resource = 'b'"), Run(write("undone")), Run("select 1/0"), Sync(), Q(write("undone"))), 2},
		"DISCARD ALL in front of an error":          {Cat(Q("set fencepost.resource = 'b'"), Run("discard all"), Run("select 1/0"), Sync(), Q(write("undone"))), 3},
		"two values, which Postgres takes for none": {Cat(Q("set fencepost.resource = 'b', 'c'"), Q(write("undone"))), 2},
	} {
		if all, ended := fixture.AskAll(c, p.replies, p.messages); ended || wiretest.ErrorOf(all[len(all)-2:]) != "ZF002" {
			t.Errorf("%s: %v, ended %v; want ZF002 at the end", name, all, ended)
		}
		if shown := show(t, c, "resource"); shown != "r" {
			t.Errorf("%s: the session's resource is %s, want r", name, shown)
		}
	}
	if s.Rows("before") != 0 || s.Rows("undone") != 0 {
		t.Error("what was refused or undone has rows")
	}
	// What comes in the same batch or text may only read, also if the worker leads the resource of its startup.
	s.GrantOn("r", "w")
	fixture.MustPass(t, c, Q("show fencepost.role"))
	for _, sent := range [][]byte{
		Batch(Run("set fencepost.resource = 'b'"), Run(write("beside"))),
		Q("begin; set local fencepost.resource = 'b'; commit; " + write("beside")),
		Q(write("beside") + "; commit; begin; set local fencepost.resource = 'b'; commit"),
	} {
		fixture.MustFail(t, c, "ZF005", sent)
	}
	fixture.MustPass(t, c, Q(write("by itself")))
	if s.Rows("beside") != 0 || s.Rows("by itself") != 1 {
		t.Errorf("%d and %d rows, want 0 and 1", s.Rows("beside"), s.Rows("by itself"))
	}
}

// TestChoicesThatAreRefused: each in its place, and it changes nothing.
func TestChoicesThatAreRefused(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.SharedMajor(t, 18))
	c := chooser(s, "b", "r")
	const local, all = "set local fencepost.resource = 'b'", "set fencepost.resource = 'b'"
	for _, r := range []struct {
		name, state string
		before      string // in a block
		messages    []byte
	}{
		{"outside a block", "ZF005", "", Q(local)},
		{"outside a block, in a batch", "ZF005", "", Batch(Run(local))},
		{"in a text without a block", "ZF005", "", Q(local + "; " + write("refused"))},
		{"behind a write", "ZF005", "begin; " + write("refused"), Q(local)},
		{"behind a read", "ZF005", "begin; select * from t", Q(local)},
		{"behind a Parse", "ZF005", "begin", Batch(Parse("", write("refused")), Run(local))},
		{"in a savepoint", "ZF005", "begin; savepoint s", Q(local)},
		{"in a text behind a write", "ZF005", "", Q("begin; " + write("refused") + "; " + local)},
		{"of the session, in a block", "ZF005", "begin", Q(all)},
		{"of the session, in a text", "ZF005", "", Q(all + "; " + write("refused"))},
		{"of the session, behind a write of the batch", "ZF005", "", Batch(Run(write("refused")), Run(all))},
		{"an empty name", "22023", "begin", Q("set local fencepost.resource = 'b,'")},
		{"no name for a transaction", "22023", "begin", Q("set local fencepost.resource to default")},
		{"a control character", "22023", "", Q(`set fencepost.resource = E'b\x01'`)},
		{"the epoch, while another is chosen", "ZF005", "begin; " + local, Q("set fencepost.epoch = 3")},
		{"the token, in a block", "25001", "begin; " + local, Q("set fencepost.token = '3'")},
		{"a value that is long", "22023", "", Q("set fencepost.resource = 'b" + strings.Repeat(" ", fencing.MaxResources) + "'")},
		{"the current value", "22023", "", Q("set fencepost.resource from current")},
	} {
		if r.before != "" {
			fixture.MustPass(t, c, Q(r.before))
		}
		fixture.MustFail(t, c, r.state, r.messages)
		fixture.MustPass(t, c, Q("rollback"))
		if shown := show(t, c, "resource"); shown != "r" {
			t.Errorf("%s: the session's resource is %s, want r", r.name, shown)
		}
	}
	unread := " -- " + strings.Repeat("x", 1<<20)
	for _, sql := range []string{local, all, `set local "fencepost" . "RESOURCE" to b`, "set fencepost/**/.resource to b", "set fencepost.-- \nresource to b"} {
		fixture.MustFail(t, c, "ZF005", Q("begin; "+sql+"; "+write("refused")+"; commit"+unread))
	}
	// A prepared SET is seen when it is bound. What SQL EXECUTE runs is not.
	fixture.MustPass(t, c, Batch(Parse("s", all), Parse("l", local)))
	for _, sent := range [][]byte{Q("execute s"), Q("begin; execute l; " + write("refused")), Batch(Run("execute s"))} {
		fixture.MustFail(t, c, "ZF005", sent)
		fixture.MustPass(t, c, Q("rollback"))
	}
	fixture.MustPassEach(t, c, "prepare p as "+write("executed"), "execute p")
	fixture.MustPass(t, c, Batch(Bind("", "s"), Exec("", 0)))
	fixture.MustFail(t, c, "ZF005", Q("execute s"))
	if shown := show(t, c, "resource"); shown != "b" || s.Rows("executed") != 1 {
		t.Errorf("the session's resource is %s, want b; %d rows, want 1", shown, s.Rows("executed"))
	}
	if n := s.Rows("refused"); n != 0 {
		t.Errorf("%d rows, want 0", n)
	}
}
