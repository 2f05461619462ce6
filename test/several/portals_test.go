package several

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// ways are those in which SQL gives the name of portal p1 to another one.
func ways(s *fixture.Cluster) map[string][]byte {
	s.Exec("create function swap() returns void language plpgsql as $$declare c refcursor := 'p1'; begin close c; open c for select 1; end$$")
	return map[string][]byte{
		"CLOSE and DECLARE": Cat(Run("close p1"), Run("declare p1 cursor with hold for select 1")),
		"a function":        Run("select swap()"),
	}
}

// replaced binds a statement to portal p1, gives its name away, and executes what has the name then, in
// the same batch as what follows.
func replaced(sql string, way []byte, more ...[]byte) []byte {
	return Batch(Parse("c1", sql), Bind("p1", "c1"), way, Exec("p1", 0), Cat(more...))
}

// TestSafetyABeginThatWasReplaced: what follows stands in no block, where a CALL under a choice commits
// inside, on 14 to 17, and goes on behind the check.
func TestSafetyABeginThatWasReplaced(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Exec("create procedure goes_on() language plpgsql as $$begin insert into t (v) values ('first'); commit; insert into t (v) values ('stale'); end$$")
		for name, way := range ways(s) {
			c := chooserAs(s, another(s), "r", "b")
			fixture.MustPass(t, c, Q("set fencepost.resource = 'b'"))
			all, _ := fixture.Ask(c, replaced("begin", way, Run("call goes_on()")))
			if got := wiretest.ErrorOf(all); got != "ZF005" {
				t.Errorf("%s: a CALL that no registration covers is answered by %q: %v", name, got, all)
			}
		}
		if n := s.Rows("first") + s.Rows("stale"); n != 0 {
			t.Errorf("%d rows of a procedure that commits inside", n)
		}
	})
}

// TestSafetyACommitThatWasReplaced ends no transaction, so the one that a follower has begun goes on, with
// a choice and without.
func TestSafetyACommitThatWasReplaced(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		undo := Run("reset transaction_read_only") // 14 and 15 let it pass
		if s.Number("select current_setting('server_version_num')::int") >= 160000 {
			undo = nil
		}
		s.SupersedeOn("b")
		for name, way := range ways(s) {
			for _, resource := range []string{"r", "b"} {
				s.SupersedeOn(resource)
				worker := another(s)
				c := s.Connect(worker)
				fixture.MustPassEach(t, c, "set fencepost.resource = '"+resource+"'", "begin", "select count(*) from t")
				s.GrantOn(resource, worker)
				fixture.MustPass(t, c, Q("show fencepost.role"))
				all, _ := fixture.Ask(c, replaced("commit", way, undo, Run(write("stale")), Run("commit")))
				if got := wiretest.ErrorOf(all); got != "ZF003" {
					t.Errorf("%s, %s: a write in a transaction that a follower began is answered by %q: %v", name, resource, got, all)
				}
			}
		}
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d rows of a transaction that a follower began", n)
		}
	})
}

// TestAChoiceBehindACommitThatWasReplaced comes too late for the transaction, which has read before.
func TestAChoiceBehindACommitThatWasReplaced(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.SupersedeOn("r")
		c := chooserAs(s, another(s), "b")
		fixture.MustPassEach(t, c, "begin", "select count(*) from t")
		way := ways(s)["CLOSE and DECLARE"] // on 14 and 15, a follower calls no function
		fixture.MustFail(t, c, "ZF005", replaced("commit", way, Run("begin"), Run("set work_mem = '5MB'"), Run("set local fencepost.resource = 'b'")))
	})
}
