package fence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// leaderGoesOn fails the test unless the current holder still leads and no grant is
// left in its queue.
func leaderGoesOn(t *testing.T, h *fencetest.Database, term fencing.Term) {
	t.Helper()
	fixture.Eventually(t, "the grant has left the queue", func() bool { return !h.Waiting() })
	ctx, cancel := context.WithTimeout(context.Background(), fixture.Patience)
	defer cancel()
	if err := h.Worker(term).Check(ctx); err != nil {
		t.Errorf("the leader's check after the abandoned grant: %v", err)
	}
	if rec, err := h.Fence.Record(h.Ctx()); err != nil || rec.Epoch != term.Epoch {
		t.Errorf("the record is %+v, %v; want epoch %d in force", rec, err, term.Epoch)
	}
}

func TestSafetyATransactionInTheWayIsEndedAfterTheGrace(t *testing.T) {
	t.Parallel()
	const grace = 300 * time.Millisecond
	var told blocked
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace, c.Blocked = grace, told.note })
	h.Server.Exec(t, pgtest.App, h.DB, "CREATE TABLE public.entries (epoch bigint)")
	term := h.Grant("a")
	w := h.Worker(term)
	tx := w.Claim(h.Ctx(), t, "")
	if _, err := tx.Exec(h.Ctx(), "INSERT INTO public.entries VALUES ($1)", int64(term.Epoch)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	h.Grant("b")
	took := time.Since(began)
	if err := tx.Commit(h.Ctx()); err == nil {
		t.Error("the old epoch's transaction committed after the grant")
	}
	if got := fencetest.Ask[int](h, "SELECT count(*) FROM public.entries"); got != 0 {
		t.Errorf("%d rows of the old epoch", got)
	}
	if took < grace {
		t.Errorf("the grant took %s with a grace of %s", took, grace)
	}
	if all := told.reports(); len(all) != 0 {
		t.Errorf("reported %q, which the grant could end", all)
	}
}

// TestATransactionThatEndsWithinTheGraceCommits, and the epoch that follows is dated from when it has ended.
func TestATransactionThatEndsWithinTheGraceCommits(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace = time.Minute })
	h.Server.Exec(t, pgtest.App, h.DB, "CREATE TABLE public.entries (epoch bigint)")
	term := h.Grant("a")
	tx := h.Worker(term).Claim(h.Ctx(), t, "")
	result := make(chan error, 1)
	next := h.Award("b")
	go func() {
		_, err := h.Fence.Grant(h.Ctx(), next)
		result <- err
	}()
	fixture.Eventually(t, "the grant waits", func() bool { return h.Waiting() })
	if _, err := tx.Exec(h.Ctx(), "INSERT INTO public.entries VALUES ($1)", int64(term.Epoch)); err != nil {
		t.Fatal(err)
	}
	var written time.Time
	if err := tx.QueryRow(h.Ctx(), "SELECT clock_timestamp()").Scan(&written); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(h.Ctx()); err != nil {
		t.Errorf("commit within the grace: %v", err)
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if got := fencetest.Ask[int](h, "SELECT count(*) FROM public.entries"); got != 1 {
		t.Errorf("%d rows, want the one that was committed in time", got)
	}
	// What was committed while the grant waited is not dated after its epoch's end.
	rec, err := h.Fence.Record(h.Ctx())
	if err != nil || rec.Epoch != 2 || !rec.GrantedAt.After(written) {
		t.Errorf("epoch %d was granted at %s, and epoch 1 wrote at %s; %v", rec.Epoch, rec.GrantedAt, written, err)
	}
	if at := fencetest.Ask[time.Time](h, "SELECT granted_at FROM fencepost.grants WHERE epoch = 2"); !at.Equal(rec.GrantedAt) {
		t.Errorf("the ledger says %s, and the record %s", at, rec.GrantedAt)
	}
}

