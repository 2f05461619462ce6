package discard

import (
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestSafetyOnlyThoseWhoLedAreDiscarded: a worker that never led, that is not told, or whose lease
// is not confirmed, is refused as everywhere.
func TestSafetyOnlyThoseWhoLedAreDiscarded(t *testing.T) {
	t.Parallel()
	onServers(t, func(c *fixture.Cluster) {
		before := holds(c)
		follower := c.Connect("follower")
		refused := func(state string, pieces ...[]byte) {
			c.T.Helper()
			for _, piece := range pieces {
				fixture.MustFail(c.T, follower, state, piece)
			}
		}
		both := [][]byte{Q(insert), Batch(Run(insert)), Batch(Run("delete from c"))}
		refused("ZF002", both...) // nobody has led yet
		c.Supersede()
		refused("ZF002", both...)
		fixture.MustPass(c.T, follower, Q("begin"))
		refused("ZF002", Q(insert))
		refused("25P02", Q("select 1"))
		fixture.MustPass(c.T, follower, Q("rollback"))

		c.Supersede()
		c.Supersede()
		fixture.MustPass(c.T, follower, Q("set fencepost.epoch = 2"))
		refused("ZF002", both...) // it only claims that epoch

		untold := c.Connect("untold")
		c.Grant("untold")
		fixture.MustFail(c.T, untold, "ZF003", Batch(Run(insert)))
		if after := holds(c); after != before {
			c.T.Errorf("the database held\n%s\nand holds\n%s", before, after)
		}
		fixture.MustPass(c.T, untold, Q(insert))
	})
}

// TestALapsedLeaseIsNoReasonToDiscard: while the lease is not confirmed, writes are refused; they are discarded once
// the worker learns that another one was granted an epoch.
func TestALapsedLeaseIsNoReasonToDiscard(t *testing.T) {
	t.Parallel()
	since16(t, func(c *fixture.Cluster) {
		conn := c.Leader("w")
		led := c.Candidacy(c.DB, "r", "w")
		lapsed := *led.Status()
		lapsed.Role, lapsed.Lapsed = fencing.Follower, true
		led.SetStatus(&lapsed)
		before := holds(c)
		for _, piece := range [][]byte{Q(insert), Batch(Run(insert))} {
			fixture.MustFail(c.T, conn, "ZF002", piece)
		}
		c.Supersede()
		led.CheckSuperseded(c.T.Context())
		for _, piece := range [][]byte{Q(insert), Batch(Run(insert))} {
			if got := answers(fixture.MustPass(c.T, conn, piece)); !strings.Contains(got, "INSERT 0 0") {
				c.T.Errorf("%q: %s", piece, got)
			}
		}
		if after := holds(c); after != before {
			c.T.Errorf("the database held\n%s\nand holds\n%s", before, after)
		}
	})
}

// TestALockedViewHoldsUpNoSession: any role can keep all others from reading pg_prepared_statements. What a leader has
// prepared is asked for when its session is relayed no more.
func TestALockedViewHoldsUpNoSession(t *testing.T) {
	t.Parallel()
	c := discarding(t, pgtest.SharedMajor(t, 18))
	conn := c.Leader("w")
	fixture.MustPass(t, conn, Q("prepare p as select 1"))
	defer c.PG.LockAway(t, c.DB, "pg_prepared_statements")()
	began := time.Now()
	c.Supersede()
	fixture.MustPass(t, conn, Q("execute p"))
	if took := time.Since(began); took > 30*time.Second { // by then, the lock would still be there
		t.Errorf("the answer took %v", took)
	}
}
