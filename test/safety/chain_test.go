package safety

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestReadOnlyModeIsNotHandedOnToALeader: a worker reads in a transaction while it does not
// lead, and chains the next ones to it. Postgres hands on the read-only mode that Fencepost
// has set. A leader can write all the same, by any way, and a mode that the client has chosen
// itself stays.
func TestReadOnlyModeIsNotHandedOnToALeader(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		for name, write := range map[string][]byte{
			"by a Query":         Q(mine),
			"by a text":          Q("select 1; " + mine),
			"by messages":        Batch(Run(mine)),
			"chained in a batch": Batch(Run("commit and chain"), Run(mine)),
			"chained in a text":  Q("commit and chain; " + mine),
		} {
			for end, begin := range map[string]string{"rollback and chain": "begin", "commit and chain": "begin read write"} {
				worker := name + " after " + end
				c := s.Connect(worker)
				fixture.MustPass(t, c, Q(begin))
				fixture.MustPass(t, c, Q("select * from c"))
				s.Grant(worker)
				fixture.MustPass(t, c, Q(end))
				fixture.MustFail(t, c, "ZF003", Q(mine))
				fixture.MustPass(t, c, Q("rollback and chain"))
				fixture.MustPass(t, c, write)
				fixture.MustPass(t, c, Q("commit"))
			}
		}
		follower := s.Connect("follower")
		fixture.MustPass(t, follower, Q("begin"))
		fixture.MustPass(t, follower, Q("select * from c"))
		for _, again := range []string{"", "select * from c"} { // as the first statement, and after a read
			fixture.MustPass(t, follower, Q("rollback and chain"))
			fixture.MustPass(t, follower, Q(again))
			fixture.MustFail(t, follower, "ZF002", Q(mine))
		}
		for name, choice := range map[string][]string{
			"by BEGIN":      {"begin read only"},
			"by the mode":   {"begin; set transaction read only"},
			"by a default":  {"set default_transaction_read_only to on", "begin"},
			"in all blocks": {"set session characteristics as transaction read only", "begin"},
		} {
			c := s.Connect("chooses " + name)
			fixture.MustPassEach(t, c, choice...)
			fixture.MustPass(t, c, Q("select * from c"))
			s.Grant("chooses " + name)
			fixture.MustPass(t, c, Q("rollback and chain"))
			fixture.MustFail(t, c, "ZF003", Q(mine))
			fixture.MustPass(t, c, Q("rollback and chain"))
			fixture.MustFail(t, c, "25006", Q(mine))
		}
	})
}
