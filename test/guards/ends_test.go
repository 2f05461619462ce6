package guards

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestSafetyACommitThatIsSkippedBeginsNothing: a transaction has begun, and has read, when its worker
// was a follower. A COMMIT that the server has skipped does not make it one of the leader.
func TestSafetyACommitThatIsSkippedBeginsNothing(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := newLeftToGuards(t, pg)
		for name, ends := range map[string][]byte{
			"a batch": Batch(Run("select 1/0"), Run("commit")),
			"a text":  Q("select 1/0; commit"),
		} {
			c := s.Connect(name)
			fixture.MustPassEach(t, c, "begin", "select count(*) from t", "insert into queue (v) values ('x')", "savepoint s")
			s.Candidacy(s.DB, "r", name).Grant()
			fixture.MustPassEach(t, c, "show fencepost.role")
			fixture.MustFail(t, c, "22012", ends)
			fixture.MustPass(t, c, Sync())
			fixture.MustPassEach(t, c, "rollback to s")
			fixture.MustFail(t, c, "ZF003", Q("insert into t (v) values ('as a follower')"))
		}
		if n := s.Rows("as a follower"); n != 0 {
			t.Errorf("%d rows were written in transactions of a follower", n)
		}
	})
}