// TestAGrantThatHasReturnedDoesNotWaitForAPoll: the connection that reads what the grant waits for is cut, and neither
// side notices.
func TestAGrantThatHasReturnedDoesNotWaitForAPoll(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	polled := make(chan struct{}, 100)
	relay := fixture.NewRelay(t, "tcp", h.Server.Addr(), func() fixture.Passing {
		var mute atomic.Bool
		return fixture.Passing{
			ToServer: func(b []byte) []byte {
				if bytes.Contains(b, []byte("LEFT JOIN pg_lock_status() l ON b.pid = 0")) {
					mute.Store(true)
					polled <- struct{}{}
				}
				return b
			},
			ToClient: func(b []byte) []byte {
				if mute.Load() {
					return nil
				}
				return b
			},
		}
	})
	core, logged := observer.New(zap.WarnLevel)
	far := h.NewFence(h.Open(func(c *fence.Config) { c.Address, c.Grace, c.Logger = relay.Addr, time.Minute, zap.New(core) }))
	tx := h.Worker(h.Grant("a")).Claim(h.Ctx(), t, "")
	result := make(chan error, 1)
	next := h.Award("b")
	go func() {
		_, err := far.Grant(h.Ctx(), next)
		result <- err
	}()
	<-polled
	if err := tx.Commit(h.Ctx()); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if lines := logged.FilterMessage("could not read what a grant waits for").All(); len(lines) != 0 {
		t.Errorf("the grant waited until the poll failed: %v", lines[0].ContextMap())
	}
}

// grantWaits is whether a grant waits for a lock, or for backends after it has locked the row.
const grantWaits = `SELECT EXISTS (SELECT FROM fencepost.fence f CROSS JOIN LATERAL fencepost.state(f.id) s WHERE NOT s.settled)
	OR EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND usename = '` + pgtest.Control + `' AND wait_event_type = 'Lock')`

// TestSafetyAClaimAfterAGrantSeesItsEpoch: a claim does not get past a grant that waits for a registered backend, nor past
// one that waits for another claim. Claims that overlap would otherwise keep it waiting for ever.
func TestSafetyAClaimAfterAGrantSeesItsEpoch(t *testing.T) {
	t.Parallel()
	for _, claims := range []bool{false, true} {
		t.Run(fmt.Sprintf("ahead is a claim: %v", claims), func(t *testing.T) {
			t.Parallel()
			h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace = time.Minute })
			h.Server.Exec(t, pgtest.App, h.DB, "CREATE TABLE public.entries (epoch bigint)")
			term := h.Grant("a")
			ahead := h.Worker(term)
			var tx pgx.Tx // not idle, so the grant waits for it
			if claims {
				tx = ahead.Claim(h.Ctx(), t, "")
			} else {
				var err error
				if !fencetest.Unfenced {
					h.MustEnter(ahead)
				}
				if tx, err = ahead.Begin(h.Ctx()); err != nil {
					t.Fatal(err)
				}
			}
			granted, next := make(chan error, 1), h.Award("b")
			go func() {
				_, err := h.Fence.Grant(h.Ctx(), next)
				granted <- err
			}()
			if !fencetest.Unfenced {
				fixture.Eventually(t, "the grant waits", func() bool { return fencetest.Ask[bool](h, grantWaits) })
			}
			behind, insert := h.Worker(term), make(chan error, 1)
			go func() {
				tx, err := behind.Begin(h.Ctx())
				if err == nil && !fencetest.Unfenced { // it says that it has passed already, which it has not
					_, err = tx.Exec(h.Ctx(), "SELECT set_config($1, pg_current_xact_id()::text, true)", fmt.Sprint("fencepost.passed_", h.Fence.ID()))
				}
				if err == nil && !fencetest.Unfenced {
					_, err = tx.Exec(h.Ctx(), "SELECT fencepost.claim($1, $2)", term.Resource, int64(term.Epoch))
				}
				if err == nil {
					_, err = tx.Exec(h.Ctx(), "INSERT INTO public.entries VALUES (1)")
				}
				if err == nil {
					err = tx.Commit(h.Ctx())
				}
				insert <- err
			}()
			if !fencetest.Unfenced {
				fixture.Eventually(t, "the claim waits, or has passed", func() bool {
					return len(insert) > 0 || fencetest.Ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')", int32(behind.PgConn().PID()))
				})
			}
			_ = tx.Rollback(h.Ctx())
			_ = ahead.Close(h.Ctx())
			if err := <-granted; err != nil {
				t.Error(err)
			}
			if err := <-insert; fencetest.StateOf(err) != fencing.StateSuperseded {
				t.Errorf("the claim after the grant: %v; want ZF001", err)
			}
		})
	}
}

