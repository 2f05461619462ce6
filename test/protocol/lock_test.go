package protocol

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestALockComesBeforeTheSnapshot: in REPEATABLE READ and SERIALIZABLE, a transaction that begins
// with LOCK TABLE sees what was committed while it waited for the lock.
func TestALockComesBeforeTheSnapshot(t *testing.T) {
	t.Parallel()
	const next = "insert into numbers select max(n) + 1 from numbers"
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		s.Exec("create table numbers (n int not null); insert into numbers values (1); grant all on numbers to app")
		first := s.Leader("w")
		for _, level := range []string{"repeatable read", "serializable"} {
			begin, lock := "begin isolation level "+level, "lock table numbers in exclusive mode"
			for name, parts := range map[string][][]byte{
				"messages of one":   {Q(begin), Q(lock), Q(next), Q("commit")},
				"one text":          {Q(begin + "; " + lock + "; " + next + "; commit")},
				"extended":          {Run(begin), Sync(), Run(lock), Sync(), Run(next), Sync(), Run("commit"), Sync()},
				"extended, at once": {Run(begin), Run(lock), Run(next), Run("commit"), Sync()},
			} {
				s.Exec("delete from numbers where n > 1")
				second := s.Connect("w")
				fixture.MustPass(t, second, Q("show fencepost.role"))
				fixture.MustPassEach(t, first, "begin", lock, next)
				ended := make(chan string, 1)
				go func() {
					for _, part := range chunks(parts) {
						all, _ := fixture.Ask(second, part)
						if state := wiretest.ErrorOf(all); state != "" {
							ended <- state
							return
						}
					}
					ended <- ""
				}()
				fixture.AwaitBackend(t, s.Admin, "wait_event_type = 'Lock' AND query LIKE '%lock table numbers%'")
				fixture.MustPass(t, first, Q("commit"))
				if state := <-ended; state != "" {
					t.Errorf("%s, %s: %s", level, name, state)
				}
				if n := s.Number("select max(n) from numbers"); n != 3 {
					t.Errorf("%s, %s: the highest number is %d, want 3", level, name, n)
				}
			}
		}
	})
}

// chunks joins the parts of each request, which ends with a Query or a Sync.
func chunks(parts [][]byte) (all [][]byte) {
	var request []byte
	for _, part := range parts {
		request = append(request, part...)
		if part[0] == 'Q' || part[0] == 'S' {
			all, request = append(all, request), nil
		}
	}
	return all
}

// TestAGrantEndsAWorkerThatHasOnlyLocked: its lock would keep the next leader waiting.
func TestAGrantEndsAWorkerThatHasOnlyLocked(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		old := s.Leader("w")
		fixture.MustPassEach(t, old, "begin", "lock table t in exclusive mode")
		s.Supersede()
		s.Exec("begin; lock table t in exclusive mode nowait; rollback")
		fixture.MustEnd(t, old, "ZF001", Q("insert into t (v) values ('stale')"))
		if n := s.Number("select count(*) from t where v = 'stale'"); n != 0 {
			t.Errorf("%d stale rows", n)
		}
	})
}

