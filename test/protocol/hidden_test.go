package protocol

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestProtocolHiddenDeallocateInFrontOfABatch: where the checks are gone, and a
// Query ends the batch in front of which that is found out, the server skips the
// Query too. The session goes on.
func TestProtocolHiddenDeallocateInFrontOfABatch(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		c := fixture.LeaderConn(t, p, db)
		fixture.MustExec(t, c, "create table t (id int); create function da() returns int language plpgsql as $$begin execute 'deallocate all'; return 1; end$$")
		fixture.MustExec(t, c, "select da()")
		c.Send(Parse("", "select 1"), Q("select 2"))
		m, err := c.Next()
		if err != nil {
			t.Fatalf("the session ends: %v", err)
		}
		if m.Type == 'E' { // on 18 the batch's answers come first, and then it is too late
			c.Send(Sync())
		}
		c.Until('Z')
		fixture.MustPass(t, c, Q("insert into t values (1)"))
		fixture.MustPass(t, c, Batch(Run("insert into t values (2)")))
		if n := fixture.FirstValue(t, c.Exec("select count(*) from t")); n != "2" {
			t.Errorf("%s rows, want 2", n)
		}
	})
}

// TestProtocolNameThatSQLGaveAway: a leader's Bind runs the statement that has the name
// on the server, also where SQL has freed the name and prepared another under it.
func TestProtocolNameThatSQLGaveAway(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		c := fixture.LeaderConn(t, p, db)
		fixture.MustExec(t, c, "create table t (id int)")
		fixture.MustPass(t, c, Batch(Parse("s", "begin")))
		fixture.MustExec(t, c, "do $$begin execute 'deal' || 'locate s'; end$$")
		fixture.MustExec(t, c, "prepare s as insert into t values (1)")
		fixture.MustPass(t, c, Batch(Bind("", "s"), Exec("", 0)))
		if n := fixture.FirstValue(t, c.Exec("select count(*) from t")); n != "1" {
			t.Errorf("%s rows, want 1", n)
		}
	})
}
