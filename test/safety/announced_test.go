package safety

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

const mine = "insert into t (v) values ('mine')"

// becomesLeader connects a follower, lets it read, and grants it an epoch.
func becomesLeader(s *fixture.Cluster, worker string) (*wiretest.Conn, int) {
	s.T.Helper()
	c := s.Connect(worker)
	fixture.MustPass(s.T, c, Q("select * from c"))
	return c, int(s.Candidacy(s.DB, "r", worker).Grant())
}

// TestSafetyAnUnannouncedEpochIsRefusedOnce: a follower read, became leader, and writes
// from what it read: refused by ZF003 with nothing done, and told by that.
func TestSafetyAnUnannouncedEpochIsRefusedOnce(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	for name, write := range map[string][]byte{
		"simple": Q(mine), "extended": Batch(Run(mine)), "in one text": Q("begin; " + mine + "; commit"),
		"call": Q("do $$begin insert into t (v) values ('mine'); end$$"), "pipeline": Batch(Run("select 1"), Run(mine), Run(mine)),
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			s := s.With(t)
			s.Exec("truncate t")
			c, _ := becomesLeader(s, "w "+name)
			fixture.MustFail(t, c, "ZF003", write)
			if s.Rows("mine") != 0 {
				t.Error("the refused write left something")
			}
			fixture.MustPass(t, c, Q("rollback"))
			fixture.MustPass(t, c, write)
			if s.Rows("mine") == 0 {
				t.Error("the second write is not there")
			}
		})
	}
}

// TestSafetyTwoWritesPipelined: both were written by one who did not know, so
// both are refused.
func TestSafetyTwoWritesPipelined(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	for name, write := range map[string][]byte{"simple": Q(mine), "extended": Batch(Run(mine))} {
		for _, segments := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s in %d", name, segments), func(t *testing.T) {
				s := s.With(t)
				s.Exec("truncate t")
				c, _ := becomesLeader(s, fmt.Sprintf("%s%d", name, segments))
				if segments == 1 {
					c.Send(write, write)
				} else { // the second begins before the first can have been answered
					c.Send(write, write[:3])
					c.Send(write[3:])
				}
				first, second := c.Until('Z'), c.Until('Z')
				if a, b := wiretest.ErrorOf(first), wiretest.ErrorOf(second); a != "ZF003" || b != "ZF003" || s.Rows("mine") != 0 {
					t.Errorf("answered by %q and %q, %d rows; want ZF003 twice and none", a, b, s.Rows("mine"))
				}
				fixture.MustPass(t, c, write)
			})
		}
	}
}

// TestSafetyTransactionOpenedBeforeTheGrant stays without the right to write,
// whatever is told inside it.
func TestSafetyTransactionOpenedBeforeTheGrant(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	for _, tell := range []string{"select 1", "show fencepost.role", "set fencepost.epoch = %d"} {
		t.Run(tell, func(t *testing.T) {
			s := s.With(t)
			s.Exec("truncate t")
			worker := "w " + tell
			c := s.Connect(worker)
			fixture.MustPass(t, c, Q("begin"))
			fixture.MustPass(t, c, Q("select * from c"))
			epoch := s.Candidacy(s.DB, "r", worker).Grant()
			fixture.MustPass(t, c, Q(strings.ReplaceAll(tell, "%d", fmt.Sprint(epoch))))
			fixture.MustFail(t, c, "ZF003", Q(mine))
			fixture.MustPass(t, c, Q("rollback"))
			fixture.MustPass(t, c, Q(mine))
			if s.Rows("mine") != 1 {
				t.Errorf("%d rows; want 1", s.Rows("mine"))
			}
		})
	}
}

