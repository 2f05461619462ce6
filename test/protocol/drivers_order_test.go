package protocol

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestALeaderMayEndBatchesByQueries, as pgjdbc does with autosave or a fetch size, and bun and go-pg after they have closed
// a statement. Fencepost still knows whether the session is at rest: it answers SHOW, and the takeover ends the session at once.
func TestALeaderMayEndBatchesByQueries(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		c := s.Leader("w")
		for name, messages := range map[string][][]byte{
			"autosave":               {Cat(Parse("", "begin"), Bind("", ""), Exec("", 0), Q("savepoint a")), Q("commit")},
			"a portal is closed":     {Cat(Shut('P', "p"), Q("select 1"))},
			"a statement is closed":  {Cat(Shut('S', "s"), Flush()), Q("select 1")},
			"several":                {Cat(Shut('S', "s"), Q("select 2"), Shut('P', "p"), Q("select 4"), Sync())}, // an Execute would upset PostgreSQL 18, directly too
			"one that is not parsed": {Cat(Run("selec"), Q("select 1"), Q("select 2"), Sync())},
		} {
			for _, m := range messages {
				c.Send(m)
			}
			c.Send(Q("select 'the end of the messages'"))
			for end := false; !end; {
				for _, m := range c.Until('Z') {
					end = end || m.Type == 'D' && string(m.Body[6:]) == "the end of the messages"
				}
			}
			if role := fixture.FirstValue(t, fixture.MustPass(t, c, Q("show fencepost.role"))); role != "leader" {
				t.Errorf("%s: the role is %q", name, role)
			}
		}
		s.Supersede()
		fixture.MustEnd(t, c, "ZF001", Q("select 1"))
	})
}

// TestWhatAQueryLeavesOpen: PostgreSQL 18 leaves the implicit block of a batch open after a Query in place of its Sync. Nothing of
// Fencepost's own commits it.
func TestWhatAQueryLeavesOpen(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		leader := s.Leader("w")
		direct, _ := wiretest.Connect(t, pg.Addr(), "user", pgtest.App, "database", s.DB)
		left := Cat(Run("insert into t (v) values ('left')"), Q("select 6"))
		run := func(c *wiretest.Conn, messages ...[]byte) (rows int) {
			s.Exec("truncate t")
			for _, m := range messages {
				c.Send(m)
				c.Until('Z')
			}
			return s.Rows("left")
		}
		want := run(direct, left, Q("show work_mem"), Q("rollback"))
		if got := run(leader, left, Q("show fencepost.role"), Q("rollback")); got != want {
			t.Errorf("after SHOW and ROLLBACK, %d rows are left; want %d", got, want)
		}
		if got := run(leader, left, Q("set fencepost.resource = 'x'"), Q("rollback")); got != want {
			t.Errorf("after a SET that is refused and ROLLBACK, %d rows are left; want %d", got, want)
		}
		for _, first := range []string{"reset all", "set default_transaction_read_only = off", "select 1"} {
			follower := s.Connect("f")
			for _, m := range [][]byte{Cat(Run(first), Q("select 6")), Q("select 1"), Q("rollback"), Q("select 1")} {
				fixture.MustPass(t, follower, m)
			}
		}
	})
}
