package system

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAWaitingWorkerWhoseServerIsGoneDoesNotWaitOn: it would be given the lease when
// its turn comes, but could not use it. It is told what Postgres said, and nothing of the
// fence, with which nothing is wrong.
func TestAWaitingWorkerWhoseServerIsGoneDoesNotWaitOn(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p := h.proxy()
	leader := h.join(p, "leader", "campaign", "wait")
	leader.must("INSERT INTO work VALUES ('before')")
	waits, ended, once := make(chan bool), make(chan error, 1), sync.Once{}
	config, err := pgx.ParseConfig(h.dsn(p, "waiter", "campaign", "wait"))
	if err != nil {
		t.Fatal(err)
	}
	config.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) { once.Do(func() { close(waits) }) } // for whom it waits
	ctx, cancel := context.WithTimeout(t.Context(), 2*process.Patience)
	defer cancel()
	go func() {
		conn, err := pgx.ConnectConfig(ctx, config)
		if err == nil {
			_ = conn.Close(ctx)
		}
		ended <- err
	}()
	select {
	case <-waits:
	case err := <-ended:
		t.Fatalf("it did not wait: %v", err)
	}
	pid := ask[uint32](h, "SELECT pid FROM pg_stat_activity WHERE usename = $1 AND datname = $2 AND pid <> $3",
		pgtest.App, h.db, int32(leader.PgConn().PID()))
	ask[bool](h, "SELECT pg_terminate_backend($1)", int32(pid))
	select {
	case err := <-ended:
		if f := failureOf(err); f == nil || f.Code != "57P01" || strings.Contains(f.Message+f.Hint, "fence") {
			t.Errorf("the waiting worker was told: %v (%+v); want 57P01", err, f)
		}
	case <-time.After(process.Patience):
		t.Error("it is still waiting")
		leader.leave()
		<-ended
	}
}

// TestNothingIsLedWhilePostgresIsFrozen uses Consul, which goes on confirming the lease.
func TestNothingIsLedWhilePostgresIsFrozen(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "consul", onServer(pgtest.Start(t)))
	p := h.proxy()
	h.join(p, "leader", "campaign", "wait")
	h.awaitState("led", "leader", p)
	h.pg.Freeze(t)
	h.awaitState("unknown", "", p)
	h.pg.Thaw(t)
	h.awaitState("led", "leader", p)
}

// TestServeEndsSoonWhilePostgresIsFrozen ends a proxy with a worker in a transaction and one
// whose backend is registered, while nothing answers.
func TestServeEndsSoonWhilePostgresIsFrozen(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", onServer(pgtest.Start(t)), with("DRAIN_TIMEOUT=1s"))
	p := h.proxy()
	h.join(p, "leader", "campaign", "wait").must("BEGIN", "INSERT INTO work VALUES ('leader')")
	other := h.join(p, "other", "resource", "another", "campaign", "wait")
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = other.exec("DO $$BEGIN PERFORM pg_sleep(600); END$$")
	}()
	process.Eventually(t, process.Patience, "both leaders' backends to be registered", func() bool {
		return ask[int](h, "SELECT count(*) FROM fencepost.running") == 2
	})
	h.pg.Freeze(t)
	process.Eventually(t, process.Patience, "the proxy to notice", func() bool {
		code, _ := p.Get(t, "/readyz")
		return code == http.StatusServiceUnavailable
	})
	p.Signal(t, syscall.SIGTERM)
	p.Wait(t)
	<-over
}

// TestSafetyAProxyThatIsCutOffFromPostgres: Consul would confirm the lease of its leader for as long as the proxy asks for
// that, so the proxy gives the lease back, and a worker of another proxy leads. What arrives late does not commit.
func TestSafetyAProxyThatIsCutOffFromPostgres(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "consul", with("LEASE_TTL=6s"))
	var cut atomic.Bool
	mended := make(chan struct{})
	mend := sync.OnceFunc(func() { close(mended) })
	held := func(b []byte) []byte {
		if cut.Load() {
			<-mended
		}
		return b
	}
	relay := fixture.NewRelay(t, "tcp", h.pg.Addr(), func() fixture.Passing { return fixture.Passing{ToServer: held, ToClient: held} })
	t.Cleanup(mend) // before the relay waits for its connections
	p, q := h.proxy("UPSTREAM_ADDRESS="+relay.Addr), h.proxy()
	former := h.join(p, "former", "campaign", "wait")
	former.must("INSERT INTO work VALUES ('former')")
	next := h.join(q, "next")
	cut.Store(true)
	late := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*process.Patience)
		defer cancel()
		_, err := former.Exec(ctx, "INSERT INTO work VALUES ('late')")
		late <- err
	}()
	process.Eventually(t, process.Patience, "a worker of the other proxy to lead", func() bool { return next.exec("INSERT INTO work VALUES ('next')") == nil })
	mend()
	if err := <-late; stateOf(err) != fencing.StateSuperseded {
		t.Errorf("the late write of the former leader: %v, want %s", err, fencing.StateSuperseded)
	}
	if got := h.works(); !slices.Equal(got, []string{"former", "next"}) {
		t.Errorf("written: %v", got)
	}
}