// TestOnlyTheRightEpochIsAnnounced: an answer that the client has not waited for, and
// an epoch that is not the one, tell nothing.
func TestOnlyTheRightEpochIsAnnounced(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	for name, send := range map[string][]byte{
		"show and write in one segment":         Cat(Q("show fencepost.role"), Q(mine)),
		"show and write in one pipeline":        Batch(Run("show fencepost.role"), Run(mine)),
		"set and write in one segment":          Cat(Q("set fencepost.epoch = 1"), Q(mine)),
		"show and write in one text":            Q("show fencepost.role; " + mine),
		"show among others, then write at once": Cat(Run("show fencepost.role"), Sync(), Run(mine), Sync()),
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			s := s.With(t)
			c, _ := becomesLeader(s, "w"+name)
			c.Send(send)
			if all := c.Until('Z'); wiretest.ErrorOf(all) == "" && wiretest.ErrorOf(c.Until('Z')) != "ZF003" || s.Rows("mine") != 0 {
				t.Errorf("the write passed: %v, %d rows", all, s.Rows("mine"))
			}
		})
	}
	t.Run("a wrong epoch", func(t *testing.T) {
		c, epoch := becomesLeader(s, "wrong")
		for n, state := range map[int]string{epoch - 1: "ZF003", epoch + 1: "ZF004", 0: "ZF003"} {
			fixture.MustPass(t, c, Q(fmt.Sprintf("set fencepost.epoch = %d", n)))
			fixture.MustFail(t, c, state, Q(mine))
		}
		fixture.MustPass(t, c, Q(fmt.Sprintf("set fencepost.epoch = %d", epoch)))
		fixture.MustPass(t, c, Q(mine))
	})
}

// TestWaitingAndLonelyWorkersAreNeverRefused: who connects as leader knows it.
func TestWaitingAndLonelyWorkersAreNeverRefused(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	s.Connect("w")
	waiter := wiretest.Dial(t, s.Addr)
	waiter.Send(wiretest.Startup("user", pgtest.App, "database", s.DB, "fencepost.resource", "r", "fencepost.worker", "w", "fencepost.campaign", "wait"))
	s.Grant("w")
	waiter.Until('Z')
	fixture.MustPass(t, waiter, Q(mine))
	fixture.MustPass(t, s.Connect("w"), Batch(Run(mine)))
	if s.Rows("mine") != 2 {
		t.Errorf("%d rows; want 2", s.Rows("mine"))
	}
}

// TestWaitingWorkersLearnWhyTheirBackendEnded: an administrator has ended it, and nothing
// is wrong with the fence. They are told at once, and not when their turn comes.
func TestWaitingWorkersLearnWhyTheirBackendEnded(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		waiter := wiretest.Dial(t, s.Addr)
		waiter.Send(wiretest.Startup("user", pgtest.App, "database", s.DB, "fencepost.resource", "r", "fencepost.worker", "w", "fencepost.campaign", "wait"))
		fixture.Eventually(t, "the worker to wait", func() bool { return s.Elector.Members(s.DB, "r", "w") == 1 })
		fixture.Eventually(t, "its backend to be ended", func() bool {
			var ended int
			err := s.Admin.QueryRow(t.Context(), `with waiting as materialized (
				select pid from pg_stat_activity where datname = current_database() and usename = $1
			) select count(*) from waiting where pg_terminate_backend(pid)`, pgtest.App).Scan(&ended)
			if err != nil {
				t.Fatal(err)
			}
			return ended > 0
		})
		if f := fixture.FatalError(t, waiter.Rest()); f['C'] != "57P01" {
			t.Errorf("the worker is told %v, want 57P01", f)
		}
	})
}

// toldInABlock connects a worker that becomes leader inside a block in which it has read, and
// is told so by ZF003.
func toldInABlock(t *testing.T, s *fixture.Cluster, worker string) *wiretest.Conn {
	t.Helper()
	c := s.Connect(worker)
	fixture.MustPass(t, c, Q("begin"))
	fixture.MustPass(t, c, Q("select * from c"))
	s.Grant(worker)
	fixture.MustFail(t, c, "ZF003", Q(mine))
	return c
}

// TestSafetyAnnouncedInABlockOfATextWithTheNext: a session that ends each block in the text that begins the next one is
// refused once as well, and not for ever. What was read before it was told is not written from, though.
func TestSafetyAnnouncedInABlockOfATextWithTheNext(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		c := toldInABlock(t, s, "w")
		fixture.MustPass(t, c, Q("rollback; begin"))
		fixture.MustPass(t, c, Q(mine))
		fixture.MustPass(t, c, Q("commit; begin; savepoint a; "+mine+"; rollback to a; "+mine+"; commit"))
		if got := s.Rows("mine"); got != 2 {
			t.Errorf("%d rows were written, want 2", got)
		}
		s.Exec("truncate t")
		c = toldInABlock(t, s, "v")
		fixture.MustPass(t, c, Q("commit and chain")) // which rolls it back, and the next block is one that may only read
		fixture.MustFail(t, c, "ZF003", Q(mine))
		fixture.MustPass(t, c, Q("rollback"))
		fixture.MustPass(t, c, Q(mine))
	})
}
