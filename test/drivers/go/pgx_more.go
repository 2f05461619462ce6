package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

func (pgxRunner) cursor(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	var rows, sum, updated int
	var tags []string
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "DECLARE c CURSOR FOR SELECT id FROM account ORDER BY id"); err != nil {
			return err
		}
		for {
			fetched, err := tx.Query(ctx, "FETCH 7 FROM c")
			if err != nil {
				return err
			}
			ids, err := pgx.CollectRows(fetched, pgx.RowTo[int])
			if err != nil {
				return err
			}
			tags = append(tags, fetched.CommandTag().String())
			if len(ids) == 0 {
				return nil
			}
			for _, id := range ids {
				rows, sum = rows+1, sum+id
				if id%10 == 0 {
					tag, err := tx.Exec(ctx, setBalance, id, id)
					if err != nil {
						return err
					}
					updated += int(tag.RowsAffected())
				}
			}
		}
	})
	return outcome{fields{"rows": rows, "sum": sum, "updated": updated}, fields{"tags": tags}}, err
}

func (pgxRunner) savepoint(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	var failed error
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, setBalance, 1, 1); err != nil {
			return err
		}
		failed = pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error { // a savepoint
			if _, err := inner.Exec(ctx, setBalance, 2, 2); err != nil {
				return err
			}
			_, err := inner.Exec(ctx, "SELECT 1/0")
			return err
		})
		return pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
			_, err := inner.Exec(ctx, setBalance, 3, 3)
			return err
		})
	})
	if err != nil {
		return outcome{}, err
	}
	rows, err := conn.Query(ctx, "SELECT balance FROM account WHERE id < 4 ORDER BY id")
	if err != nil {
		return outcome{}, err
	}
	balances, err := pgx.CollectRows(rows, pgx.RowTo[int])
	return outcome{fields{"sqlstate": pgxState(failed), "balances": balances}, fields{"error": pgxDetail(failed)}}, err
}

func (pgxRunner) transaction(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	var levels []string
	for _, level := range []pgx.TxIsoLevel{pgx.Serializable, pgx.RepeatableRead} {
		err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, addBalance, 1, 1); err != nil {
				return err
			}
			var shown string
			err := tx.QueryRow(ctx, "SHOW transaction_isolation").Scan(&shown)
			levels = append(levels, shown)
			return err
		})
		if err != nil {
			return outcome{}, err
		}
	}
	refused := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, setBalance, 0, 1)
		return err
	})
	balance, err := pgxValue[int](ctx, conn, readBalance, 1)
	return outcome{
		fields{"levels": levels, "readonly": pgxState(refused), "balance": balance}, fields{"error": pgxDetail(refused)},
	}, err
}

func (pgxRunner) errors(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	_, unknown := conn.Exec(ctx, "SELECT id, nosuch FROM account")
	_, positioned := conn.Exec(ctx, "SELECT nosuch FROM account WHERE id = $1", 1)
	tx, err := conn.Begin(ctx)
	if err != nil {
		return outcome{}, err
	}
	if _, err := tx.Exec(ctx, insertEvent, "lost"); err != nil {
		return outcome{}, err
	}
	_, twice := tx.Exec(ctx, duplicate)
	_, aborted := tx.Exec(ctx, "SELECT 1")
	committed := tx.Commit(ctx)
	rows, err := pgxValue[int](ctx, conn, countEvents)
	var constraint any
	if d, ok := pgxDetail(twice).(fields); ok {
		constraint = d["constraint"]
	}
	return outcome{
		fields{"sqlstate": pgxState(unknown), "duplicate": pgxState(twice), "constraint": constraint, "aborted": pgxState(aborted), "rows": rows},
		fields{"errors": []any{pgxDetail(unknown), pgxDetail(positioned), pgxDetail(twice), pgxDetail(aborted)}, "commit": fmt.Sprint(committed)},
	}, err
}

