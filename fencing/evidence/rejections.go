package evidence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/owner"
)

// Rejections counts statements that were refused or discarded and that have in common what
// is in front of Count. Names are empty if a connection named no resource.
type Rejections struct {
	Minute           time.Time // when it began; zero for the sum of several
	Database         string    // its name when they were recorded, if it has another one now
	Resource, Worker string
	User             string // the role that the connections logged in as
	Kind             string // discarded, or why they were refused
	Write            bool   // they were not provably reads
	SQLState         string
	Fingerprint      string // empty for texts that are not distinguished

	Count       int64
	First, Last time.Time
	Latest      Rejection
}

// Rejection is what is kept of one of them.
type Rejection struct {
	Epoch, Current int64  // the worker's and the newest, 0 for none
	Holder         string // of the newest, empty for no one and if it is not known
	Client, Proxy  string
	Statement      string // without literals
}

var (
	// ErrNoTable means that the database has no table for rejections.
	ErrNoTable = errors.New("the database has no table fencepost.rejections")
	// ErrUncertain means that no one knows whether the rows were recorded.
	ErrUncertain = errors.New("the connection broke while the rows were committed")
)

// These bound what waits in the server, so that an error says that nothing was changed.
// No one waits for a standby either: what a failover loses is in the audit log.
const prepareWrite = `SET LOCAL lock_timeout = '2s'; SET LOCAL statement_timeout = '3s'; SET LOCAL synchronous_commit = local`

// upsert adds to the rows that another batch or another proxy has made. Of the latest of two is
// kept what cannot be added.
var upsert = `INSERT INTO fencepost.rejections AS r
		(minute, database, resource, worker, login_role, kind, write, sqlstate, fingerprint, count, first_at, last_at, ` + strings.Join(ofLatest, ", ") + `)
	SELECT n.minute, current_database(), n.resource, n.worker, n.login_role, n.kind, n.write, n.sqlstate, n.fingerprint, n.count, n.first_at, n.last_at, n.` + strings.Join(ofLatest, ", n.") + `
	FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[], $6::boolean[], $7::text[], $8::text[], $9::bigint[], $10::timestamptz[], $11::timestamptz[],
		$12::bigint[], $13::bigint[], $14::text[], $15::text[], $16::text[], $17::text[])
		AS n (minute, resource, worker, login_role, kind, write, sqlstate, fingerprint, count, first_at, last_at, ` + strings.Join(ofLatest, ", ") + `)
	ORDER BY n.minute, n.resource COLLATE "C", n.worker COLLATE "C", n.login_role COLLATE "C", n.kind COLLATE "C", n.write, n.sqlstate COLLATE "C", n.fingerprint COLLATE "C"
	ON CONFLICT ON CONSTRAINT rejections_pkey DO UPDATE SET
		count = r.count + excluded.count, first_at = least(r.first_at, excluded.first_at), last_at = greatest(r.last_at, excluded.last_at)` + keepLatest()

// ofLatest are the columns of the latest rejection.
var ofLatest = []string{"epoch", "current_epoch", "current_worker", "client", "proxy", "statement"}

func keepLatest() string {
	var b strings.Builder
	for _, column := range ofLatest {
		fmt.Fprintf(&b, ",\n\t\t%[1]s = CASE WHEN excluded.last_at >= r.last_at THEN excluded.%[1]s ELSE r.%[1]s END", column)
	}
	return b.String()
}

// Record adds rows to the table of the database that conn is connected to as the control role, all
// or none of them. No two may have the same key. They are added in the order of their keys, so that
// two proxies that do so at the same time cannot deadlock. The error may be ErrNoTable,
// ErrUncertain or an *owner.ForeignError; after any other error, nothing was recorded.
func Record(ctx context.Context, conn *pgx.Conn, rows []Rejections) error {
	err := record(ctx, conn, rows, func(s string) string { return strings.ToValidUTF8(s, "?") })
	if strings.HasPrefix(stateOf(err), "22") { // the database's encoding lacks a character of theirs
		err = record(ctx, conn, rows, fencing.ASCII)
	}
	switch {
	case stateOf(err) == "42P01":
		return ErrNoTable
	case err != nil:
		return fmt.Errorf("record rejections: %w", err)
	}
	return nil
}

func record(ctx context.Context, conn *pgx.Conn, rows []Rejections, text func(string) string) error {
	var c columns
	for i := range rows {
		c.add(&rows[i], text)
	}
	return write(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, upsert, c.minute, c.resource, c.worker, c.user, c.kind, c.write, c.state, c.fingerprint, c.count, c.first, c.last,
			c.epoch, c.current, c.holder, c.client, c.proxy, c.statement)
		return err
	})
}

// columns are the rows of a batch, column by column.
type columns struct {
	minute, first, last                                                                []time.Time
	resource, worker, kind, state, fingerprint, holder, user, client, proxy, statement []string
	write                                                                              []bool
	count, epoch, current                                                              []int64
}

func (c *columns) add(r *Rejections, text func(string) string) {
	c.minute, c.first, c.last = append(c.minute, r.Minute), append(c.first, r.First), append(c.last, r.Last)
	c.write, c.count = append(c.write, r.Write), append(c.count, r.Count)
	c.epoch, c.current = append(c.epoch, r.Latest.Epoch), append(c.current, r.Latest.Current)
	for to, s := range map[*[]string]string{
		&c.resource: r.Resource, &c.worker: r.Worker, &c.kind: r.Kind, &c.state: r.SQLState, &c.fingerprint: r.Fingerprint,
		&c.holder: r.Latest.Holder, &c.user: r.User, &c.client: r.Latest.Client, &c.proxy: r.Latest.Proxy, &c.statement: r.Latest.Statement,
	} {
		*to = append(*to, text(s))
	}
}

