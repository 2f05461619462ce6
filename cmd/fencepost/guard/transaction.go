package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// lockTimeout is how long one attempt waits for a table's lock. Everybody else who wants
// to use the table waits behind it meanwhile.
const lockTimeout = time.Second

// pause is the time between two attempts.
const pause = 500 * time.Millisecond

// retry runs do in a transaction, again and again while a table is in use, until ctx ends.
func retry(ctx context.Context, conn *pgx.Conn, do func(pgx.Tx) error) error {
	for {
		err := inTransaction(ctx, conn, do)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "55P03" && pg.Code != "40P01" {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w: transactions that use the table did not end in time (pg_locks and pg_stat_activity name them)", err)
		}
	}
}

// inTransaction runs do in a transaction that does not depend on the session's defaults.
func inTransaction(ctx context.Context, conn *pgx.Conn, do func(pgx.Tx) error) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // does nothing after Commit
	_, err = tx.Exec(ctx, fmt.Sprintf("SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL lock_timeout = %d; SET LOCAL client_min_messages = warning", lockTimeout.Milliseconds()))
	if err != nil {
		return fmt.Errorf("prepare the transaction: %w", err)
	}
	if err := do(tx); err != nil {
		return explain(err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
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
	var role string
	err := tx.QueryRow(ctx, "SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'fencepost'").Scan(&role)
	if errors.Is(err, pgx.ErrNoRows) {
		return errors.New("this database has no schema fencepost: run fencepost migrate")
	}
	if err != nil {
		return fmt.Errorf("look for the schema fencepost: %w", err)
	}
	if _, err := tx.Exec(ctx, "SET LOCAL ROLE "+quote(role)); err != nil {
		return fmt.Errorf("continue as the control role %q: %w", role, err)
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
