package evidence

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// blocksAtOnce is how many blocks one statement reads: 64 MiB, if a block has 8 KiB.
const blocksAtOnce = 8192

// Settled are the epochs whose rows need not be distinguished by their transactions: those of
// transactions below the given id.
type Settled map[int64]Xid

// All means that the rows of an epoch need not be distinguished at all.
const All = Xid(math.MaxInt64)

// Rows are rows of a table with the same stamp.
type Rows struct {
	Stamp *int64 // nil: none
	// Xid is the transaction that wrote them, nil if they are settled.
	Xid   *Xid
	Count int64
}

// Read reads the rows of a table, and passes them to each in groups, the same group perhaps
// several times. Rows whose stamp is not among the settled epochs are distinguished by their
// transactions. It runs a statement for each 64 MiB of the table. A row that is overwritten
// meanwhile may be missing, because its new version is somewhere else.
func (s *Session) Read(ctx context.Context, t Table, settled Settled, each func(Rows)) error {
	epochs, below := make([]int64, 0, len(settled)), make([]int64, 0, len(settled))
	for epoch, xid := range settled {
		epochs, below = append(epochs, epoch), append(below, int64(xid))
	}
	for first := int64(0); first < t.Blocks; first += blocksAtOnce {
		err := s.readBlocks(ctx, t, fmt.Sprintf(`SELECT r.stamp, CASE WHEN r.stamp IS NOT NULL AND coalesce(r.x >= e.below, true) THEN r.x END, count(*)
			FROM (SELECT t.%s AS stamp, %s AS x FROM ONLY %s t CROSS JOIN %s WHERE t.ctid >= '(%d,0)' AND t.ctid < '(%d,0)') r
			LEFT JOIN unnest($1::bigint[], $2::bigint[]) e (epoch, below) ON e.epoch = r.stamp
			GROUP BY 1, 2`, pgx.Identifier{t.Stamp}.Sanitize(), fmt.Sprintf(full, "t"), t.Name, next, first, first+blocksAtOnce), each, epochs, below)
		if err != nil {
			return fmt.Errorf("read table %s: %w", t.Name, err)
		}
	}
	return nil
}

// readBlocks runs a statement of Read in a transaction of its own. The table alone is locked, because children are
// tables of their own here.
func (s *Session) readBlocks(ctx context.Context, t Table, sql string, each func(Rows), args ...any) error {
	tx, err := s.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // nothing was changed
	if err := LockHarmless(ctx, tx, t.Name, t.Stamp, true); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	var r Rows
	_, err = pgx.ForEachRow(rows, []any{&r.Stamp, &r.Xid, &r.Count}, func() error { each(r); return nil })
	return err
}

// Committed returns when a transaction was committed. ok is false if the server does not
// track that, or does not remember.
func (s *Session) Committed(ctx context.Context, x Xid) (at time.Time, ok bool, err error) {
	var tracked string
	if err := s.conn.QueryRow(ctx, "SELECT current_setting('track_commit_timestamp')").Scan(&tracked); err != nil {
		return time.Time{}, false, fmt.Errorf("read track_commit_timestamp: %w", err)
	}
	if tracked != "on" || x == 0 {
		return time.Time{}, false, nil
	}
	var when *time.Time
	if err := s.conn.QueryRow(ctx, "SELECT pg_xact_commit_timestamp($1::text::xid)", fmt.Sprint(uint32(x))).Scan(&when); err != nil {
		return time.Time{}, false, fmt.Errorf("read when transaction %d was committed: %w", x, err)
	}
	if when == nil {
		return time.Time{}, false, nil
	}
	return *when, true, nil
}
