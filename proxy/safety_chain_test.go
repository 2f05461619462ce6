package proxy_test

import "testing"

// TestReadOnlyModeIsNotHandedOnToALeader: a worker reads in a transaction while it does not
// lead, and chains the next ones to it. Postgres hands on the read-only mode that Fencepost
// has set. A leader can write all the same, by any way, and a mode that the client has chosen
// itself stays.
func TestReadOnlyModeIsNotHandedOnToALeader(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *stage) {
		for name, write := range map[string][]byte{
			"by a Query":         q(mine),
			"by a text":          q("select 1; " + mine),
			"by messages":        cat(run(mine), sync_()),
			"chained in a batch": cat(run("commit and chain"), run(mine), sync_()),
			"chained in a text":  q("commit and chain; " + mine),
		} {
			for _, end := range []string{"rollback and chain", "commit and chain"} {
				worker := name + " after " + end
				c := s.connect(worker)
				mustPass(t, c, q("begin"))
				mustPass(t, c, q("select * from c"))
				s.grantTo(worker)
				mustPass(t, c, q(end))
				mustFail(t, c, "ZF003", q(mine))
				mustPass(t, c, q("rollback and chain"))
				mustPass(t, c, write)
				mustPass(t, c, q("commit"))
			}
		}
		follower := s.connect("follower")
		mustPass(t, follower, q("begin"))
		mustPass(t, follower, q("select * from c"))
		for _, again := range []string{"", "select * from c"} { // as the first statement, and after a read
			mustPass(t, follower, q("rollback and chain"))
			mustPass(t, follower, q(again))
			mustFail(t, follower, "ZF002", q(mine))
		}
		c := s.connect("chooses")
		mustPass(t, c, q("begin read only"))
		mustPass(t, c, q("select * from c"))
		s.grantTo("chooses")
		mustPass(t, c, q("rollback and chain"))
		mustFail(t, c, "ZF003", q(mine))
		mustPass(t, c, q("rollback and chain"))
		mustFail(t, c, "25006", q(mine))
	})
}
