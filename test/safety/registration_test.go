package safety

import (
	"context"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestSafetyALostRegistrationEndsTheSession: the next grant would not see its backend. The session does nothing
// meanwhile.
func TestSafetyALostRegistrationEndsTheSession(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	c := s.Leader("w")
	fixture.MustPass(t, c, Q(mine))
	pid := s.Number("select pid from pg_stat_activity where usename = 'app' and datname = current_database()")
	s.Exec("delete from fencepost.running")
	awaitEnd(s, pid)
	fixture.MustEnd(t, c, "ZF004", Q(mine))
	if n := s.Rows("mine"); n != 1 {
		t.Errorf("%d rows, want the one from before", n)
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
	pg := pgtest.Shared(t)
	s := fixture.NewCluster(t, pg)
	second := &fixture.Cluster{Proxy: fixture.NewProxy(t, pg, nil), T: t, DB: s.DB, Admin: s.Admin}
	for name, write := range map[string][]byte{"simple": Q(stale), "extended": Batch(Run(stale)), "do": Q("do $$begin insert into t (v) values ('stale'); commit; end$$")} {
		t.Run(name, func(t *testing.T) {
			s, second := s.With(t), second.With(t)
			for last := second.Elector.Next(); s.Elector.Next() < last; { // what comes is awarded later
				continue
			}
			c, _ := becomesLeader(s, "w "+name)
			fixture.MustFail(t, c, "ZF003", Q(stale))
			fixture.MustPass(t, c, Sync()) // the session is at rest again
			for last := s.Elector.Next(); second.Elector.Next() < last; {
				continue
			}
			second.Connect("other " + name)
			second.Grant("other " + name)
			fixture.MustEnd(t, c, "ZF001", write)
			if n := s.Rows("stale"); n != 0 {
				t.Errorf("%d stale rows", n)
			}
		})
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
