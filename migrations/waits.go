package migrations

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/lockwait"
)

// ErrUnconfirmed means that the schema was migrated, and that a failover may lose that.
var ErrUnconfirmed = errors.New("the schema is migrated here, but no standby of synchronous_standby_names has confirmed that: " +
	"the wait for one was cancelled. Run fencepost migrate again, which waits again")

// waitsSQL returns the setting if the backend $1 waits for it.
const waitsSQL = `SELECT pg_catalog.current_setting('synchronous_standby_names') FROM pg_catalog.pg_stat_activity
	WHERE pid OPERATOR(pg_catalog.=) $1 AND wait_event OPERATOR(pg_catalog.=) 'SyncRep'`

// Waits follows what one connection waits for: a lock that others hold, or synchronous standbys that have
// to confirm a commit.
type Waits struct {
	say   func(why string)
	locks *lockwait.Waits

	mu        sync.Mutex
	names     string // what the connection waits for, "" for nothing
	cancelled bool   // a wait was
}

// NewWaits returns a Waits that calls say when a commit begins to wait, and when a lock is waited for.
func NewWaits(say func(why string)) *Waits {
	return &Waits{say: say, locks: lockwait.New(func(who string) { say("the migration needs a lock that is held by " + who) })}
}

// Configure prepares the configuration of the connection that During is called with.
func (w *Waits) Configure(c *pgx.ConnConfig) {
	c.RuntimeParams["client_min_messages"] = "warning" // the one that OnNotice looks for
	c.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == "SyncRepWaitForLSN" {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.cancelled = true
		}
	}
}

// During calls do, which uses conn, and follows conn meanwhile. It returns do's error, which says
// that a commit had its effect if it waited, or who held a lock, or ErrUnconfirmed.
func (w *Waits) During(ctx context.Context, conn *pgx.Conn, do func() error) error {
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	cfg, pid := conn.Config(), conn.PgConn().PID()
	watch.Go(func() {
		lockwait.Follow(watching, cfg, func(ctx context.Context, conn *pgx.Conn) error { return w.look(ctx, conn, pid) })
	})
	err := do()
	stop()
	watch.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var locked *LockedError
	switch {
	case errors.As(err, &locked) && w.locks.Last() != "":
		return fmt.Errorf("%w; it is held by %s. Wait until that session has ended, or end it (SELECT pg_terminate_backend(...)), and run fencepost migrate again", err, w.locks.Last())
	case err != nil && w.names != "":
		return fmt.Errorf("%w; the migration is recorded here, and waits for a standby of synchronous_standby_names = '%s': run fencepost migrate again", err, w.names)
	case err == nil && w.cancelled:
		return ErrUnconfirmed
	}
	return err
}

// look asks over conn what the backend with this process id waits for.
func (w *Waits) look(ctx context.Context, conn *pgx.Conn, pid uint32) error {
	names := ""
	if err := conn.QueryRow(ctx, waitsSQL, int32(pid)).Scan(&names); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err // the migration itself shows what is wrong
	}
	w.waits(names)
	return w.locks.Look(ctx, conn, pid)
}

func (w *Waits) waits(names string) {
	w.mu.Lock()
	news := names != "" && names != w.names
	w.names = names
	w.mu.Unlock()
	if news {
		w.say(fmt.Sprintf("no standby of synchronous_standby_names = '%s' confirms what was written: start one, or change the setting", names))
	}
}
