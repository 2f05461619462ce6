package system

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// styles are the ways in which a load writes an increment: always the rows of entries
// and the counter, atomically.
var styles = map[string]func(l *loader, ctx context.Context, value int64) error{
	"one statement, extended": func(l *loader, ctx context.Context, value int64) error {
		_, err := l.conn.Exec(ctx, `WITH e AS (INSERT INTO entries SELECT $1::text, $2::int, p, $3::bigint, $4::bigint FROM generate_series(1, 3) p)
			UPDATE counter SET value = $4`, l.plan.Worker, l.seq, l.epoch, value)
		return err
	},
	"a block in one message": func(l *loader, ctx context.Context, value int64) error {
		return l.simple(ctx, fmt.Sprintf("BEGIN; %s; UPDATE counter SET value = %d; COMMIT", l.insertAll(value), value))
	},
	"a block with savepoints": func(l *loader, ctx context.Context, value int64) error {
		return pgx.BeginFunc(ctx, l.conn, func(tx pgx.Tx) error {
			for part := range parts {
				if err := l.savepoint(ctx, tx, part, value); err != nil {
					return err
				}
			}
			_, err := tx.Exec(ctx, "UPDATE counter SET value = $1", value)
			return err
		})
	},
	"a serializable block": func(l *loader, ctx context.Context, value int64) error {
		return l.block(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable}, value)
	},
	"a pipeline": func(l *loader, ctx context.Context, value int64) error {
		var batch pgx.Batch
		for part := range parts {
			batch.Queue("INSERT INTO entries VALUES ($1, $2, $3, $4, $5)", l.plan.Worker, l.seq, part+1, l.epoch, value)
		}
		batch.Queue("UPDATE counter SET value = $1", value)
		return l.conn.SendBatch(ctx, &batch).Close()
	},
	"a procedure": func(l *loader, ctx context.Context, value int64) error {
		_, err := l.conn.Exec(ctx, "CALL increment($1, $2, $3, $4)", l.plan.Worker, l.seq, l.epoch, value)
		return err
	},
}

// allStyles returns the names of all styles, in a fixed order for the seed.
func allStyles() []string {
	return slices.Sorted(maps.Keys(styles))
}

func (l *loader) insertAll(value int64) string {
	return fmt.Sprintf("INSERT INTO entries SELECT '%s', %d, p, %d, %d FROM generate_series(1, 3) p", l.plan.Worker, l.seq, l.epoch, value)
}

func (l *loader) simple(ctx context.Context, sql string) error {
	return l.conn.PgConn().Exec(ctx, sql).Close()
}

// block writes row by row, with pauses in between.
func (l *loader) block(ctx context.Context, options pgx.TxOptions, value int64) error {
	return pgx.BeginTxFunc(ctx, l.conn, options, func(tx pgx.Tx) error {
		for part := range parts {
			if err := l.insert(ctx, tx, part, value); err != nil {
				return err
			}
			l.think()
		}
		_, err := tx.Exec(ctx, "UPDATE counter SET value = $1", value)
		return err
	})
}

// savepoint writes a row in a subtransaction, after one that is rolled back.
func (l *loader) savepoint(ctx context.Context, tx pgx.Tx, part int, value int64) error {
	if _, err := tx.Exec(ctx, "SAVEPOINT s"); err != nil {
		return err
	}
	if err := l.insert(ctx, tx, part, -1); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "ROLLBACK TO s"); err != nil {
		return err
	}
	l.think()
	return l.insert(ctx, tx, part, value)
}

func (l *loader) insert(ctx context.Context, tx pgx.Tx, part int, value int64) error {
	_, err := tx.Exec(ctx, "INSERT INTO entries VALUES ($1, $2, $3, $4, $5)", l.plan.Worker, l.seq, part+1, l.epoch, value)
	return err
}
