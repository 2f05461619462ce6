package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/lib/pq"
)

func pqSeverity(err error) string {
	var pqErr *pq.Error
	if errors.As(err, &pqErr) {
		return pqErr.Severity
	}
	return ""
}

// withPqConn calls do with a connection of the pool.
func withPqConn(ctx context.Context, db *sql.DB, do func(conn *sql.Conn, pid int) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	pid, err := pqValue[int](ctx, conn, "SELECT pg_backend_pid()")
	if err != nil {
		return err
	}
	return do(conn, pid)
}

// pqFollower reads and tries to write while another worker leads.
func pqFollower() error {
	db, err := openPq()
	if err != nil {
		return err
	}
	defer db.Close()
	report("follower", func(ctx context.Context) (outcome, error) {
		result := fields{}
		var first int
		err := withPqConn(ctx, db, func(conn *sql.Conn, pid int) error {
			first = pid
			return pqRefusals(ctx, conn, result)
		})
		if err != nil {
			return outcome{}, err
		}
		err = withPqConn(ctx, db, func(conn *sql.Conn, pid int) (err error) {
			result["kept"] = pid == first
			result["again"], err = pqValue[int](ctx, conn, readBalance, 1)
			return err
		})
		return outcome{result: result}, err
	})
	return nil
}

// pqRefusals tries each way to write.
func pqRefusals(ctx context.Context, conn *sql.Conn, result fields) (err error) {
	if result["role"], err = pqValue[string](ctx, conn, "SHOW fencepost.role"); err != nil {
		return err
	}
	if result["read"], err = pqValue[int](ctx, conn, readBalance, 1); err != nil {
		return err
	}
	_, write := conn.ExecContext(ctx, setBalance, 0, 1)
	result["write"], result["severity"] = pqState(write), pqSeverity(write)
	_, simple := conn.ExecContext(ctx, "UPDATE account SET balance = 0")
	result["simple"] = pqState(simple)
	result["batch"] = "lacks"
	_, copied := pqCopy(ctx, conn, "COPY account (id, balance) FROM STDIN", [][]any{{1000, 1}})
	result["copy"] = pqState(copied)
	inside := inPqTx(ctx, conn, nil, func(tx *sql.Tx) error {
		if _, err := pqValue[int](ctx, tx, readBalance, 1); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, setBalance, 0, 1)
		return err
	})
	result["transaction"] = pqState(inside)
	return nil
}

// pqStale leads, reads, is superseded, writes, and asks its pool for another
// connection.
func pqStale(part string) error {
	db, err := openPq()
	if err != nil {
		return err
	}
	defer db.Close()
	report(part, func(ctx context.Context) (outcome, error) {
		result := fields{}
		var first int
		var stale error
		err := withPqConn(ctx, db, func(conn *sql.Conn, pid int) (err error) {
			first = pid
			stale, err = pqWriteLate(ctx, conn, part == "stale_transaction")
			return err
		})
		if err != nil {
			return outcome{}, err
		}
		result["sqlstate"], result["severity"] = pqState(stale), pqSeverity(stale)
		err = withPqConn(ctx, db, func(conn *sql.Conn, pid int) (err error) {
			result["broken"] = pid != first
			if result["role"], err = pqValue[string](ctx, conn, "SHOW fencepost.role"); err != nil {
				return err
			}
			_, again := conn.ExecContext(ctx, setBalance, 0, 1)
			result["again"] = pqState(again)
			return nil
		})
		return outcome{result: result}, err
	})
	return nil
}

// pqWriteLate returns the result of a superseded worker's write.
func pqWriteLate(ctx context.Context, conn *sql.Conn, inTransaction bool) (stale, err error) {
	if _, err := conn.ExecContext(ctx, setBalance, 101, 1); err != nil {
		return nil, fmt.Errorf("write as leader: %w", err)
	}
	var q pqQueryer = conn
	if inTransaction {
		tx, err := conn.BeginTx(ctx, nil)
		if err != nil {
			return nil, err
		}
		defer func() { _ = tx.Rollback() }() // it is lost with the connection
		q = tx
	}
	if _, err := pqValue[int](ctx, q, readBalance, 1); err != nil {
		return nil, err
	}
	if err := waitToBeSuperseded(); err != nil {
		return nil, err
	}
	_, stale = q.ExecContext(ctx, setBalance, 0, 1)
	return stale, nil
}

// pqStaleRepeated is pqStale, but lets database/sql choose the connection for the late
// write.
func pqStaleRepeated() error {
	db, err := openPq()
	if err != nil {
		return err
	}
	defer db.Close()
	report("stale_repeated", func(ctx context.Context) (outcome, error) {
		if _, err := db.ExecContext(ctx, setBalance, 101, 1); err != nil {
			return outcome{}, fmt.Errorf("write as leader: %w", err)
		}
		if _, err := pqValue[int](ctx, db, readBalance, 1); err != nil {
			return outcome{}, err
		}
		if err := waitToBeSuperseded(); err != nil {
			return outcome{}, err
		}
		_, late := db.ExecContext(ctx, setBalance, 0, 1)
		return outcome{result: fields{"sqlstate": pqState(late), "severity": pqSeverity(late)}}, nil
	})
	return nil
}
