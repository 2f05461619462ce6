package connection

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

func TestShutdownEndsIdleSessionsAndLetsTransactionsCommit(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	busy := fixture.LeaderConn(t, p, db)
	idle, passing := fixture.LeaderConn(t, p, db), func() *wiretest.Conn {
		c, _ := wiretest.Connect(t, p.Addr, "user", pgtest.Superuser, "database", db)
		return c
	}()
	fixture.MustExec(t, busy, "create table t (id int)")
	fixture.MustExec(t, busy, "begin")
	fixture.MustExec(t, busy, "insert into t values (1)")

	done := make(chan error, 1)
	go func() { done <- p.Server.Shutdown(t.Context()) }()
	for name, c := range map[string]*wiretest.Conn{"idle": idle, "unfenced": passing} {
		if f := fixture.FatalError(t, c.Rest()); f['C'] != "57P01" {
			t.Errorf("%s session: %v, want 57P01", name, f)
		}
	}
	late := wiretest.Dial(t, p.Addr)
	if f := fixture.FatalError(t, late.Rest()); f['C'] != "57P03" || f['M'] != "the database system is shutting down" {
		t.Errorf("a new client: %v, want 57P03", f)
	}
	fixture.MustExec(t, busy, "insert into t values (2)")
	select {
	case err := <-done:
		t.Fatalf("the drain ended (%v) with a transaction open", err)
	default:
	}
	busy.Send(Q("commit"))
	all := busy.Rest()
	if len(all) != 3 || all[0].String() != `C "COMMIT\x00"` || all[1].Type != 'Z' || fixture.FatalError(t, all)['C'] != "57P01" {
		t.Errorf("after the drain began, COMMIT got %v", all)
	}
	_ = busy.Close()
	if err := <-done; err != nil {
		t.Errorf("shutdown: %v", err)
	}
	var n int
	if err := pg.Connect(t, pgtest.Superuser, db).QueryRow(t.Context(), "select count(*) from t").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d rows committed, %v; want 2", n, err)
	}
}

