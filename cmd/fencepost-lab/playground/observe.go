package playground

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

const (
	// lookEvery is how often the database is looked at.
	lookEvery = 200 * time.Millisecond
	// lookTimeout bounds one look.
	lookTimeout = 5 * time.Second
)

// observed is what the database has of the resource of the scene.
type observed struct {
	lease  Lease
	ledger []Grant // newest first
	notes  []Note  // newest first
	wrote  []Mark  // oldest first, of the last minute
	totals Totals
}

// observe looks at the database until ctx ends.
func (l *Lab) observe(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var conn *pgx.Conn
	defer func() { closeConn(conn) }()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		resource, began := l.mu.scene.resource, l.mu.began
		l.mu.Unlock()
		if resource == "" {
			continue
		}
		seen, err := l.look(ctx, &conn, resource, began)
		if ctx.Err() != nil {
			return
		}
		l.saw(resource, seen, err)
	}
}

// saw takes in what was seen of a resource, unless the scene has changed since.
func (l *Lab) saw(resource string, seen observed, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.scene.resource != resource {
		return
	}
	blind := ""
	if err != nil {
		blind, seen = err.Error(), l.mu.seen
	}
	if blind != l.mu.blind || !reflect.DeepEqual(seen, l.mu.seen) {
		l.mu.blind, l.mu.seen = blind, seen
		l.changedLocked()
	}
}

func closeConn(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // nothing was written
}

// look reads what the database has. It opens the connection if there is none, and drops it after an
// error.
func (l *Lab) look(ctx context.Context, conn **pgx.Conn, resource string, began time.Time) (seen observed, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if *conn == nil {
		if *conn, err = pgx.Connect(ctx, l.env.pg.DSN(scratch.Superuser, database)); err != nil {
			return seen, fmt.Errorf("look into the database: %w", err)
		}
	}
	at := func(t time.Time) int64 { return t.Sub(began).Milliseconds() }
	if seen, err = read(ctx, *conn, resource, at); err != nil {
		closeConn(*conn)
		*conn = nil
		return seen, fmt.Errorf("look into the database: %w", err)
	}
	return seen, nil
}

// read reads what there is of a resource. at turns a time into one of the scene.
func read(ctx context.Context, conn *pgx.Conn, resource string, at func(time.Time) int64) (seen observed, err error) {
	seen.ledger, err = rows(ctx, conn, func(row pgx.CollectableRow) (g Grant, err error) {
		var granted time.Time
		err = row.Scan(&g.Epoch, &g.Worker, &granted)
		g.At = at(granted)
		return g, err
	}, `SELECT epoch, coalesce(worker, ''), granted_at FROM fencepost.grants WHERE resource = $1 ORDER BY epoch DESC LIMIT $2`, resource, shownRows)
	if err != nil {
		return seen, err
	}
	seen.notes, err = rows(ctx, conn, func(row pgx.CollectableRow) (n Note, err error) {
		var written time.Time
		err = row.Scan(&n.N, &n.Worker, &n.Epoch, &written)
		n.At = at(written)
		return n, err
	}, `SELECT n, worker, epoch, at FROM notes WHERE resource = $1 ORDER BY at DESC LIMIT $2`, resource, shownRows)
	if err != nil {
		return seen, err
	}
	seen.wrote, err = rows(ctx, conn, func(row pgx.CollectableRow) (m Mark, err error) {
		var written time.Time
		err = row.Scan(&m.Worker, &written)
		m.Worker, m.At, m.Kind = nameOf(m.Worker), at(written), "wrote"
		return m, err
	}, `SELECT worker, at FROM notes WHERE resource = $1 AND at > clock_timestamp() - $2::interval ORDER BY at LIMIT $3`, resource, shownMarks, mostMarks)
	if err != nil {
		return seen, err
	}
	err = conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM notes WHERE resource = $1),
			(SELECT count(*) FROM (SELECT FROM notes WHERE resource = $1 GROUP BY n HAVING count(*) > 1) AS twice),
			(SELECT count(*) FROM fencepost.grants WHERE resource = $1)`, resource).
		Scan(&seen.totals.Written, &seen.totals.Twice, &seen.totals.Grants)
	if err != nil {
		return seen, err
	}
	if len(seen.ledger) > 0 {
		seen.lease.Epoch, seen.lease.Leader = seen.ledger[0].Epoch, seen.ledger[0].Worker
	}
	return seen, readLease(ctx, conn, resource, at, &seen.lease)
}

func rows[T any](ctx context.Context, conn *pgx.Conn, scan func(pgx.CollectableRow) (T, error), sql string, args ...any) ([]T, error) {
	result, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(result, scan)
}

// readLease reads the lease of the embedded elector, if it has awarded any.
func readLease(ctx context.Context, conn *pgx.Conn, resource string, at func(time.Time) int64, l *Lease) error {
	leases, err := conn.Query(ctx, `SELECT vacancy = 'held' AND expires_at > clock_timestamp(), coalesce(worker, ''), (extract(epoch FROM ttl) * 1000)::bigint, expires_at, renewals
		FROM fencepost.lease WHERE resource = $1 AND award > 0`, resource)
	if err != nil {
		return err
	}
	defer leases.Close()
	for leases.Next() {
		var until time.Time
		if err := leases.Scan(&l.Held, &l.Holder, &l.TTL, &until, &l.Renewals); err != nil {
			return err
		}
		l.Until = at(until)
	}
	return leases.Err()
}
