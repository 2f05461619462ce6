package several

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestATransactionChooses: SET LOCAL in a block has this transaction checked for another resource,
// and the next one for that of the startup, however the messages come.
func TestATransactionChooses(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		c := chooser(s, "b") // it does not lead r
		const set = "set local fencepost.resource = 'b'"
		for name, messages := range map[string][][]byte{
			"one by one":         {q("begin"), q(set), q(write("one by one")), q("commit")},
			"one text":           {q("begin; " + set + "; " + write("one text") + "; commit")},
			"two texts":          {q("begin"), q(set + "; " + write("two texts") + "; commit")},
			"extended":           {cat(run("begin"), sync_()), cat(run(set), sync_()), cat(run(write("extended")), sync_()), cat(run("commit"), sync_())},
			"one batch":          {cat(run("begin"), run(set), run(write("one batch")), run("commit"), sync_())},
			"behind a setting":   {q("begin isolation level repeatable read"), q("set local work_mem = '1MB'"), q("show work_mem"), q(set), q(write("behind a setting")), q("commit")},
			"twice":              {q("begin"), q("set local fencepost.resource = 'r'"), q(set), q(write("twice")), q("commit")},
			"behind a savepoint": {q("begin"), q(set), q("savepoint s"), q(write("undone")), q("rollback to s"), q(write("behind a savepoint")), q("commit")},
			"chained":            {q("begin"), q("commit and chain"), q(set), q(write("chained")), q("commit")},
			"lock table":         {q("begin"), q(set), q("lock table t in row exclusive mode"), q(write("lock table")), q("commit")},
			"do in a block":      {q("begin"), q(set), q("do $$begin insert into t (v) values ('do in a block'); end$$"), q("commit")},
			"shows its text":     {q("begin"), q(set), q("insert into t (v) select 'shows its text' where current_query() not like '%fence' || 'post%'"), q("commit")},
		} {
			for _, m := range messages {
				fixture.MustPass(t, c, m)
			}
			if n := s.Rows(name); n != 1 {
				t.Errorf("%s: %d rows, want 1", name, n)
			}
			fixture.MustFail(t, c, "ZF002", q(write("outside")))
			fixture.MustFail(t, c, "ZF002", run(write("outside")), sync_())
			fixture.MustFail(t, c, "ZF002", q("begin; "+write("outside")))
			fixture.MustPass(t, c, q("rollback"))
		}
		if s.Rows("outside") != 0 || s.Rows("undone") != 0 {
			t.Error("what was refused or undone has rows")
		}
		if n := s.Elector.Members(s.DB, "b", "w"); n != 2 { // and the one of chooser
			t.Errorf("%d connections belong to the candidacy, want 2", n)
		}
	})
}

// TestPipelinesOfQueriesThatChoose: the messages of a transaction come at once, and those of the next
// with them.
func TestPipelinesOfQueriesThatChoose(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		c := chooser(s, "b")
		const set = "set local fencepost.resource = 'b'"
		for _, p := range []struct {
			name     string
			messages []byte
			replies  int
		}{
			{"queries", cat(q("begin"), q(set), q(write("in")), q("commit"), q(write("out"))), 5},
			{"batches", cat(run("begin"), sync_(), run(set), sync_(), run(write("in")), sync_(), run("commit"), sync_(), run(write("out")), sync_()), 5},
			{"one batch and another", cat(run("begin"), run(set), run(write("in")), run("commit"), sync_(), run(write("out")), sync_()), 2},
			{"a text and another", cat(q("begin; " + set + "; " + write("in") + "; commit; " + write("out"))), 1},
			{"a batch that goes on", cat(run("begin"), run(set), run(write("in")), run("commit"), run(write("out")), sync_()), 1},
		} {
			in := s.Rows("in")
			r := fixture.ReadReply(c, p.replies)
			c.Send(p.messages)
			all, ended := r.Wait()
			if ended || wiretest.ErrorOf(all) != "ZF002" || s.Rows("out") != 0 || s.Rows("in") != in+1 {
				t.Errorf("%s: %v, ended %v; %d rows in, %d out", p.name, all, ended, s.Rows("in")-in, s.Rows("out"))
			}
		}
	})
}

