package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/lib/pq"
)

// inPqTx runs do in a transaction and commits it.
func inPqTx(ctx context.Context, conn *sql.Conn, options *sql.TxOptions, do func(*sql.Tx) error) error {
	tx, err := conn.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (pqRunner) cursor(ctx context.Context, conn *sql.Conn) (outcome, error) {
	var rows, sum, updated int
	err := inPqTx(ctx, conn, nil, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DECLARE c CURSOR FOR SELECT id FROM account ORDER BY id"); err != nil {
			return err
		}
		for {
			ids, err := pqInts(ctx, tx, "FETCH 7 FROM c")
			if err != nil || len(ids) == 0 {
				return err
			}
			for _, id := range ids {
				rows, sum = rows+1, sum+id
				if id%10 == 0 {
					if _, err := tx.ExecContext(ctx, setBalance, id, id); err != nil {
						return err
					}
					updated++
				}
			}
		}
	})
	return outcome{result: fields{"rows": rows, "sum": sum, "updated": updated}}, err
}

func (pqRunner) savepoint(ctx context.Context, conn *sql.Conn) (outcome, error) {
	var failed error
	err := inPqTx(ctx, conn, nil, func(tx *sql.Tx) error {
		for _, text := range []string{
			"UPDATE account SET balance = 1 WHERE id = 1", "SAVEPOINT a", "UPDATE account SET balance = 2 WHERE id = 2", "SELECT 1/0",
			"ROLLBACK TO a", "UPDATE account SET balance = 3 WHERE id = 3", "RELEASE a",
		} {
			_, err := tx.ExecContext(ctx, text)
			if text == "SELECT 1/0" {
				failed = err
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return outcome{}, err
	}
	balances, err := pqInts(ctx, conn, "SELECT balance FROM account WHERE id < 4 ORDER BY id")
	return outcome{fields{"sqlstate": pqState(failed), "balances": balances}, fields{"error": pqDetail(failed)}}, err
}

func (pqRunner) transaction(ctx context.Context, conn *sql.Conn) (outcome, error) {
	var levels []string
	for _, level := range []sql.IsolationLevel{sql.LevelSerializable, sql.LevelRepeatableRead} {
		err := inPqTx(ctx, conn, &sql.TxOptions{Isolation: level}, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, addBalance, 1, 1); err != nil {
				return err
			}
			shown, err := pqValue[string](ctx, tx, "SHOW transaction_isolation")
			levels = append(levels, shown)
			return err
		})
		if err != nil {
			return outcome{}, err
		}
	}
	refused := inPqTx(ctx, conn, &sql.TxOptions{ReadOnly: true}, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, setBalance, 0, 1)
		return err
	})
	balance, err := pqValue[int](ctx, conn, readBalance, 1)
	return outcome{
		fields{"levels": levels, "readonly": pqState(refused), "balance": balance}, fields{"error": pqDetail(refused)},
	}, err
}

func (pqRunner) errors(ctx context.Context, conn *sql.Conn) (outcome, error) {
	_, unknown := conn.ExecContext(ctx, "SELECT id, nosuch FROM account")
	_, positioned := conn.ExecContext(ctx, "SELECT nosuch FROM account WHERE id = $1", 1)
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return outcome{}, err
	}
	if _, err := tx.ExecContext(ctx, insertEvent, "lost"); err != nil {
		return outcome{}, err
	}
	_, twice := tx.ExecContext(ctx, duplicate)
	_, aborted := tx.ExecContext(ctx, "SELECT 1")
	committed := tx.Commit()
	rows, err := pqValue[int](ctx, conn, countEvents)
	var constraint any
	if d, ok := pqDetail(twice).(fields); ok {
		constraint = d["constraint"]
	}
	return outcome{
		fields{"sqlstate": pqState(unknown), "duplicate": pqState(twice), "constraint": constraint, "aborted": pqState(aborted), "rows": rows},
		fields{"errors": []any{pqDetail(unknown), pqDetail(positioned), pqDetail(twice), pqDetail(aborted)}, "commit": fmt.Sprint(committed)},
	}, err
}

