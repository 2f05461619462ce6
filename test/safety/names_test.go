package safety

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestStatementsNamedOutsideASCII prepares and executes statements by such names, under the
// observer of the sessions, as a leader and as a follower.
func TestStatementsNamedOutsideASCII(t *testing.T) {
	t.Parallel()
	const prepare, execute = "prepare \"\u00e4\" as insert into t (v) values ('x')", "execute \"\u00e4\""
	extended := func(sql string) []byte { return Batch(wiretest.Run(sql)) }
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Leader("leader")
		for name, messages := range map[string][][]byte{
			"as Query":               {Q(prepare), Q(execute)},
			"in one text":            {Q(prepare + ";" + execute)},
			"in a block":             {Q("begin;" + prepare), Q(execute), Q("commit"), Q(execute)},
			"as extended messages":   {extended(prepare), extended(execute)},
			"first as Query":         {Q(prepare), extended(execute), Batch(Bind("", "\u00e4"), Exec("", 0))},
			"by a Parse":             {Batch(Parse("\u00e4", stale)), Q(execute), Batch(Bind("", "\u00e4"), Exec("", 0))},
			"beside a prepared read": {Batch(Parse("s", "select 1")), Q(prepare), Batch(Bind("", "s"), Exec("", 0)), Q(execute)},
			"beside a prepared end":  {Batch(Parse("zz", "begin")), Q(prepare), Q(execute), Q("deallocate \"\u00e4\"")},
		} {
			t.Run(name, func(t *testing.T) {
				leader, follower, before := s.Connect("leader"), s.Connect("follower"), s.Number("select count(*) from t")
				for _, message := range messages {
					fixture.MustPass(t, leader, message)
				}
				wrote := s.Number("select count(*) from t")
				for _, message := range messages {
					fixture.Ask(follower, message)
				}
				if after := s.Number("select count(*) from t"); wrote == before || after != wrote {
					t.Errorf("%d rows, %d after the leader, %d after the follower", before, wrote, after)
				}
			})
		}
	})
}