// TestSafetyAGrantSeesARegistrationUnderWay: the registration has read the row and has not committed when the grant comes.
func TestSafetyAGrantSeesARegistrationUnderWay(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace = time.Minute })
	h.Server.Exec(t, pgtest.App, h.DB, "CREATE TABLE public.entries (epoch bigint)")
	w := h.Worker(h.Grant("a"))
	e := w.Request()
	registering, err := h.Server.Connect(t, pgtest.Control, h.DB).Begin(h.Ctx())
	if err != nil {
		t.Fatal(err)
	}
	if !fencetest.Unfenced {
		_, err = registering.Exec(h.Ctx(), "SELECT fencepost.enter(f.id, $1, $2, $3, 1, $4, $5, $6, $6) FROM fencepost.fence f WHERE f.resource = $7",
			int32(e.PID), e.Started, e.Seen, e.Worker, e.Incarnation, int64(e.Held), fencetest.Resource)
		if err != nil {
			t.Fatal(err)
		}
	}
	granted, next := make(chan error, 1), h.Award("b")
	go func() {
		_, err := h.Fence.Grant(h.Ctx(), next)
		granted <- err
	}()
	fixture.Eventually(t, "the grant waits, or has returned", func() bool { return len(granted) > 0 || fencetest.Ask[bool](h, grantWaits) })
	if err := registering.Commit(h.Ctx()); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
	if _, err := w.Exec(h.Ctx(), "INSERT INTO public.entries VALUES (1)"); err == nil {
		t.Error("a backend whose registration was under way writes after the grant")
	}
}