// awaitSleep waits until a session of this database runs pg_sleep.
func awaitSleep(ctx context.Context, count func(context.Context) (int, error)) error {
	for {
		n, err := count(ctx)
		if err != nil || n > 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (r pgxRunner) cancel(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, slowUpdate)
		failed <- err
	}()
	err := awaitSleep(ctx, func(ctx context.Context) (int, error) { return pgxValue[int](ctx, r.other, sleeping) })
	if err == nil {
		err = conn.PgConn().CancelRequest(ctx)
	}
	canceled := <-failed
	if err != nil {
		return outcome{}, err
	}
	balance, err := pgxValue[int](ctx, conn, readBalance, 1)
	return outcome{
		fields{"sqlstate": pgxState(canceled), "balance": balance, "usable": pgxOne(ctx, conn)}, fields{"error": pgxDetail(canceled)},
	}, err
}

func (r pgxRunner) notify(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	if _, err := conn.Exec(ctx, "LISTEN news"); err != nil {
		return outcome{}, err
	}
	if _, err := r.other.Exec(ctx, "SELECT pg_notify('news', $1)", "one"); err != nil {
		return outcome{}, err
	}
	if _, err := conn.Exec(ctx, "NOTIFY news, 'two'"); err != nil {
		return outcome{}, err
	}
	var payloads []string
	var own []bool
	for range 2 {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return outcome{}, err
		}
		payloads, own = append(payloads, n.Payload), append(own, n.PID == conn.PgConn().PID())
	}
	return outcome{fields{"payloads": payloads}, fields{"own": own}}, nil
}

func (pgxRunner) largeObject(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	var o outcome
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		objects := tx.LargeObjects()
		oid, err := objects.Create(ctx, 0)
		if err != nil {
			return err
		}
		object, err := objects.Open(ctx, oid, pgx.LargeObjectModeRead|pgx.LargeObjectModeWrite)
		if err != nil {
			return err
		}
		if o.result, err = pgxUseLargeObject(object); err != nil {
			return err
		}
		return objects.Unlink(ctx, oid)
	})
	if err != nil {
		return o, err
	}
	_, gone := conn.Exec(ctx, "SELECT lo_get(4000000000)")
	o.result["gone"] = pgxState(gone)
	return o, nil
}

func pgxUseLargeObject(object *pgx.LargeObject) (fields, error) {
	data := make([]byte, 100000)
	for i := range data {
		data[i] = byte('0' + i%10)
	}
	if _, err := object.Write(data); err != nil {
		return nil, err
	}
	size, err := object.Tell()
	if err != nil {
		return nil, err
	}
	if _, err := object.Seek(50005, 0); err != nil {
		return nil, err
	}
	read := make([]byte, 5)
	if _, err := object.Read(read); err != nil {
		return nil, err
	}
	if err := object.Truncate(10); err != nil {
		return nil, err
	}
	truncated, err := object.Seek(0, 2)
	return fields{"size": size, "read": string(read), "truncated": truncated}, err
}

func (pgxRunner) alone(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	var tags []string
	for _, sql := range []string{
		"VACUUM account", "CREATE INDEX CONCURRENTLY account_balance ON account (balance)", "CALL chunks(3)", "ANALYZE account",
	} {
		tag, err := conn.Exec(ctx, sql)
		if err != nil {
			return outcome{}, fmt.Errorf("%s: %w", sql, err)
		}
		tags = append(tags, tag.String())
	}
	rows, err := pgxValue[int](ctx, conn, countEvents)
	if err != nil {
		return outcome{}, err
	}
	index, err := pgxValue[int](ctx, conn, "SELECT count(*) FROM pg_indexes WHERE indexname = 'account_balance'")
	if err != nil {
		return outcome{}, err
	}
	_, err = conn.Exec(ctx, "DROP INDEX CONCURRENTLY account_balance")
	return outcome{fields{"rows": rows, "index": index}, fields{"tags": tags}}, err
}