// TestTheSessionChooses: SET outside a block counts until RESET, RESET ALL or DISCARD ALL, unless it
// is undone with its batch.
func TestTheSessionChooses(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		c := chooser(s, "b")
		for _, reset := range []string{"reset fencepost.resource", "set fencepost.resource to default", "set fencepost.resource = ''",
			"set fencepost.resource = 'r'", "reset all", "discard all"} {
			for _, how := range []func(sql string) []byte{q, func(sql string) []byte { return cat(run(sql), sync_()) }} {
				fixture.MustFail(t, c, "ZF002", how(write("before")))
				fixture.MustPass(t, c, how("set fencepost.resource = 'b'"))
				before := s.Rows("chosen")
				fixture.MustPass(t, c, how(write("chosen")))
				fixture.MustPass(t, c, q("begin; "+write("chosen")+"; commit"))
				fixture.MustPass(t, c, q("begin"))
				fixture.MustPass(t, c, q("set local fencepost.resource = 'r'"))
				fixture.MustFail(t, c, "ZF002", how(write("before")))
				fixture.MustPass(t, c, q("rollback"))
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
			"an error in its batch":                     {cat(run("set fencepost.resource = 'b'"), run("select 1/0"), sync_(), run(write("undone")), sync_()), 2},
			"a write and an error":                      {cat(run("set fencepost.resource = 'b'"), run(write("undone")), run("select 1/0"), sync_(), q(write("undone"))), 2},
			"two values, which Postgres takes for none": {cat(q("set fencepost.resource = 'b', 'c'"), q(write("undone"))), 2},
		} {
			r := fixture.ReadReply(c, p.replies)
			c.Send(p.messages)
			if all, ended := r.Wait(); ended || wiretest.ErrorOf(all[len(all)-2:]) != "ZF002" {
				t.Errorf("%s: %v, ended %v; want ZF002 at the end", name, all, ended)
			}
			if shown := show(t, c, "resource"); shown != "r" {
				t.Errorf("%s: the session's resource is %s, want r", name, shown)
			}
		}
		if s.Rows("before") != 0 || s.Rows("undone") != 0 {
			t.Error("what was refused or undone has rows")
		}
		// What comes in the same batch is checked for the choice.
		fixture.MustPass(t, c, run("set fencepost.resource = 'b'"), run(write("at once")), sync_())
		fixture.MustPass(t, c, cat(run(write("at once")), sync_()))
		if n := s.Rows("at once"); n != 2 {
			t.Errorf("%d rows, want 2", n)
		}
	})
}

// TestChoicesThatAreRefused: each in its place, and it changes nothing.
func TestChoicesThatAreRefused(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		c := chooser(s, "b", "r")
		const local, all = "set local fencepost.resource = 'b'", "set fencepost.resource = 'b'"
		for _, r := range []struct {
			name, state string
			before      string // in a block
			messages    []byte
		}{
			{"outside a block", "ZF005", "", q(local)},
			{"outside a block, in a batch", "ZF005", "", cat(run(local), sync_())},
			{"in a text without a block", "ZF005", "", q(local + "; " + write("refused"))},
			{"behind a write", "ZF005", "begin; " + write("refused"), q(local)},
			{"behind a read", "ZF005", "begin; select * from t", q(local)},
			{"behind a Parse", "ZF005", "begin", cat(parse("", write("refused")), run(local), sync_())},
			{"in a savepoint", "ZF005", "begin; savepoint s", q(local)},
			{"behind a savepoint", "ZF005", "begin; savepoint s; rollback to s", q(local)},
			{"behind a savepoint that is released", "ZF005", "begin; savepoint s; release s", q(local)},
			{"in a text behind a write", "ZF005", "", q("begin; " + write("refused") + "; " + local)},
			{"of the session, in a block", "ZF005", "begin", q(all)},
			{"of the session, in a text", "ZF005", "", q(all + "; " + write("refused"))},
			{"of the session, behind a write of the batch", "ZF005", "", cat(run(write("refused")), run(all), sync_())},
			{"an empty name", "22023", "begin", q("set local fencepost.resource = 'b,'")},
			{"no name for a transaction", "22023", "begin", q("set local fencepost.resource to default")},
			{"a control character", "22023", "", q(`set fencepost.resource = E'b\x01'`)},
			{"the epoch, while another is chosen", "ZF005", "begin; " + local, q("set fencepost.epoch = 3")},
			{"the token, while another is chosen", "ZF005", "begin; " + local, q("set fencepost.token = '3'")},
			{"reset all in a block that has chosen", "ZF005", "begin; " + local, q("reset all")},
			{"what needs the registry", "ZF005", "begin; " + local, q("this cannot be read")},
		} {
			if r.before != "" {
				fixture.MustPass(t, c, q(r.before))
			}
			fixture.MustFail(t, c, r.state, r.messages)
			fixture.MustPass(t, c, q("rollback"))
			if shown := show(t, c, "resource"); shown != "r" {
				t.Errorf("%s: the session's resource is %s, want r", r.name, shown)
			}
		}
		unread := " -- " + strings.Repeat("x", 1<<20)
		for _, sql := range []string{local, all, `set local "fencepost" . "RESOURCE" to b`, "set fencepost/**/.resource to b", "set fencepost.-- \nresource to b"} {
			fixture.MustFail(t, c, "ZF005", q("begin; "+sql+"; "+write("refused")+"; commit"+unread))
		}
		fixture.MustPass(t, c, q("begin; insert into t (v) values ('fencepost.role, resource'); rollback"+unread))
		fixture.MustPass(t, c, q(all))
		for _, sql := range []string{"vacuum t", "call late()", "do $$begin end$$", "create index concurrently i on t (v)", "this cannot be read"} {
			fixture.MustFail(t, c, "ZF005", q(sql))
			fixture.MustFail(t, c, "ZF005", run(sql), sync_())
		}
		fixture.MustFail(t, c, "ZF005", q("begin; reset all"))
		fixture.MustPass(t, c, q("rollback"))
		if n := s.Rows("refused"); n != 0 {
			t.Errorf("%d rows, want 0", n)
		}
	})
}
