package safety

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestRefusedPrepareTransactionEndsItsBlock, as one that Postgres refuses does:
// drivers send no ROLLBACK behind it.
func TestRefusedPrepareTransactionEndsItsBlock(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		fixture.LeaderConn(t, p, db)
		c, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "w")
		ends := func(all []wiretest.Message, state string, status byte) {
			t.Helper()
			last := all[len(all)-1]
			if wiretest.ErrorOf(all) != state || last.Type != 'Z' || last.Body[0] != status {
				t.Errorf("%v, want %q and status %c", all, state, status)
			}
		}
		ends(c.Exec("create table p (id int unique deferrable initially deferred)"), "", 'I')
		for range 2 { // what a refusal leaves is no obstacle to the next
			for name, prepare := range map[string][]byte{
				"simple":          Q(" PREPARE\n transaction 'x'"),
				"after a comment": Q("-- x\nprepare/* */transaction 'x'"),
				"extended":        Batch(Run("prepare transaction 'x'")),
			} {
				ends(c.Exec("begin; insert into p values (1)"), "", 'T')
				c.Send(prepare)
				ends(c.Until('Z'), "ZF005", 'I')
				if n := fixture.FirstValue(t, c.Exec("select count(*) from p")); n != "0" {
					t.Errorf("%s: %s rows are left", name, n)
				}
				ends(c.Exec("begin; insert into p values (1), (1)"), "", 'T')
				c.Send(prepare)
				ends(c.Until('Z'), "23505", 'I')
				ends(c.Exec("begin"), "", 'T')
				c.Send(Cat(prepare, Q("insert into p values (2)"))) // in a transaction of its own
				ends(c.Until('Z'), "ZF005", 'I')
				ends(c.Until('Z'), "", 'I')
				ends(c.Exec("delete from p"), "", 'I')
				c.Send(prepare)
				ends(c.Until('Z'), "ZF005", 'I')
				ends(c.Exec("begin; select 1/0"), "22012", 'E')
				c.Send(prepare)
				ends(c.Until('Z'), "", 'I')
			}
		}
		if n := fixture.FirstValue(t, c.Exec("select count(*) from pg_prepared_xacts where database = current_database()")); n != "0" {
			t.Errorf("%s transactions are prepared", n)
		}
	})
}

// TestWordsInADoPrepareNothing: Postgres runs no PREPARE TRANSACTION within a function,
// so a DO with these words in its text is not refused.
func TestWordsInADoPrepareNothing(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		fixture.LeaderConn(t, p, db)
		c, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "w")
		for text, state := range map[string]string{
			"do $$begin /* no prepare transaction here */ end$$":    "",
			"do $$begin execute 'prepare transaction ''x'''; end$$": "0A000",
		} {
			for name, message := range map[string][]byte{
				"a Query": Q(text), "messages": Batch(Run(text)), "among others": Q("select 1; " + text),
			} {
				c.Send(message)
				if got := wiretest.ErrorOf(c.Until('Z')); got != state {
					t.Errorf("%s as %s: %q, want %q", text, name, got, state)
				}
			}
		}
	})
}

// TestNoTransactionIsPreparedLater: Postgres accepts the Parse of a PREPARE TRANSACTION in a block that has failed.
// An EXECUTE of SQL could then run it in any later transaction: it would outlive the grant that it should hold off.
func TestNoTransactionIsPreparedLater(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Leader("w")
		for name, params := range map[string][]string{
			"leader":   {"fencepost.resource", "r", "fencepost.worker", "w"},
			"follower": {"fencepost.resource", "r", "fencepost.worker", "f"},
			"unfenced": nil,
		} {
			c, _ := wiretest.Connect(t, s.Addr, append([]string{"user", pgtest.App, "database", s.DB}, params...)...)
			fixture.MustPass(t, c, Q("begin"))
			fixture.Ask(c, Q("select 1/0"))
			all, ended := fixture.Ask(c, Batch(Parse("p", "prepare transaction '"+name+"'")))
			if ended || wiretest.ErrorOf(all) == "" {
				t.Errorf("%s: a PREPARE TRANSACTION was prepared: %v", name, all)
			}
			fixture.MustPass(t, c, Q("rollback"))
			fixture.MustPass(t, c, Q("begin"))
			fixture.Ask(c, Q("execute p"))
		}
		if n := s.Number("select count(*) from pg_prepared_xacts where database = current_database()"); n != 0 {
			t.Errorf("%d transactions are prepared", n)
		}
	})
}