// cancel cancels the statement's context, whereupon the driver sends a cancel request
// and gives up the connection.
func (r pqRunner) cancel(ctx context.Context, conn *sql.Conn) (outcome, error) {
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := conn.ExecContext(short, slowUpdate)
		failed <- err
	}()
	count := func(ctx context.Context) (int, error) { return pqValue[int](ctx, r.other, sleeping) }
	err := awaitSleep(ctx, count)
	cancel()
	canceled := <-failed
	if err != nil {
		return outcome{}, err
	}
	balance, err := pqValue[int](ctx, r.other, readBalance, 1)
	return outcome{
		fields{"sqlstate": pqState(canceled), "balance": balance, "usable": pqOne(ctx, r.other)}, fields{"error": pqDetail(canceled)},
	}, err
}

func (r pqRunner) notify(ctx context.Context, _ *sql.Conn) (outcome, error) {
	listener := pq.NewListener("", time.Second, time.Second, nil)
	defer listener.Close()
	if err := listener.Listen("news"); err != nil {
		return outcome{}, err
	}
	for _, payload := range []string{"one", "two"} {
		if _, err := r.other.ExecContext(ctx, "SELECT pg_notify('news', $1)", payload); err != nil {
			return outcome{}, err
		}
	}
	var payloads []string
	for len(payloads) < 2 {
		select {
		case n := <-listener.NotificationChannel():
			payloads = append(payloads, n.Extra)
		case <-ctx.Done():
			return outcome{}, ctx.Err()
		}
	}
	return outcome{fields{"payloads": payloads}, fields{"own": "the listener has a connection of its own"}}, nil
}

// largeObject uses SQL functions, because the driver has no interface for large
// objects.
func (pqRunner) largeObject(ctx context.Context, conn *sql.Conn) (outcome, error) {
	result := fields{}
	err := inPqTx(ctx, conn, nil, func(tx *sql.Tx) error {
		data := make([]byte, 100000)
		for i := range data {
			data[i] = byte('0' + i%10)
		}
		oid, err := pqValue[int64](ctx, tx, "SELECT lo_from_bytea(0, $1)", data)
		if err != nil {
			return err
		}
		fd, err := pqValue[int](ctx, tx, "SELECT lo_open($1, 393216)", oid) // to read and write
		if err != nil {
			return err
		}
		result["size"], err = pqValue[int](ctx, tx, "SELECT lo_lseek($1, 0, 2)", fd)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "SELECT lo_lseek($1, 50005, 0)", fd); err != nil {
			return err
		}
		read, err := pqValue[[]byte](ctx, tx, "SELECT loread($1, 5)", fd)
		if err != nil {
			return err
		}
		result["read"] = string(read)
		if _, err := tx.ExecContext(ctx, "SELECT lo_truncate($1, 10)", fd); err != nil {
			return err
		}
		result["truncated"], err = pqValue[int](ctx, tx, "SELECT lo_lseek($1, 0, 2)", fd)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "SELECT lo_unlink($1)", oid)
		return err
	})
	if err != nil {
		return outcome{}, err
	}
	_, gone := conn.ExecContext(ctx, "SELECT lo_get(4000000000)")
	result["gone"] = pqState(gone)
	return outcome{result: result}, nil
}

func (pqRunner) alone(ctx context.Context, conn *sql.Conn) (outcome, error) {
	for _, text := range []string{
		"VACUUM account", "CREATE INDEX CONCURRENTLY account_balance ON account (balance)", "CALL chunks(3)", "ANALYZE account",
	} {
		if _, err := conn.ExecContext(ctx, text); err != nil {
			return outcome{}, fmt.Errorf("%s: %w", text, err)
		}
	}
	rows, err := pqValue[int](ctx, conn, countEvents)
	if err != nil {
		return outcome{}, err
	}
	index, err := pqValue[int](ctx, conn, "SELECT count(*) FROM pg_indexes WHERE indexname = 'account_balance'")
	if err != nil {
		return outcome{}, err
	}
	_, err = conn.ExecContext(ctx, "DROP INDEX CONCURRENTLY account_balance")
	return outcome{result: fields{"rows": rows, "index": index}}, err
}
