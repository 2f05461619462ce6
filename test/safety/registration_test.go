package safety

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestSafetyALostRegistrationEndsTheSession: somebody empties the registry, so that the next grant would not see the
// session's backend. The session does nothing meanwhile, and ends at the next comparison. What it has not committed is
// undone.
func TestSafetyALostRegistrationEndsTheSession(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"outside", "in a block"} {
		t.Run(in, func(t *testing.T) {
			t.Parallel()
			s := fixture.NewCluster(t, pgtest.Shared(t))
			c := s.Leader("w")
			fixture.MustPass(t, c, Q(mine))
			pid := s.Number("select pid from pg_stat_activity where usename = 'app' and datname = current_database()")
			if in != "outside" {
				fixture.MustPass(t, c, Q("begin"))
				fixture.MustPass(t, c, Q(mine))
			}
			s.Exec("delete from fencepost.running")
			awaitEnd(s, pid)
			fixture.MustEnd(t, c, "ZF004", Q(mine))
			if n := s.Rows("mine"); n != 1 {
				t.Errorf("%d rows, want the one from before", n)
			}
			fixture.MustPass(t, s.Connect("w"), Q(mine))
		})
	}
}

// TestSafetyNothingRunsBeforeTheRegistration: a worker that was told of its epoch is registered first. What it sends
// waits for that.
func TestSafetyNothingRunsBeforeTheRegistration(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	for name, sent := range map[string][]byte{"simple": Q(mine), "extended": Batch(Run(mine))} {
		t.Run(name, func(t *testing.T) {
			s := s.With(t)
			s.Exec("truncate t")
			c, _ := becomesLeader(s, "w "+name)
			fixture.MustFail(t, c, "ZF003", Q(mine))
			fixture.MustPass(t, c, Sync()) // the session is at rest again
			tx, err := s.Admin.Begin(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(context.Background(), "lock table fencepost.running in share row exclusive mode"); err != nil {
				t.Fatal(err)
			}
			c.Send(sent)
			fixture.Eventually(t, "the registration waits", func() bool {
				return s.Rows("mine") > 0 || s.Number("select count(*) from pg_locks where relation = 'fencepost.running'::regclass and not granted") > 0
			})
			if n := s.Rows("mine"); n != 0 {
				t.Errorf("%d rows were written before the backend was registered", n)
			}
			if err := tx.Commit(context.Background()); err != nil {
				t.Fatal(err)
			}
			fixture.Eventually(t, "the row is there", func() bool { return s.Rows("mine") == 1 })
			if n := s.Number("select count(*) from fencepost.running"); n == 0 {
				t.Error("the backend is not registered")
			}
		})
	}
}

// TestSafetyARefusedRegistrationIsNone: a worker was told of its epoch and has not written. Another one was granted the
// next epoch at a second proxy, and the first does not know that.
func TestSafetyARefusedRegistrationIsNone(t *testing.T) {
	t.Parallel()
	withSecondProxy(t, func(s, second *fixture.Cluster) {
		for name, write := range staleWrites {
			awardsLater(s, second)
			c, _ := becomesLeader(s, "w "+name)
			fixture.MustFail(s.T, c, "ZF003", Q(stale))
			fixture.MustPass(s.T, c, Sync()) // the session is at rest again
			awardsLater(second, s)
			second.Grant("other " + name)
			fixture.MustEnd(s.T, c, "ZF001", write)
		}
	})
}

// TestSafetyAClaimedEpochOpensNoWay: a worker leads at one proxy, another was
// granted the next epoch at a second one, and the first proxy does not know it yet.
// The worker's client has read the new epoch from the status view, and says that
// it was told. Nothing of what it sends then may run.
func TestSafetyAClaimedEpochOpensNoWay(t *testing.T) {
	t.Parallel()
	withSecondProxy(t, func(s, second *fixture.Cluster) {
		for name, write := range staleWrites {
			awardsLater(s, second)
			c := s.Leader("w " + name)
			fixture.MustPass(s.T, c, Q("insert into t (v) values ('in time')"))
			awardsLater(second, s)
			second.Grant("other " + name)
			epoch := s.Number("select epoch::int from fencepost.status where resource = 'r'")
			fixture.MustEnd(s.T, c, "ZF001", Q(fmt.Sprintf("set fencepost.epoch = %d", epoch)), write)
		}
	})
}

// TestAWorkerThatWasSupersededUnnoticedStandsBy: a worker leads as far as its proxy knows, which learns the truth by the
// registration of the worker's next connection. That connection belongs to a candidacy of its own, as it would if the
// proxy had known.
func TestAWorkerThatWasSupersededUnnoticedStandsBy(t *testing.T) {
	t.Parallel()
	withSecondProxy(t, func(s, second *fixture.Cluster) {
		awardsLater(s, second)
		s.Grant("w")
		awardsLater(second, s)
		second.Grant("other")
		c := s.Connect("w")
		if role := fixture.FirstValue(s.T, c.Exec("show fencepost.role")); role != "follower" {
			s.T.Errorf("it is a %s", role)
		}
		fixture.MustFail(s.T, c, "ZF002", Q(stale))
	})
}

// staleWrites are writes of one who was superseded.
var staleWrites = map[string][]byte{
	"simple": Q(stale), "extended": Batch(Run(stale)), "do": Q("do $$begin insert into t (v) values ('stale'); commit; end$$"),
}

// withSecondProxy runs a test on each server, with two proxies in front of a database.
// Nothing stale may be there at the end.
func withSecondProxy(t *testing.T, test func(s, second *fixture.Cluster)) {
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		test(s, &fixture.Cluster{Proxy: fixture.NewProxy(t, s.PG, nil), T: t, DB: s.DB, Admin: s.Admin})
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d stale rows", n)
		}
	})
}

// awardsLater makes the next award at one proxy later than those at another.
func awardsLater(s, other *fixture.Cluster) {
	for last := other.Elector.Next(); s.Elector.Next() < last; {
		continue
	}
}

// TestAFollowerDoesNotWaitForTheRegistry: only who leads is registered.
func TestAFollowerDoesNotWaitForTheRegistry(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	c := s.Connect("follower")
	tx, err := s.Admin.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), "lock table fencepost.fence, fencepost.running in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	c.Send(Q("select * from c"))
	answered := make(chan []wiretest.Message, 1)
	go func() { answered <- c.Until('Z') }()
	for waits := true; waits; {
		select {
		case all := <-answered:
			if state := wiretest.ErrorOf(all); state != "" {
				t.Errorf("the read of a follower: %s", state)
			}
			waits = false
		case <-time.After(10 * time.Millisecond):
			if s.Number("select count(*) from pg_stat_activity where query like '%fencepost.enter%' and wait_event_type = 'Lock' and datname = current_database()") > 0 {
				t.Fatal("a follower is being registered")
			}
		}
	}
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
}
