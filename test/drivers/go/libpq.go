package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/lib/pq"
)

// pqState returns the SQLSTATE of an error, "ok" for none.
func pqState(err error) string {
	var pqErr *pq.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &pqErr):
		return string(pqErr.Code)
	default:
		return err.Error()
	}
}

// pqDetail returns everything that the driver knows about an error.
func pqDetail(err error) any {
	var pqErr *pq.Error
	if !errors.As(err, &pqErr) {
		return fmt.Sprint(err)
	}
	return fields{
		"severity": pqErr.Severity, "code": pqErr.Code, "message": pqErr.Message, "detail": pqErr.Detail, "hint": pqErr.Hint,
		"position": pqErr.Position, "where": pqErr.Where, "table": pqErr.Table, "constraint": pqErr.Constraint, "routine": pqErr.Routine,
	}
}

// pqRunner holds the connection that stays open from the first scenario to the last, so
// that the worker does not leave between two of them.
type pqRunner struct{ other *sql.DB }

// openPq opens a pool that holds one connection at a time.
func openPq() (*sql.DB, error) {
	db, err := sql.Open("postgres", "")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

func runPq(part string) error {
	switch part {
	case "follower":
		return pqFollower()
	case "stale", "stale_transaction":
		return pqStale(part)
	case "stale_repeated":
		return pqStaleRepeated()
	case "pool":
		return pqPool(context.Background())
	case "scenarios":
	default:
		return fmt.Errorf("unknown part %q", part)
	}
	other, err := openPq()
	if err != nil {
		return err
	}
	defer other.Close()
	r := pqRunner{other}
	const oneByOne = "sends one message after the other"
	for _, s := range []struct {
		name string
		run  func(context.Context, *sql.Conn) (outcome, error)
		not  string
	}{
		{"types", r.types, ""},
		{"prepared", r.prepared, ""},
		{"batch", nil, oneByOne},
		{"batch_error", nil, oneByOne},
		{"pipeline", nil, oneByOne},
		{"multi", r.multi, ""},
		{"copy_in", r.copyIn, ""},
		{"copy_error", r.copyError, ""},
		{"copy_fail", nil, "closes the connection in order to give up a COPY"},
		{"copy_out", nil, "refuses COPY TO"},
		{"cursor", r.cursor, ""},
		{"savepoint", r.savepoint, ""},
		{"transaction", r.transaction, ""},
		{"error", r.errors, ""},
		{"cancel", r.cancel, ""},
		{"notify", r.notify, ""},
		{"large_object", r.largeObject, ""},
		{"alone", r.alone, ""},
	} {
		if s.run == nil {
			lacks(s.name, s.not)
			continue
		}
		report(s.name, func(ctx context.Context) (outcome, error) { return r.fresh(ctx, s.run) })
	}
	return nil
}

// fresh runs a scenario with fresh data and a fresh connection.
func (r pqRunner) fresh(ctx context.Context, run func(context.Context, *sql.Conn) (outcome, error)) (outcome, error) {
	if _, err := r.other.ExecContext(ctx, "SELECT reset_all()"); err != nil {
		return outcome{}, fmt.Errorf("reset: %w", err)
	}
	db, err := openPq()
	if err != nil {
		return outcome{}, err
	}
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return outcome{}, err
	}
	defer conn.Close()
	return run(ctx, conn)
}

// pqQueryer is a connection, a transaction or a pool.
type pqQueryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func pqValue[T any](ctx context.Context, q pqQueryer, text string, args ...any) (value T, err error) {
	err = q.QueryRowContext(ctx, text, args...).Scan(&value)
	return value, err
}

// pqInts reads a column of numbers.
func pqInts(ctx context.Context, q pqQueryer, text string, args ...any) ([]int, error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []int
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, rows.Err()
}

// pqOne checks that the connection still works.
func pqOne(ctx context.Context, q pqQueryer) any {
	one, err := pqValue[int](ctx, q, "SELECT 1")
	if err != nil {
		return err.Error()
	}
	return one
}

