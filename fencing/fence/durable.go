package fence

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/fencepost/fencepost/fencing"
)

// A grant whose wait for the synchronous standbys was cancelled can be read on the primary
// like any other one, and a failover to such a standby loses it. It was announced to no one. So what was
// read proves nothing about a database that does not have it, until the standbys are known to have
// it.

// confirmPatience is how long Record waits for that.
const confirmPatience = 100 * time.Millisecond

// cancelPatience is how long a server may take to cancel the wait of AwaitStandbys.
const cancelPatience = time.Second

// confirmSQL reads the grants of the fences $1, and writes to the write-ahead log. Its commit
// follows theirs there. Once the synchronous standbys have confirmed it, they have these grants.
const confirmSQL = `WITH written AS MATERIALIZED (
		SELECT fencepost.secure(), pg_catalog.pg_logical_emit_message(true, 'fencepost', 'confirm'))
	SELECT f.id, f.epoch, coalesce(f.incarnation, '') FROM fencepost.fence f, written WHERE f.id = ANY ($1)`

// grantID identifies a grant of a fence. The incarnation is "" if an operator took the lead from
// everyone.
type grantID struct {
	epoch       fencing.Epoch
	incarnation string
}

// confirmedGrants are the last grants of which it is known that a failover to a synchronous standby
// does not lose them.
type confirmedGrants struct {
	mu    sync.Mutex
	known map[int32]grantID // by fence
}

func (c *confirmedGrants) note(fence int32, g grantID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[fence] = g
}

func (c *confirmedGrants) has(fence int32, g grantID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[fence] == g
}

// confirmed reports whether the standbys are known to have a grant that was read.
func (f *Fence) confirmed(ctx context.Context, g grantID) bool {
	if f.db.confirmed.has(f.id, g) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, confirmPatience)
	defer cancel()
	durable, err := f.db.confirms.ask(ctx, f.id)
	return err == nil && durable == g // after an error it is not known, and will be asked again
}

// confirm reads the grants of these fences once the standbys have confirmed them.
func (d *Database) confirm(ctx context.Context, fences []int32) (map[int32]grantID, error) {
	conn, err := d.Pool().Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	pg := conn.Conn().PgConn()
	forgetNotices(pg)
	rows, _ := conn.Query(ctx, confirmSQL, fences)
	durable := map[int32]grantID{}
	var fence int32
	var g grantID
	_, err = pgx.ForEachRow(rows, []any{&fence, &g.epoch, &g.incarnation}, func() error {
		durable[fence] = g
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case isUnconfirmed(pg):
		return nil, ErrUnconfirmed
	}
	for fence, g := range durable {
		d.confirmed.note(fence, g)
	}
	return durable, nil
}

// awaitStandbysSQL commits something that the synchronous standbys have to confirm.
const awaitStandbysSQL = `BEGIN; SET LOCAL synchronous_commit = on; SELECT pg_catalog.pg_logical_emit_message(true, 'fencepost', 'confirm'); COMMIT`

// AwaitStandbys returns once the synchronous standbys have confirmed everything that was committed
// before the call. It uses a connection of its own with this configuration, and writes to the
// write-ahead log. If they have not confirmed it when ctx ends, the error is ErrUnconfirmed, and
// nothing waits at the server any more.
func AwaitStandbys(ctx context.Context, cfg *pgx.ConnConfig) error {
	cfg = cfg.Copy()
	cfg.OnNotice = keepNotice
	cfg.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: cancelPatience}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // whatever it has to say is known by now
	_, err = conn.PgConn().Exec(ctx, awaitStandbysSQL).ReadAll()
	switch {
	case isUnconfirmed(conn.PgConn()), ctx.Err() != nil:
		return ErrUnconfirmed
	case err != nil:
		return fmt.Errorf("commit what the synchronous standbys have to confirm: %w", err)
	}
	return nil
}

// Durable runs statements that an operator relies on once they have returned. Scan returns when the
// synchronous standbys have what the statement has written; while it waits for them, that is
// reported as for a grant (Config.Blocked), of no resource. After ErrUnconfirmed the statement has
// had its effect, which a failover may lose, because the wait was cancelled: ctx has ended, or
// someone has cancelled it.
type Durable struct{ db *Database }

// Durable returns what runs such statements.
func (d *Database) Durable() Durable { return Durable{d} }

// errDurableUnknown means that the connection was lost after a statement was sent.
var errDurableUnknown = errors.New("the connection was lost, and this may have been done")

// QueryRow returns the row of a statement, which runs when the row is scanned.
func (d Durable) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return durableRow(func(into []any) error {
		f := &Fence{db: d.db}
		w := &blockers{fence: f, log: d.db.log, began: time.Now()}
		if err := f.attempt(ctx, w, into, sql, args); err != nil {
			w.gaveUp(ctx, err)
			if err = d.db.Explain(err); Unanswered(err) {
				return fmt.Errorf("%w: %w", errDurableUnknown, err)
			}
			return err
		}
		w.report(nil)
		return nil
	})
}

type durableRow func(into []any) error

// Scan implements pgx.Row.
func (r durableRow) Scan(into ...any) error { return r(into) }