// TestNoOneWithoutRightsBlocksATakeover: a role without rights locks all relations of the schema, as Postgres lets it,
// and prepares the transaction, so that no one can end it.
func TestNoOneWithoutRightsBlocksATakeover(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	h := fencetest.New(t, s, func(c *fence.Config) { c.Grace, c.Patience = time.Second, time.Second })
	term := h.Grant("a")
	tx, err := s.Connect(t, pgtest.App, h.DB).Begin(h.Ctx())
	if err != nil {
		t.Fatal(err)
	}
	rows, err := tx.Query(h.Ctx(), "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'fencepost'")
	if err != nil {
		t.Fatal(err)
	}
	relations, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
	if err != nil {
		t.Fatal(err)
	}
	for _, relation := range relations {
		for _, sql := range []string{"SELECT nextval($1::oid)", "SELECT pg_sequence_last_value($1::oid)"} {
			failed := pgx.BeginFunc(h.Ctx(), tx, func(sub pgx.Tx) error {
				_, err := sub.Exec(h.Ctx(), sql, relation)
				return err
			})
			if failed == nil && strings.Contains(sql, "nextval") {
				t.Errorf("%s of relation %d succeeded", sql, relation)
			}
		}
	}
	if _, err := tx.Exec(h.Ctx(), "PREPARE TRANSACTION 'in the way'"); err != nil {
		t.Fatal(err)
	}
	if n := fencetest.Ask[int](h, "SELECT count(*) FROM pg_locks WHERE pid IS NULL AND relation = ANY ('{fencepost.fence,fencepost.orders,fencepost.generations}'::regclass[])"); n != 3 {
		t.Fatalf("%d locks of what a grant uses, so the test proves nothing", n)
	}
	for what, do := range map[string]func() error{
		"a new resource":                      func() error { _, err := h.Fences.Fence(h.Ctx(), "another"); return err },
		"a new instance of the lease service": func() error { return h.Fence.Number(h.Ctx(), "test", "another instance") },
		"a registration":                      func() error { return h.Worker(term).Check(h.Ctx()) },
		"an order":                            func() error { _, err := operator.New(h.Fences).Pause(h.Ctx(), "another", ops); return err },
		"a removal":                           func() error { _, err := operator.New(h.Fences).Remove(h.Ctx(), "another", true, ops); return err },
	} {
		if what == "an order" || what == "a removal" {
			if _, err := h.Fences.Fence(h.Ctx(), "another"); err != nil {
				t.Fatal(err)
			}
		}
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if next := h.Grant("b"); next.Epoch != term.Epoch+1 {
		t.Errorf("epoch %d after %d", next.Epoch, term.Epoch)
	}
	s.Exec(t, pgtest.App, h.DB, "ROLLBACK PREPARED 'in the way'")
}

// TestALockOnATemporaryTableOfTheLeaderBlocksNoTakeover: a backend that ends drops its temporary tables. Any role can
// lock one of them by nextval, whose failure does not give the lock back before its transaction ends.
func TestALockOnATemporaryTableOfTheLeaderBlocksNoTakeover(t *testing.T) {
	t.Parallel()
	for _, role := range []string{pgtest.App, pgtest.Superuser} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			patience := 30 * time.Second
			if role == pgtest.Superuser { // whom the grant cannot end
				patience = 4 * time.Second
			}
			h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace, c.Patience = 300*time.Millisecond, patience })
			leader := h.Worker(h.Grant("a"))
			h.MustEnter(leader)
			if _, err := leader.Exec(h.Ctx(), "CREATE TEMP TABLE scratch (id int)"); err != nil {
				t.Fatal(err)
			}
			other := h.Server.Connect(t, role, h.DB)
			tx, err := other.Begin(h.Ctx())
			if err != nil {
				t.Fatal(err)
			}
			sub, err := tx.Begin(h.Ctx())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := sub.Exec(h.Ctx(), "SELECT nextval(oid) FROM pg_class WHERE relname = 'scratch'"); fencetest.StateOf(err) != "42809" {
				t.Fatalf("nextval of a table: %v", err)
			}
			if err := sub.Rollback(h.Ctx()); err != nil {
				t.Fatal(err)
			}
			pid := fmt.Sprintf("backend %d", other.PgConn().PID())
			_, err = h.Fence.Grant(h.Ctx(), h.Award("b"))
			var blocked *fence.GrantBlockedError
			switch {
			case role != pgtest.Superuser && err != nil:
				t.Errorf("the grant fails: %v", err)
			case role == pgtest.Superuser && (!errors.As(err, &blocked) || !strings.Contains(err.Error(), pid)):
				t.Errorf("the grant says %v; want an error that names %s", err, pid)
			}
			if err := tx.Commit(h.Ctx()); (err == nil) != (role == pgtest.Superuser) {
				t.Errorf("the transaction of %s ends with %v", role, err)
			}
		})
	}
}