// TestShutdownEndsWhoHasNotBegun: clients in every step before their first
// statement are at a safe point.
func TestShutdownEndsWhoHasNotBegun(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	// Nothing may wait for the end of a startup.
	p, db := fixture.NewProxy(t, pg, func(cfg *proxy.Config) { cfg.StartupTimeout = time.Hour }), pg.Database(t)
	silent, half, asked, waiting := wiretest.Dial(t, p.Addr), wiretest.Dial(t, p.Addr), wiretest.Dial(t, p.Addr), wiretest.Dial(t, p.Addr)
	half.Send(packet(codeSSL))
	oneByte(t, half)
	half.Send([]byte{0, 0, 1})
	asked.Send(wiretest.Startup("user", "cleartext_user", "database", db))
	asked.Until('R')
	waiting.Send(wiretest.Startup("user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "w", "fencepost.campaign", "wait"))
	fixture.Eventually(t, "the worker stands for election", func() bool { return p.Elector.Candidacies() > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.Server.Shutdown(ctx) }()
	for name, c := range map[string]*wiretest.Conn{"silent": silent, "half a packet": half, "asked for a password": asked, "waiting to lead": waiting} {
		if f := fixture.FatalError(t, c.Rest()); f['C'] != "57P03" {
			t.Errorf("%s: %v, want 57P03", name, f)
		}
		_ = c.Close()
	}
	if err := <-done; err != nil {
		t.Errorf("shutdown: %v", err)
	}
}

func TestCloseEndsWhatShutdownWaitsFor(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	open, sleeping := fixture.LeaderConn(t, p, db), fixture.LeaderConn(t, p, db)
	fixture.MustExec(t, open, "create table t (id int)")
	fixture.MustExec(t, open, "begin")
	fixture.MustExec(t, open, "insert into t values (1)")
	sleeping.Send(Q("select pg_sleep(600)"))
	admin := pg.Connect(t, pgtest.Superuser, db)
	fixture.AwaitBackend(t, admin, "wait_event = 'PgSleep'")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Server.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("shutdown with a transaction open: %v", err)
	}
	p.Server.Close()
	for _, c := range []*wiretest.Conn{open, sleeping} {
		if f := fixture.FatalError(t, c.Rest()); f['C'] != "57P01" {
			t.Errorf("a session that was closed said %v, want 57P01", f)
		}
	}
	var n int
	fixture.Eventually(t, "the open transaction is gone", func() bool {
		err := admin.QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = $1 and state = 'idle in transaction'", db).Scan(&n)
		return err == nil && n == 0
	})
	if err := admin.QueryRow(t.Context(), "select count(*) from t").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows of a transaction that never committed, %v", n, err)
	}
	p.Server.Close() // twice is fine
}

// TestShutdownUnderLoadLosesNoAnswer: what a client was not told of was not
// done, and the goodbye comes behind the last answer.
func TestShutdownUnderLoadLosesNoAnswer(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	db := pg.Database(t)
	pg.Exec(t, pgtest.App, db, "create table t (round int, client int, n int)")
	admin := pg.Connect(t, pgtest.Superuser, db)
	const rounds, clients = 3, 6
	for round := range rounds {
		p := fixture.NewProxy(t, pg, nil)
		fixture.LeaderConn(t, p, db).Close()
		var answered [clients]int
		var wg sync.WaitGroup
		started := make(chan struct{}, clients)
		for i := range clients {
			c := fixture.LeaderConn(t, p, db)
			wg.Go(func() { answered[i] = insertUntilGoodbye(t, c, round, i, started) })
		}
		for range clients {
			<-started
		}
		if err := p.Server.Shutdown(t.Context()); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		wg.Wait()
		for i, want := range answered {
			var got int
			if err := admin.QueryRow(t.Context(), "select count(*) from t where round = $1 and client = $2", round, i).Scan(&got); err != nil || got != want {
				t.Errorf("round %d, client %d: %d rows, %d answers, %v", round, i, got, want, err)
			}
		}
	}
}

// insertUntilGoodbye inserts row after row until the proxy says goodbye, and
// returns how many were answered.
func insertUntilGoodbye(t *testing.T, c *wiretest.Conn, round, client int, started chan<- struct{}) (answered int) {
	defer c.Close()
	for n := 0; ; n++ {
		sql := "insert into t values (" + strconv.Itoa(round) + "," + strconv.Itoa(client) + "," + strconv.Itoa(n) + ")"
		if _, err := c.Write(Q(sql)); err != nil {
			return answered
		}
		for at := 0; ; at++ {
			m, err := c.Next()
			switch {
			case err != nil:
				t.Errorf("client %d: closed without a goodbye: %v", client, err)
				return answered
			case m.Type == 'E' && at == 0 && m.Fields()['C'] == "57P01":
				return answered
			case m.Type != []byte("CZ")[min(at, 1)]:
				t.Errorf("client %d: message %d of an answer is %v", client, at, m)
				return answered
			}
			if m.Type == 'C' {
				answered++
			}
			if m.Type == 'Z' {
				break
			}
		}
		if n == 3 {
			started <- struct{}{}
		}
	}
}

// TestCloseDuringStartups: the time of a shutdown may be over before the clients that have not
// begun are refused.
func TestCloseDuringStartups(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	db := pg.Database(t)
	for range 5 {
		p := fixture.NewProxy(t, pg, nil)
		var asked []*wiretest.Conn
		for range 8 {
			c := wiretest.Dial(t, p.Addr)
			c.Send(wiretest.Startup("user", "cleartext_user", "database", db))
			c.Until('R')
			asked = append(asked, c)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Server.Shutdown(over); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("shutdown: %v", err)
		}
		p.Server.Close()
		for _, c := range asked {
			_ = c.Close()
		}
	}
}