func (pqRunner) types(ctx context.Context, conn *sql.Conn) (outcome, error) {
	rows, err := conn.QueryContext(ctx, insertTyped, 7, int64(someInt64), "12.50", someText, true, []byte{0, 255, 39},
		someTime, `{"x": [1, null]}`, pq.Array([]int64{1, 2, 3}), someUUID, nil)
	if err != nil {
		return outcome{}, err
	}
	defer rows.Close()
	var names []string
	types, err := rows.ColumnTypes()
	if err != nil {
		return outcome{}, err
	}
	for _, t := range types {
		names = append(names, t.DatabaseTypeName())
	}
	if !rows.Next() {
		return outcome{}, fmt.Errorf("no row: %w", rows.Err())
	}
	var v typedRow
	var list []int64
	err = rows.Scan(&v.i4, &v.i8, &v.num, &v.txt, &v.yes, &v.raw, &v.at, &v.doc, pq.Array(&list), &v.uid, &v.nothing)
	return outcome{v.result(list), fields{"types": names}}, err
}

func (pqRunner) prepared(ctx context.Context, conn *sql.Conn) (outcome, error) {
	statement, err := conn.PrepareContext(ctx, addBalance)
	if err != nil {
		return outcome{}, err
	}
	defer statement.Close()
	var balances []int
	for i := 1; i <= 12; i++ {
		var balance int
		if err := statement.QueryRowContext(ctx, i, i%3+1).Scan(&balance); err != nil {
			return outcome{}, err
		}
		balances = append(balances, balance)
	}
	return outcome{result: fields{"balances": balances}}, nil
}

func (pqRunner) multi(ctx context.Context, conn *sql.Conn) (outcome, error) {
	rows, err := conn.QueryContext(ctx, "SELECT 1; UPDATE account SET balance = 107 WHERE id = 1 RETURNING balance; SELECT 2")
	if err != nil {
		return outcome{}, err
	}
	defer rows.Close()
	var numbers []int
	for more := true; more; more = rows.NextResultSet() {
		for rows.Next() {
			var n int
			if err := rows.Scan(&n); err != nil {
				return outcome{}, err
			}
			numbers = append(numbers, n)
		}
	}
	if err := rows.Err(); err != nil || len(numbers) != 3 {
		return outcome{}, fmt.Errorf("%d results: %w", len(numbers), err)
	}
	_, failed := conn.ExecContext(ctx, "BEGIN; INSERT INTO event (what) VALUES ('kept'); COMMIT; INSERT INTO event (what) VALUES ('lost'); SELECT 1/0")
	count, err := pqValue[int](ctx, conn, countEvents)
	return outcome{
		fields{"first": numbers[0], "balance": numbers[1], "last": numbers[2], "sqlstate": pqState(failed), "rows": count},
		fields{"error": pqDetail(failed)},
	}, err
}

// pqCopy copies rows into a table in a transaction, which is the only place where the
// driver supports it.
func pqCopy(ctx context.Context, conn *sql.Conn, statement string, rows [][]any) (int64, error) {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // fails if it was committed
	into, err := tx.PrepareContext(ctx, statement)
	if err != nil {
		return 0, err
	}
	for _, row := range rows {
		if _, err := into.ExecContext(ctx, row...); err != nil {
			return 0, err
		}
	}
	done, err := into.ExecContext(ctx)
	if err != nil {
		return 0, err
	}
	copied, err := done.RowsAffected()
	return copied, errors.Join(err, into.Close(), tx.Commit())
}

func (pqRunner) copyIn(ctx context.Context, conn *sql.Conn) (outcome, error) {
	var rows [][]any
	for i := range 1000 {
		rows = append(rows, []any{fmt.Sprint(i)})
	}
	copied, err := pqCopy(ctx, conn, "COPY event (what) FROM STDIN", rows)
	if err != nil {
		return outcome{}, err
	}
	count, err := pqValue[int](ctx, conn, countEvents)
	return outcome{result: fields{"copied": copied, "rows": count}}, err
}

func (pqRunner) copyError(ctx context.Context, conn *sql.Conn) (outcome, error) {
	_, failed := pqCopy(ctx, conn, "COPY account (id, balance) FROM STDIN", [][]any{{1000, 1}, {1, 1}})
	rows, err := pqValue[int](ctx, conn, countAccounts)
	return outcome{
		fields{"sqlstate": pqState(failed), "rows": rows, "usable": pqOne(ctx, conn)}, fields{"error": pqDetail(failed)},
	}, err
}
