package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lib/pq"
)

// pqState is the SQLSTATE of an error, "ok" without one.
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

// pqDetail is all that the driver knows of an error.
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

// pqRunner holds the connection that stays open from the first to the last
// scenario, so that the worker does not leave between two of them.
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
	case "scenarios":
	default:
		return fmt.Errorf("there is no part %q", part)
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

// fresh runs a scenario on fresh data and a fresh connection.
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

// pqOne checks that the connection goes on.
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

// pqCopy copies rows into a table in a transaction, the only place where the
// driver does that.
func pqCopy(ctx context.Context, conn *sql.Conn, statement string, rows [][]any) (int64, error) {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // an error if it was committed
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

// cancel ends the statement's context, at which the driver sends a cancel
// request and gives up the connection.
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

// largeObject uses the functions of SQL: the driver has no interface of its own.
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
		fd, err := pqValue[int](ctx, tx, "SELECT lo_open($1, 393216)", oid) // to read and to write
		if err != nil {
			return err
		}
		for _, step := range []struct{ name, text string }{
			{"size", "SELECT lo_lseek($1, 0, 2)"}, {"", "SELECT lo_lseek($1, 50005, 0)"}, {"read", "SELECT convert_from(loread($1, 5), 'UTF8')"},
			{"", "SELECT lo_truncate($1, 10)"}, {"truncated", "SELECT lo_lseek($1, 0, 2)"},
		} {
			value, err := pqValue[string](ctx, tx, step.text, fd)
			if err != nil {
				return fmt.Errorf("%s: %w", step.text, err)
			}
			if step.name != "" {
				result[step.name] = json.RawMessage(value)
			}
		}
		result["read"] = string(result["read"].(json.RawMessage))
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
