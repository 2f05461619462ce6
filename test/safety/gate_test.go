package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// outsiders are connections that may not write: each returns a new one. A worker
// that was superseded does not know it, nor does its proxy.
func outsiders(s *fixture.Cluster) map[string]func() *wiretest.Conn {
	return map[string]func() *wiretest.Conn{
		"follower": func() *wiretest.Conn { return s.Connect("follower") },
		"without a resource": func() *wiretest.Conn {
			c, _ := wiretest.Connect(s.T, s.Addr, "user", pgtest.App, "database", s.DB)
			return c
		},
	}
}

// asOutsiders runs a test on both servers for each kind of outsider.
func asOutsiders(t *testing.T, try func(t *testing.T, s *fixture.Cluster, c *wiretest.Conn)) {
	for name, server := range fixture.Servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, kind := range []string{"follower", "without a resource"} {
				t.Run(strings.ReplaceAll(kind, " ", "_"), func(t *testing.T) {
					s := fixture.NewCluster(t, server(t))
					s.Leader("leader")
					c := outsiders(s)[kind]()
					try(t, s, c)
					_ = c.Close() // or a lock of its would hold the next question
					if n := s.Rows("stale"); n != 0 {
						t.Errorf("%d rows were written", n)
					}
				})
			}
		})
	}
}

// TestSafetyCursorInATextTooLongToRead: a cursor WITH HOLD runs its query at the
// end of its transaction, so its DECLARE is more than a statement that does
// nothing outside a block, however long its text is.
func TestSafetyCursorInATextTooLongToRead(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	asOutsiders(t, func(t *testing.T, s *fixture.Cluster, c *wiretest.Conn) {
		s.Exec("grant all on t to public")
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
	t.Parallel()
	const give = `create function give() returns void language plpgsql as $$begin
		execute 'deallocate s'; execute 'prepare s as insert into t (v) values (''stale'')'; end$$`
	for name, server := range fixture.Servers {
		for _, kind := range []string{"follower", "without a resource"} {
			for _, text := range []string{"begin", "set a.b = 'x'", "show all", "commit", ""} {
				t.Run(strings.Join([]string{name, kind, text}, "/"), func(t *testing.T) {
					t.Parallel()
					s := fixture.NewCluster(t, server(t))
					s.Exec(give)
					old := s.Leader("leader")
					c := old
					if kind != "superseded" {
						c = outsiders(s)[kind]()
					}
					for _, piece := range [][]byte{Batch(Parse("s", text)), Q("select give()")} {
						if all, ended := fixture.Ask(c, piece); ended {
							t.Fatalf("%q: the connection ended: %v", piece, all)
						}
					}
					if kind == "superseded" {
						s.Supersede()
					}
					fixture.Ask(c, Batch(wiretest.Describe('S', "s"), Bind("", "s"), Exec("", 0)))
					fixture.Ask(c, Q("commit"))
					_ = c.Close()
					if n := s.Rows("stale"); n != 0 {
						t.Errorf("%d rows were written", n)
					}
				})
			}
		}
	}
}