// write runs do in a transaction with bounded waits.
func write(ctx context.Context, conn *pgx.Conn, do func(pgx.Tx) error) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // does nothing after Commit
	if _, err := tx.Exec(ctx, prepareWrite); err != nil {
		return fmt.Errorf("prepare the transaction: %w", err)
	}
	if _, err := owner.Mine(ctx, tx); errors.Is(err, owner.ErrNoSchema) {
		return ErrNoTable
	} else if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		if stateOf(err) == "" { // pgconn.SafeToRetry is not asked: it says yes also when the COMMIT was sent
			return fmt.Errorf("%w: %w", ErrUncertain, err)
		}
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// pruneLock is the advisory lock of whoever deletes old rows.
const pruneLock = 0x66656e6372656a65 // "fencreje"

const (
	// pruned is how many rows one transaction deletes at most.
	pruned = 5000
	// mostParts is how many such transactions there are at a time.
	mostParts = 20
)

// PruneRejections deletes the rows of minutes that are older than keep, in parts, and returns how
// many. It leaves the rest for the next time if there are very many, and everything if someone
// else is about it.
func PruneRejections(ctx context.Context, conn *pgx.Conn, keep time.Duration) (deleted int64, err error) {
	more := true
	for part := 0; part < mostParts && more; part++ {
		err = write(ctx, conn, func(tx pgx.Tx) error {
			var mine bool
			if err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", int64(pruneLock)).Scan(&mine); err != nil || !mine {
				more = false
				return err
			}
			tag, err := tx.Exec(ctx, `DELETE FROM fencepost.rejections d WHERE d.ctid = ANY (ARRAY(
				SELECT r.ctid FROM fencepost.rejections r WHERE r.minute < clock_timestamp() - $1::interval ORDER BY r.minute LIMIT $2))`, keep, pruned)
			deleted += tag.RowsAffected()
			more = tag.RowsAffected() == pruned
			return err
		})
		switch {
		case stateOf(err) == "42P01":
			return deleted, ErrNoTable
		case err != nil:
			return deleted, fmt.Errorf("delete old rejections: %w", err)
		}
	}
	return deleted, nil
}

// Wanted says which rejections to read. Empty fields do not restrict them.
type Wanted struct {
	Resource, Worker string
	Since            time.Time // the last of them came later
}

// rejections adds up the minutes.
const rejections = `SELECT DISTINCT ON (r.database, r.resource, r.worker, r.login_role, r.kind, r.write, r.sqlstate, r.fingerprint)
		coalesce(nullif(r.database, current_database()), ''), r.resource, r.worker, r.login_role, r.kind, r.write, r.sqlstate, r.fingerprint,
		(sum(r.count) OVER alike)::bigint, min(r.first_at) OVER alike, r.last_at,
		r.epoch, r.current_epoch, r.current_worker, r.client, r.proxy, r.statement
	FROM fencepost.rejections r
	WHERE ($1 = '' OR r.resource = $1) AND ($2 = '' OR r.worker = $2) AND r.minute > $3::timestamptz - interval '1 min' AND r.last_at >= $3
	WINDOW alike AS (PARTITION BY r.database, r.resource, r.worker, r.login_role, r.kind, r.write, r.sqlstate, r.fingerprint)
	ORDER BY r.database, r.resource, r.worker, r.login_role, r.kind, r.write, r.sqlstate, r.fingerprint, r.last_at DESC`

// Rejections returns what is recorded of the rejections, with the minutes added up. The error is
// ErrNoTable if the database has no table for it.
func (s *Session) Rejections(ctx context.Context, w Wanted) (all []Rejections, err error) {
	since := w.Since
	if since.IsZero() {
		since = time.Unix(0, 0) // an earlier time is none that Postgres subtracts from
	}
	err = s.asControl(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, rejections, w.Resource, w.Worker, since)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Rejections, err error) {
			l := &r.Latest
			err = row.Scan(&r.Database, &r.Resource, &r.Worker, &r.User, &r.Kind, &r.Write, &r.SQLState, &r.Fingerprint, &r.Count, &r.First, &r.Last,
				&l.Epoch, &l.Current, &l.Holder, &l.Client, &l.Proxy, &l.Statement)
			return r, err
		})
		return err
	})
	switch {
	case stateOf(err) == "42P01":
		return nil, ErrNoTable
	case err != nil:
		return nil, fmt.Errorf("read the rejections: %w", err)
	}
	return all, nil
}

// Epoch is an epoch of a resource.
type Epoch struct {
	Resource string
	Number   int64
}

// RefusedWrites returns how many writes were refused or discarded while each epoch was the current one, to the minute.
// The error is ErrNoTable if the database has no table for it.
func (s *Session) RefusedWrites(ctx context.Context) (map[Epoch]int64, error) {
	counts := make(map[Epoch]int64)
	err := s.asControl(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT r.resource, r.current_epoch, sum(r.count)::bigint FROM fencepost.rejections r WHERE r.write GROUP BY 1, 2")
		if err != nil {
			return err
		}
		var e Epoch
		var count int64
		_, err = pgx.ForEachRow(rows, []any{&e.Resource, &e.Number, &count}, func() error { counts[e] = count; return nil })
		return err
	})
	switch {
	case stateOf(err) == "42P01":
		return nil, ErrNoTable
	case err != nil:
		return nil, fmt.Errorf("count the refused writes: %w", err)
	}
	return counts, nil
}