// TestLockedSystemViewsBlockNoTakeover: any role can keep all others from reading a system view.
func TestLockedSystemViewsBlockNoTakeover(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace, c.Patience = 300*time.Millisecond, 30*time.Second })
	leader := h.Worker(h.Grant("a"))
	h.MustEnter(leader)
	leader.Claim(h.Ctx(), t, "")
	release := h.Server.LockAway(t, h.DB, "pg_stat_activity", "pg_locks", "pg_prepared_xacts", "pg_roles", "pg_stat_wal_receiver")
	// What the grant waits for is looked for in the functions that the views read.
	if next := h.Grant("b"); next.Epoch != 2 {
		t.Errorf("the next leader has epoch %d", next.Epoch)
	}
	if gone, err := h.Fences.Gone(h.Ctx(), "nobody", ""); err != nil || !gone {
		t.Errorf("another proxy is gone: %v, %v", gone, err)
	}
	primary := store.NewStateReader(store.Config{Address: h.Server.Addr(), Database: h.DB, User: pgtest.Control})
	defer primary.Close()
	if _, err := primary.Read(t.Context()); err != nil {
		t.Errorf("by which the primary is found: %v", err)
	}
	release()
}

// TestALockedCatalogOfAllDatabasesBlocksNoTakeover: any role of any database can keep all others from reading pg_database, and so
// from logging in. Connections that are open continue, the leader's too.
func TestALockedCatalogOfAllDatabasesBlocksNoTakeover(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t) // no one else can log in meanwhile
	h := fencetest.New(t, server, func(c *fence.Config) { c.Grace, c.Patience = 300*time.Millisecond, 30*time.Second })
	leader := h.Worker(h.Grant("a"))
	h.MustEnter(leader)
	if _, err := leader.Exec(h.Ctx(), "BEGIN; CREATE TABLE public.of_leader (n int)"); err != nil {
		t.Fatal(err)
	}
	defer server.LockAway(t, server.Database(t), "pg_database")()
	if next := h.Grant("b"); next.Epoch != 2 {
		t.Errorf("the next leader has epoch %d", next.Epoch)
	}
}

func TestABackendThatNoOneReadsFromIsEnded(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	term := h.Grant("a")
	w := h.Worker(term)
	w.Claim(h.Ctx(), t, "")
	// The response fills every buffer on its way, and no one reads it.
	socket := w.PgConn().Conn().(*net.TCPConn)
	query := "SELECT repeat('x', 1000000) FROM generate_series(1, 1000)\x00"
	frame := append([]byte{'Q', 0, 0, 0, byte(len(query) + 4)}, query...)
	if _, err := socket.Write(frame); err != nil {
		t.Fatal(err)
	}
	pid := w.PgConn().PID()
	fixture.Eventually(t, "the backend is stuck in its write", func() bool {
		return fencetest.Ask[string](h, "SELECT coalesce(wait_event, '') FROM pg_stat_activity WHERE pid = $1", pid) == "ClientWrite"
	})
	next := h.Grant("b")
	if next.Epoch != term.Epoch+1 {
		t.Errorf("epoch %d after %d", next.Epoch, term.Epoch)
	}
	// It gives its locks back a little before it is gone.
	fixture.Eventually(t, "the backend is gone", func() bool {
		return !fencetest.Ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid)
	})
}

func TestARowLockedByHandIsNamedWhenAGrantGivesUp(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace, c.Patience = time.Millisecond, time.Millisecond })
	conn := h.Server.Connect(t, pgtest.Control, h.DB)
	pid := conn.PgConn().PID()
	ctx, stop := context.WithCancel(h.Ctx())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = conn.Exec(ctx, "DO $$BEGIN PERFORM FROM fencepost.fence FOR UPDATE; PERFORM pg_sleep(3600); END$$") // until stop
	}()
	t.Cleanup(func() { stop(); <-over })
	fixture.Eventually(t, "the row to be locked", func() bool {
		return fencetest.Ask[bool](h, "SELECT coalesce(wait_event, '') = 'PgSleep' FROM pg_stat_activity WHERE pid = $1", int32(pid))
	})
	_, err := h.Fence.Grant(h.Ctx(), h.Award("a"))
	fencetest.MustContain(t, err, "did not return", fmt.Sprint(pid))
	if !fencetest.Ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", int32(pid)) {
		t.Error("the session that locked the row was ended")
	}
}

