// Package lockwait says for whom a connection to Postgres waits, while it waits for a lock, and who has locked a row.
package lockwait

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// every is how often it is asked.
	every = time.Second
	// patience is how long others may hold what a connection waits for, before that is said.
	patience = 2 * time.Second
)

// holdersSQL returns the process ids of the sessions that the backend $1 waits for, and describes them. The
// id of a prepared transaction is 0. It reads the function under pg_stat_activity, because any role can lock the view.
const holdersSQL = `SELECT coalesce(string_agg(b.pid::text, ',' ORDER BY b.pid), ''),
	coalesce(string_agg(CASE WHEN b.pid = 0 THEN 'a prepared transaction (pg_prepared_xacts names it)' WHEN a.pid IS NULL THEN format('backend %s', b.pid)
		ELSE format('backend %s of role "%s" (application "%s", %s, %s %s UTC)', b.pid, pg_get_userbyid(a.usesysid), a.application_name, coalesce(a.state, 'state unknown'),
			CASE WHEN a.xact_start IS NULL THEN 'connected since' ELSE 'in a transaction since' END,
			to_char(coalesce(a.xact_start, a.backend_start) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')) END, '; ' ORDER BY b.pid), '')
	FROM (SELECT DISTINCT u.pid FROM unnest(pg_blocking_pids($1)) u (pid)) b LEFT JOIN pg_stat_get_activity(NULL) a ON a.pid = b.pid`

// Follow calls look about once a second, with a connection of its own, until ctx ends. It connects when look
// is first due, and again after look has returned an error. Follow changes cfg.
func Follow(ctx context.Context, cfg *pgx.ConnConfig, look func(ctx context.Context, conn *pgx.Conn) error) {
	cfg.OnNotice = nil
	cfg.RuntimeParams["search_path"] = "pg_catalog,pg_temp"
	var conn *pgx.Conn
	closeConn := func() {
		if conn != nil {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), every)
			defer cancel()
			_ = conn.Close(closing) // nothing depends on it any more
			conn = nil
		}
	}
	defer closeConn()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		var err error
		if conn == nil {
			conn, err = pgx.ConnectConfig(ctx, cfg)
		}
		if err == nil {
			err = look(ctx, conn)
		}
		if err != nil { // looked again with the next tick
			closeConn()
		}
	}
}

// Waits follows for whom one connection waits. It is safe for concurrent use.
type Waits struct {
	say func(who string)

	mu    sync.Mutex
	since time.Time // when someone was first seen
	last  string    // who was seen last
	said  string    // the process ids of those who were said
}

// New returns a Waits that calls say with a description of those for whom the connection waits, when it has
// done so for two seconds, and again when they have changed.
func New(say func(who string)) *Waits { return &Waits{say: say} }

// Look asks over conn for whom the backend with this process id waits.
func (w *Waits) Look(ctx context.Context, conn *pgx.Conn, pid uint32) error {
	var pids, who string
	if err := conn.QueryRow(ctx, holdersSQL, int32(pid)).Scan(&pids, &who); err != nil {
		return err
	}
	if pids != "" && w.seen(pids, who, time.Now()) {
		w.say(who)
	}
	return nil
}

// seen records whom the connection waits for at this time. It reports whether that is to be said.
func (w *Waits) seen(pids, who string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		w.since = now
	}
	w.last = who
	if pids == w.said || now.Sub(w.since) < patience-every { // a look ago it began to wait at the latest
		return false
	}
	w.said = pids
	return true
}

// Last returns who was seen last, "" if no one was.
func (w *Waits) Last() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// During calls do, which uses conn, and follows meanwhile for whom it waits.
func (w *Waits) During(ctx context.Context, conn *pgx.Conn, do func() error) error {
	cfg, pid := conn.Config(), conn.PgConn().PID()
	following, stop := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() {
		Follow(following, cfg, func(ctx context.Context, conn *pgx.Conn) error { return w.Look(ctx, conn, pid) })
	})
	defer follower.Wait()
	defer stop()
	return do()
}