// TestAGrantWaitsForAWorkerThatHasLocked: what follows the LOCK TABLE, and the COMMIT, pass while
// the grant waits. A check there would wait for the grant.
func TestAGrantWaitsForAWorkerThatHasLocked(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		patient := fixture.OpenStore(t, store.Config{Address: pg.Addr(), Database: s.DB, User: pgtest.Control, Grace: time.Minute})
		defer patient.Close()
		fence := fixture.Fence(t, patient, "r")
		const insert = "insert into t (v) values ('after the lock')"
		for name, ask := range map[string]func(sql string) []byte{
			"simple":   Q,
			"extended": func(sql string) []byte { return Batch(Run(sql)) },
		} {
			old := s.Leader(name)
			fixture.MustPass(t, old, ask("begin isolation level repeatable read"))
			fixture.MustPass(t, old, ask("lock table t in exclusive mode"))
			granted := make(chan error, 1)
			go func() {
				_, err := s.Elector.NewCandidacy(s.DB, "next", fence).TryGrant()
				granted <- err
			}()
			fixture.AwaitBackend(t, s.Admin, "wait_event = 'PgSleep'")
			for _, sql := range []string{insert, "savepoint s", insert, "rollback to s", "do 'begin end'", "select count(*) from t", "commit"} {
				fixture.MustPass(t, old, ask(sql))
			}
			if err := <-granted; err != nil {
				t.Fatal(err)
			}
			fixture.MustEnd(t, old, "ZF001", ask("insert into t (v) values ('stale')"))
			if n := s.Number("with x as (delete from t returning v) select count(*) from x where v = 'after the lock'"); n != 1 {
				t.Errorf("%s: %d rows behind the lock, want 1", name, n)
			}
		}
	})
}

// TestAWorkerThatHasLockedGoesOnWithoutItsLease: the grant of another waits for its transaction, as
// it does for one that was checked.
func TestAWorkerThatHasLockedGoesOnWithoutItsLease(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		for name, status := range map[string]fencing.Status{
			"lapsed":   {Epoch: 1, Lapsed: true},
			"follower": {},
		} {
			c := s.Leader(name)
			fixture.MustPassEach(t, c, "begin", "lock table t in exclusive mode")
			s.Candidacy(s.DB, "r", name).SetStatus(&status)
			fixture.MustPassEach(t, c, "insert into t (v) values ('goes on')", "select count(*) from t", "lock table t", "insert into t (v) values ('goes on')", "commit")
			fixture.MustFail(t, c, "ZF002", Q("begin; lock table t"))
			if n := s.Number("with x as (delete from t returning v) select count(*) from x where v = 'goes on'"); n != 2 {
				t.Errorf("%s: %d rows behind the lock, want 2", name, n)
			}
		}
	})
}

// TestSafetyALockBehindASnapshot: a transaction has taken its snapshot before the epoch in which it
// writes. A lock behind that does not make it newer.
func TestSafetyALockBehindASnapshot(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		for _, first := range []string{"deallocate all", "discard plans"} {
			old, name := s.Leader("before "+first), "w "+first
			c := s.Connect(name)
			next := s.Candidacy(s.DB, "r", "before "+first).Status().Epoch + 1
			fixture.MustPassEach(t, c, fmt.Sprintf("set fencepost.epoch = %d", next), "begin isolation level repeatable read; "+first)
			fixture.MustPass(t, old, Q("insert into t (v) values ('of the leader before')"))
			if epoch := s.Candidacy(s.DB, "r", name).Grant(); epoch != next {
				t.Fatalf("epoch %d, want %d", epoch, next)
			}
			fixture.MustPass(t, c, Q("lock table t"))
			fixture.MustFail(t, c, "40001", Q("insert into t (v) values ('behind the snapshot')"))
		}
		if n := s.Number("select count(*) from t where v = 'behind the snapshot'"); n != 0 {
			t.Errorf("%d rows were written under a snapshot from before the epoch", n)
		}
	})
}

// TestALockInAChainOfReads: the transaction was handed the read-only mode of a follower, which is
// undone behind the lock.
func TestALockInAChainOfReads(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		c := s.Connect("w")
		fixture.MustPassEach(t, c, "begin", "select count(*) from t", "commit and chain")
		s.Candidacy(s.DB, "r", "w").Grant()
		fixture.MustPassEach(t, c, "show fencepost.role", "commit and chain")
		for range 2 {
			fixture.MustPassEach(t, c, "lock table t in exclusive mode", "insert into t (v) values ('in a chain')", "commit and chain")
		}
		if n := s.Number("select count(*) from t where v = 'in a chain'"); n != 2 {
			t.Errorf("%d rows, want 2", n)
		}
	})
}