// TestARowLockedByHandIsFreedAfterTheGrace: someone has logged in as the control role, and has gone.
func TestARowLockedByHandIsFreedAfterTheGrace(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	conn := h.Server.Connect(t, pgtest.Control, h.DB)
	if _, err := conn.Exec(h.Ctx(), "BEGIN; SELECT FROM fencepost.fence FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	if term := h.Grant("a"); term.Epoch != 1 {
		t.Errorf("epoch %d, want 1", term.Epoch)
	}
}

// TestAnEventTriggerThatRaisesDoesNotMatter: neither a grant nor a new resource changes the schema.
func TestAnEventTriggerThatRaisesDoesNotMatter(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	h.Server.Exec(t, pgtest.Superuser, h.DB,
		"CREATE FUNCTION public.no_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no DDL on a Friday'; END $$",
		"CREATE EVENT TRIGGER fridays ON ddl_command_start EXECUTE FUNCTION public.no_ddl()")
	h.Grant("a")
	if _, err := h.Fences.Fence(h.Ctx(), "another"); err != nil {
		t.Error(err)
	}
}

// TestADeadlockWithAGrantIsSurvived lets a checked transaction wait for the row that
// the waiting grant has locked. Postgres ends one of the two, and the grant must
// succeed in any case.
func TestADeadlockWithAGrantIsSurvived(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace = time.Minute })
	term := h.Grant("a")
	w := &fencetest.Worker{Conn: h.Server.Connect(t, pgtest.Control, h.DB), Fence: h.Fence, Term: term}
	tx := w.Claim(h.Ctx(), t, "")
	next, granted := h.Award("b"), make(chan error, 1)
	go func() {
		_, err := h.Fence.Grant(h.Ctx(), next)
		granted <- err
	}()
	fixture.Eventually(t, "the grant waits", func() bool { return h.Waiting() })
	_, err := tx.Exec(h.Ctx(), "UPDATE fencepost.fence SET granted_at = granted_at")
	if err == nil {
		err = tx.Commit(h.Ctx())
	} else {
		_ = tx.Rollback(h.Ctx())
	}
	if state := fencetest.StateOf(err); state != "" && state != "40P01" {
		t.Errorf("the transaction: %v", err)
	}
	if err := <-granted; err != nil {
		t.Errorf("the grant: %v", err)
	}
}

// TestAGrantWhoseProxyIsFrozenOrGoneLeavesTheQueue covers grants without a watch, while
// the leader's checks queue up after them.
func TestAGrantWhoseProxyIsFrozenOrGoneLeavesTheQueue(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("gone %t", gone), func(t *testing.T) {
			t.Parallel()
			h := fencetest.New(t, pgtest.Shared(t))
			term := h.Grant("a")
			tx := h.Worker(term).Claim(h.Ctx(), t, "")
			pooled, err := h.Fences.Pool().Acquire(h.Ctx()) // with the store's own settings
			if err != nil {
				t.Fatal(err)
			}
			conn := pooled.Hijack()
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
			wait := "5s"
			if gone {
				wait = "1h"
			}
			ended := make(chan error, 1)
			go func() {
				_, err := conn.Exec(h.Ctx(), fmt.Sprintf("SELECT fencepost.grant(%d, 'worker-b', 'incarnation-b', 'test', 'instance-1', 2, 0, 0, '%s', '%s')",
					h.Fence.ID(), wait, wait))
				ended <- err
			}()
			fixture.Eventually(t, "the grant waits", func() bool { return h.Waiting() })
			if gone {
				if err := conn.PgConn().Conn().Close(); err != nil {
					t.Fatal(err)
				}
			}
			fixture.Eventually(t, "the grant has left the queue", func() bool { return !h.Waiting() })
			if err := <-ended; err == nil || !gone && fencetest.StateOf(err) != "55P03" {
				t.Errorf("the grant: %v", err)
			}
			leaderGoesOn(t, h, term)
			if err := tx.Commit(h.Ctx()); err != nil {
				t.Error(err)
			}
		})
	}
}
