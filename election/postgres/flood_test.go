package postgres_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/postgres"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// counter counts the statements of a pool.
type counter struct{ n atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// recheck is how often the lease is read in any case.
const recheck = 5 * time.Second

// counted returns a provider whose statements are counted.
func counted(t *testing.T, server *pgtest.Server, db string) (*postgres.Provider, *counter) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(server.DSN(pgtest.Control, db))
	if err != nil {
		t.Fatal(err)
	}
	count := &counter{}
	cfg.ConnConfig.Tracer = count
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	p, err := postgres.New(postgres.Config{Pool: pool, Logger: zaptest.NewLogger(t), Recheck: recheck})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p, count
}

// listening reports whether a session of the database is listening.
func listening(t *testing.T, server *pgtest.Server, db string) bool {
	t.Helper()
	var n int
	row := server.Connect(t, pgtest.Superuser, db).QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = $1 AND usename = $2 AND state = 'idle' AND query ~* 'listen'`, db, pgtest.Control)
	if err := row.Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// Everyone may send notifications. Those of others make no proxy read its leases, and
// do not delay the notification of a release.
func TestNotificationsOfOthersWakeNoOne(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	db := server.Database(t)
	p, count := counted(t, server, db)
	held := bid("a")
	held.TTL = time.Minute // nothing is due except the periodic read
	other := server.Connect(t, pgtest.App, db)
	// A notification may be lost if the server is slow, so one of a few must arrive before the periodic read, which comes
	// every 5 s.
	for try := 1; ; try++ {
		took := releaseInAFlood(t, p, held, count, other, func() bool { return listening(t, server, db) })
		if took < 2*time.Second {
			return
		}
		if try == 5 {
			t.Fatalf("the release was seen after %v", took)
		}
	}
}

// releaseInAFlood acquires a lease, and releases it while other floods the channel. It returns how long a watch took to
// see that.
func releaseInAFlood(t *testing.T, p *postgres.Provider, held elector.AcquireRequest, count *counter, other *pgx.Conn, listens func() bool) time.Duration {
	t.Helper()
	lease := mustAcquire(t, p, held)
	ctx := within(t, patience)
	seen, err := watch(ctx, p, elector.Observation{})
	if err != nil {
		t.Fatal(err)
	}
	watched := make(chan time.Time, 1)
	go func() {
		if _, err := watch(ctx, p, seen); err != nil {
			t.Errorf("watch: %v", err)
		}
		watched <- time.Now()
	}()
	for !listens() {
		if ctx.Err() != nil {
			t.Fatal("no session is listening")
		}
		time.Sleep(5 * time.Millisecond)
	}
	before, began, rounds := count.n.Load(), time.Now(), 0
	flood := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end) || rounds < 10; rounds++ {
			if _, err := other.Exec(t.Context(), "NOTIFY fencepost_lease, 'billing'; NOTIFY fencepost_lease"); err != nil {
				t.Fatal(err)
			}
		}
	}
	flood(time.Second)
	// The first read after LISTEN, one that was due anyway, and the provider's own notification
	// with the read that follows.
	if asked := count.n.Load() - before; asked > 4+int64(time.Since(began)/recheck) {
		t.Errorf("%d notifications of others: %d statements", 2*rounds, asked)
	}
	released := time.Now()
	if err := p.Release(ctx, lease, elector.ReasonLeft, 0); err != nil {
		t.Fatal(err)
	}
	flood(100 * time.Millisecond)
	return (<-watched).Sub(released)
}

// TestLeasesGoOnWhileTheNotificationQueueIsFull: any SQL user can fill the queue, from
// any database of the server, and a transaction that notifies then fails at commit.
func TestLeasesGoOnWhileTheNotificationQueueIsFull(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pgtest.WithBinaries(pgtest.Binaries(t, 18)), pgtest.WithConfig(map[string]string{"max_notify_queue_pages": "64"}))
	db, elsewhere := server.Database(t), server.Database(t)
	p, _ := counted(t, server, db)
	lease := mustAcquire(t, p, bid("a"))
	slow := server.Connect(t, pgtest.App, elsewhere)
	for _, sql := range []string{"LISTEN x", "BEGIN", "SELECT 1"} { // it has not read them, so they stay in the queue
		if _, err := slow.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	sender := server.Connect(t, pgtest.App, elsewhere)
	full := false
	for range 1000 {
		if _, err := sender.Exec(t.Context(), "SELECT pg_notify('x', g || repeat('y', 7000)) FROM generate_series(1, 10) g"); err != nil {
			full = true
			break
		}
	}
	if !full {
		t.Fatal("the queue did not fill up")
	}
	ctx := within(t, patience)
	if err := p.Release(ctx, lease, elector.ReasonLeft, 0); err != nil {
		t.Errorf("release: %v", err)
	}
	if err := p.Renew(ctx, mustAcquire(t, p, bid("b"))); err != nil {
		t.Errorf("renew: %v", err)
	}
}
