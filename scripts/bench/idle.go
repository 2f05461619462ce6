package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

// settling is how long connections are idle before the memory is read: what the logins needed is free by then,
// as far as it becomes free.
const settling = 10 * time.Second

// idle opens connections through a new process, and measures the memory that each of them needs. The
// sample's rate is that, in kB; its other figures are those of the logins.
func idle(ctx context.Context, s *servers, _ *plan, by *contender, c *cell) (one sample, err error) {
	if err := s.restart(ctx, by); err != nil {
		return one, err
	}
	defer by.process.stop() // and with it the connections to the server that PgBouncer keeps
	empty, err := by.startUsage()
	if err != nil {
		return one, err
	}
	conns, err := connect(ctx, by, c.clients)
	defer func() { err = errors.Join(err, closeAll(conns)) }()
	if err != nil {
		return one, err
	}
	opened, err := by.usage()
	if err != nil {
		return one, err
	}
	select {
	case <-ctx.Done():
		return one, ctx.Err()
	case <-time.After(settling):
	}
	full, err := by.usage()
	if err != nil {
		return one, err
	}
	opened.peak = full.peak
	one = one.with(opened.since(empty), float64(c.clients))
	one.rate = float64(full.resident-empty.resident) / float64(c.clients)
	return one, nil
}

// connect opens n connections. Each runs a statement, because PgBouncer gives a client a server only then.
func connect(ctx context.Context, by *contender, n int) ([]*pgconn.PgConn, error) {
	config, err := pgconn.ParseConfig(by.dsn())
	if err != nil {
		return nil, err
	}
	conns := make([]*pgconn.PgConn, n)
	const atOnce = 16
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(atOnce)
	for i := range conns {
		all.Go(func() (err error) {
			if conns[i], err = pgconn.ConnectConfig(ctx, config); err != nil {
				return err
			}
			return conns[i].ExecParams(ctx, "SELECT 1", nil, nil, nil, nil).Read().Err
		})
	}
	return conns, all.Wait()
}

// closeAll closes those connections that were opened.
func closeAll(conns []*pgconn.PgConn) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var failed error
	for _, conn := range conns {
		if conn == nil {
			continue
		}
		if err := conn.Close(ctx); err != nil && failed == nil {
			failed = err // one is enough to know of
		}
	}
	return failed
}
