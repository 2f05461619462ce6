package migrations

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrUnconfirmed means that the schema was migrated, and that a failover may lose that.
var ErrUnconfirmed = errors.New("the schema is migrated here, but no standby of synchronous_standby_names has confirmed that: " +
	"the wait for one was cancelled. Run fencepost migrate again, which waits again")

// waitsSQL returns the setting if the backend $1 waits for it.
const waitsSQL = `SELECT pg_catalog.current_setting('synchronous_standby_names') FROM pg_catalog.pg_stat_activity
	WHERE pid OPERATOR(pg_catalog.=) $1 AND wait_event OPERATOR(pg_catalog.=) 'SyncRep'`

// waitsEvery is how often it is asked whether a commit waits.
const waitsEvery = time.Second

// Waits follows whether the commits of one connection wait for synchronous standbys.
type Waits struct {
	say func(why string)

	mu        sync.Mutex
	names     string // what the connection waits for, "" for nothing
	cancelled bool   // a wait was
}

// NewWaits returns a Waits that calls say when a commit begins to wait.
func NewWaits(say func(why string)) *Waits { return &Waits{say: say} }

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
// that a commit had its effect if it waited, or ErrUnconfirmed.
func (w *Waits) During(ctx context.Context, conn *pgx.Conn, do func() error) error {
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	cfg, pid := conn.Config(), int32(conn.PgConn().PID())
	watch.Go(func() { w.watch(watching, cfg, pid) })
	err := do()
	stop()
	watch.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil && w.names != "":
		return fmt.Errorf("%w; the last step is recorded here, and waits for a standby of synchronous_standby_names = '%s': run fencepost migrate again", err, w.names)
	case err == nil && w.cancelled:
		return ErrUnconfirmed
	}
	return err
}

// watch asks, over a connection of its own, what the backend waits for, until ctx ends. It
// connects when the migration takes long.
func (w *Waits) watch(ctx context.Context, cfg *pgx.ConnConfig, pid int32) {
	cfg.OnNotice = nil
	var conn *pgx.Conn
	closeConn := func() {
		if conn != nil {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), waitsEvery)
			defer cancel()
			_ = conn.Close(closing) // nothing depends on it any more
			conn = nil
		}
	}
	defer closeConn()
	tick := time.NewTicker(waitsEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		names, err := "", error(nil)
		if conn == nil {
			conn, err = pgx.ConnectConfig(ctx, cfg)
		}
		if err == nil {
			err = conn.QueryRow(ctx, waitsSQL, pid).Scan(&names)
		}
		switch {
		case err == nil, errors.Is(err, pgx.ErrNoRows):
			w.waits(names)
		default: // asked again with the next tick; the migration itself shows what is wrong
			closeConn()
		}
	}
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
