package protocol

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
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
