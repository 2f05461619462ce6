package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

func pgxSeverity(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Severity
	}
	return ""
}

// onePool returns a pool that holds one connection at a time.
func onePool(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig("pool_max_conns=1")
	if err != nil {
		return nil, err
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// pgxFollower reads and tries to write while another worker leads.
func pgxFollower(ctx context.Context) error {
	pool, err := onePool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	report("follower", func(ctx context.Context) (outcome, error) {
		result := fields{}
		var pid uint32
		err := pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
			pid = c.Conn().PgConn().PID()
			return pgxRefusals(ctx, c.Conn(), result)
		})
		if err != nil {
			return outcome{}, err
		}
		err = pool.AcquireFunc(ctx, func(c *pgxpool.Conn) (err error) {
			result["kept"] = c.Conn().PgConn().PID() == pid
			result["again"], err = pgxValue[int](ctx, c.Conn(), readBalance, 1)
			return err
		})
		return outcome{result: result}, err
	})
	return nil
}

// pgxRefusals tries each way to write.
func pgxRefusals(ctx context.Context, conn *pgx.Conn, result fields) (err error) {
	if result["role"], err = pgxValue[string](ctx, conn, "SHOW fencepost.role"); err != nil {
		return err
	}
	if result["read"], err = pgxValue[int](ctx, conn, readBalance, 1); err != nil {
		return err
	}
	_, write := conn.Exec(ctx, setBalance, 0, 1)
	result["write"], result["severity"] = pgxState(write), pgxSeverity(write)
	_, simple := conn.PgConn().Exec(ctx, "UPDATE account SET balance = 0").ReadAll()
	result["simple"] = pgxState(simple)
	var b pgx.Batch
	b.Queue(readBalance, 1)
	b.Queue(setBalance, 0, 1)
	result["batch"] = pgxState(conn.SendBatch(ctx, &b).Close())
	_, copied := conn.PgConn().CopyFrom(ctx, strings.NewReader("1000\t1\n"), "COPY account FROM STDIN")
	result["copy"] = pgxState(copied)
	inside := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, readBalance, 1); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, setBalance, 0, 1)
		return err
	})
	result["transaction"] = pgxState(inside)
	return nil
}

// pgxStale leads, reads, is superseded, writes, and asks its pool for another
// connection.
func pgxStale(ctx context.Context, part string) error {
	pool, err := onePool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	report(part, func(ctx context.Context) (outcome, error) {
		result := fields{}
		var pid uint32
		var stale error
		err := pool.AcquireFunc(ctx, func(c *pgxpool.Conn) (err error) {
			pid = c.Conn().PgConn().PID()
			stale, err = pgxWriteLate(ctx, c.Conn(), part == "stale_transaction")
			return err
		})
		if err != nil {
			return outcome{}, err
		}
		result["sqlstate"], result["severity"] = pgxState(stale), pgxSeverity(stale)
		err = pool.AcquireFunc(ctx, func(c *pgxpool.Conn) (err error) {
			result["broken"] = c.Conn().PgConn().PID() != pid
			if result["role"], err = pgxValue[string](ctx, c.Conn(), "SHOW fencepost.role"); err != nil {
				return err
			}
			_, again := c.Exec(ctx, setBalance, 0, 1)
			result["again"] = pgxState(again)
			return nil
		})
		return outcome{result: result}, err
	})
	return nil
}

// pgxWriteLate returns the result of a superseded worker's write.
func pgxWriteLate(ctx context.Context, conn *pgx.Conn, inTransaction bool) (stale, err error) {
	if _, err := conn.Exec(ctx, setBalance, 101, 1); err != nil {
		return nil, fmt.Errorf("write as leader: %w", err)
	}
	if inTransaction {
		if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
			return nil, err
		}
	}
	if _, err := pgxValue[int](ctx, conn, readBalance, 1); err != nil {
		return nil, err
	}
	if err := waitToBeSuperseded(); err != nil {
		return nil, err
	}
	_, stale = conn.Exec(ctx, setBalance, 0, 1)
	return stale, nil
}
