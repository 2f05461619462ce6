package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing/owner"
)

// lockTimeout is how long one attempt waits for the locks of all its tables. Everyone else
// who wants to use the tables waits for it meanwhile.
const lockTimeout = time.Second

// answerTimeout is how long one attempt may take. A server that takes longer hangs.
const answerTimeout = 30 * time.Second

// pause is the time between two attempts.
const pause = 500 * time.Millisecond

// rollbackTimeout bounds a rollback, which also has to be sent when an attempt was interrupted.
const rollbackTimeout = 5 * time.Second

// errInterrupted means that the caller has cancelled what was being done.
var errInterrupted = errors.New("interrupted before it was done: the table was not changed")

// errOutcomeUnknown means that the connection was lost after a COMMIT was sent.
var errOutcomeUnknown = errors.New("the connection was lost, and this may have been done: see fencepost guard list before anything else")

// retry runs do in a transaction, again and again while a table is in use, until ctx ends.
func retry(ctx context.Context, conn *pgx.Conn, do func(context.Context, pgx.Tx) error) error {
	for inUse := false; ; inUse = true {
		err := inTransaction(ctx, conn, do)
		if errors.Is(err, errOutcomeUnknown) { // even if it was interrupted
			return err
		}
		if err != nil && errors.Is(ctx.Err(), context.Canceled) {
			return errInterrupted
		}
		var pg *pgconn.PgError
		locked := errors.As(err, &pg) && (pg.Code == "55P03" || pg.Code == "40P01")
		if !locked && (!inUse || ctx.Err() == nil) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return errInterrupted
			}
			return fmt.Errorf("%w: transactions that use the table did not end in time (pg_locks and pg_stat_activity name them)", err)
		}
	}
}

// inTransaction runs do in a transaction that does not depend on the session's defaults. It
// ends with an error if the server does not answer, errOutcomeUnknown if that was to the COMMIT.
func inTransaction(ctx context.Context, conn *pgx.Conn, do func(context.Context, pgx.Tx) error) error {
	return bounded(ctx, answerTimeout, func(ctx context.Context) error {
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
		if err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		defer func() { // does nothing after Commit
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
			defer cancel()
			_ = tx.Rollback(ctx)
		}()
		_, err = tx.Exec(ctx, fmt.Sprintf("SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL lock_timeout = %d; SET LOCAL client_min_messages = warning", lockTimeout.Milliseconds()))
		if err != nil {
			return fmt.Errorf("prepare the transaction: %w", err)
		}
		if err := do(ctx, tx); err != nil {
			return explain(err)
		}
		err = tx.Commit(ctx)
		switch {
		case err == nil:
			return nil
		case conn.IsClosed(): // otherwise the server has answered
			err = fmt.Errorf("%w: %w", errOutcomeUnknown, err)
		}
		return fmt.Errorf("commit: %w", err)
	})
}

// bounded runs do, and says so if it was ended because the server did not answer in time.
func bounded(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	short, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := do(short)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("Postgres did not answer for %s: see whether it hangs. What has been done stays recorded, as fencepost guard list shows (%w)", limit, err)
	}
	return err
}

// explain says what to do about a missing privilege.
func explain(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		return fmt.Errorf("%w: connect as a superuser, or as a role that owns the table and is a member of the control role", err)
	}
	return err
}

// becomeControl continues a transaction as the control role, which owns the schema.
func becomeControl(ctx context.Context, tx pgx.Tx) error {
	by, err := owner.Of(ctx, tx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "SET LOCAL ROLE "+quote(by.Role)); err != nil {
		return fmt.Errorf("continue as the control role %q: %w", by.Role, err)
	}
	return nil
}

// becomeSelf continues a transaction as the role that has logged in.
func becomeSelf(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, "SET LOCAL ROLE NONE"); err != nil {
		return fmt.Errorf("leave the control role: %w", err)
	}
	return nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
