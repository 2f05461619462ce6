package main

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const insertWork = "INSERT INTO work (what) VALUES ($1)"

// pgxPool works through pgxpool.
func pgxPool(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, "pool_max_conns=3")
	if err != nil {
		return err
	}
	defer pool.Close()
	work(func() string {
		_, err := pool.Exec(ctx, insertWork, "pgxpool")
		return networkState(err, pgxState)
	})
	return nil
}

// pqPool works through database/sql.
func pqPool(ctx context.Context) error {
	db, err := sql.Open("postgres", "")
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(3)
	db.SetMaxIdleConns(3)
	work(func() string {
		_, err := db.ExecContext(ctx, insertWork, "database/sql")
		return networkState(err, pqState)
	})
	return nil
}

// work calls insert for ever, three at a time, and prints what it returns. Each line on
// standard input makes it silent, or ends the silence.
func work(insert func() string) {
	var silent atomic.Bool
	var loops sync.WaitGroup
	for range 3 {
		loops.Go(func() {
			for ; ; time.Sleep(50 * time.Millisecond) {
				if !silent.Load() {
					printLine(fields{"scenario": "insert", "result": insert()})
				}
			}
		})
	}
	for {
		if _, err := input.ReadString('\n'); err != nil {
			break
		}
		silent.Store(!silent.Load())
	}
	loops.Wait()
}

// networkState returns the name of an error of the network, whose text may contain a
// port. It passes other errors to state.
func networkState(err error, state func(error) string) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "ECONNREFUSED"
	case errors.Is(err, syscall.ECONNRESET):
		return "ECONNRESET"
	case errors.Is(err, syscall.EPIPE):
		return "EPIPE"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "EOF"
	default:
		return state(err)
	}
}
