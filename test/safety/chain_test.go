package safety

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
)

// TestReadOnlyModeIsNotHandedOnToALeader: a worker reads in a transaction while it does not
// lead, and chains the next ones to it. Postgres hands on the read-only mode that Fencepost
// has set. A leader can write all the same, by any way, and a mode that the client has chosen
// itself stays.
func TestReadOnlyModeIsNotHandedOnToALeader(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		for name, write := range map[string][]byte{
			"by a Query":         q(mine),
			"by a text":          q("select 1; " + mine),
			"by messages":        cat(run(mine), sync_()),
			"chained in a batch": cat(run("commit and chain"), run(mine), sync_()),
			"chained in a text":  q("commit and chain; " + mine),
		} {
			for end, begin := range map[string]string{"rollback and chain": "begin", "commit and chain": "begin read write"} {
				worker := name + " after " + end
				c := s.Connect(worker)
				fixture.MustPass(t, c, q(begin))
				fixture.MustPass(t, c, q("select * from c"))
				s.Grant(worker)
				fixture.MustPass(t, c, q(end))
				fixture.MustFail(t, c, "ZF003", q(mine))
				fixture.MustPass(t, c, q("rollback and chain"))
				fixture.MustPass(t, c, write)
				fixture.MustPass(t, c, q("commit"))
			}
		}
		follower := s.Connect("follower")
		fixture.MustPass(t, follower, q("begin"))
		fixture.MustPass(t, follower, q("select * from c"))
		for _, again := range []string{"", "select * from c"} { // as the first statement, and after a read
			fixture.MustPass(t, follower, q("rollback and chain"))
			fixture.MustPass(t, follower, q(again))
			fixture.MustFail(t, follower, "ZF002", q(mine))
		}
		for name, choice := range map[string][]string{
			"by BEGIN":      {"begin read only"},
			"by the mode":   {"begin; set transaction read only"},
			"by a default":  {"set default_transaction_read_only to on", "begin"},
			"in all blocks": {"set session characteristics as transaction read only", "begin"},
		} {
			c := s.Connect("chooses " + name)
			for _, sql := range choice {
				fixture.MustPass(t, c, q(sql))
			}
			fixture.MustPass(t, c, q("select * from c"))
			s.Grant("chooses " + name)
			fixture.MustPass(t, c, q("rollback and chain"))
			fixture.MustFail(t, c, "ZF003", q(mine))
			fixture.MustPass(t, c, q("rollback and chain"))
			fixture.MustFail(t, c, "25006", q(mine))
		}
	})
}
