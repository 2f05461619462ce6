package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// asOutsiders runs a test on each server as a follower, and without a resource. The
// function give gives the name of the prepared statement s to one that writes.
func asOutsiders(t *testing.T, try func(t *testing.T, s *fixture.Cluster, c *wiretest.Conn)) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Exec(`grant all on t to public;
			create function give() returns void language plpgsql as $$begin
				execute 'deallocate s'; execute 'prepare s as insert into t (v) values (''stale'')'; end$$`)
		s.Leader("leader")
		for kind, resource := range map[string][]string{"follower": {"fencepost.resource", "r", "fencepost.worker", "follower"}, "without a resource": nil} {
			t.Run(strings.ReplaceAll(kind, " ", "_"), func(t *testing.T) {
				c, _ := wiretest.Connect(t, s.Addr, append([]string{"user", pgtest.App, "database", s.DB}, resource...)...)
				try(t, s.With(t), c)
				_ = c.Close() // or a lock of its would hold the next question
				if n := s.Rows("stale"); n != 0 {
					t.Errorf("%d rows were written", n)
				}
			})
		}
	})
}

// TestSafetyCursorInATextTooLongToRead: a cursor WITH HOLD runs its query at the
// end of its transaction, so its DECLARE is more than a statement that does
// nothing outside a block, however long its text is.
func TestSafetyCursorInATextTooLongToRead(t *testing.T) {
	asOutsiders(t, func(t *testing.T, s *fixture.Cluster, c *wiretest.Conn) {
		padded := "declare k cursor with hold for select wr('stale') /*" + strings.Repeat("x", 300<<10) + "*/"
		if all, _ := fixture.Ask(c, Q(padded)); wiretest.ErrorOf(all) == "" {
			t.Errorf("it is not refused: %v", all)
		}
	})
}

// TestSafetyBlockThatWasFlushed: a block that was begun by messages and a Flush is
// one, although no ReadyForQuery has told of it. So nothing goes bare into it that
// would do nothing outside, and no read-only mode is set behind a savepoint.
func TestSafetyBlockThatWasFlushed(t *testing.T) {
	asOutsiders(t, func(t *testing.T, s *fixture.Cluster, c *wiretest.Conn) {
		c.Send(Run("begin"), wiretest.Flush())
		c.Until('C')
		for _, sql := range []string{"savepoint s", "select 1", "release s", "select wr('stale')", "commit"} {
			if _, ended := fixture.Ask(c, Q(sql)); ended {
				return
			}
		}
	})
}

// TestSafetyLockInABlockThatWasFlushed: nor does a LOCK TABLE, which no grant would
// see.
func TestSafetyLockInABlockThatWasFlushed(t *testing.T) {
	asOutsiders(t, func(t *testing.T, s *fixture.Cluster, c *wiretest.Conn) {
		c.Send(Run("begin"), wiretest.Flush())
		c.Until('C')
		fixture.Ask(c, Q("lock table t in access exclusive mode"))
		if n := s.Number("select count(*) from pg_locks where relation = 't'::regclass and mode = 'AccessExclusiveLock'"); n != 0 {
			t.Error("the table is locked")
		}
	})
}

// TestSafetyNameThatAFunctionGaveAway: a prepared statement that needs no check passes
// for its text, whatever statement a function has given its name to.
func TestSafetyNameThatAFunctionGaveAway(t *testing.T) {
	asOutsiders(t, func(t *testing.T, s *fixture.Cluster, c *wiretest.Conn) {
		for _, text := range []string{"begin", "set a.b = 'x'", "show all", "commit", ""} {
			for _, piece := range [][]byte{Q("deallocate all"), Batch(Parse("s", text)), Q("select give()")} {
				if all, ended := fixture.Ask(c, piece); ended {
					t.Fatalf("%q: the connection ended: %v", piece, all)
				}
			}
			fixture.Ask(c, Batch(wiretest.Describe('S', "s"), Bind("", "s"), Exec("", 0)))
			fixture.Ask(c, Q("commit"))
		}
	})
}
