package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Migrated is what Up has done to a database's schema.
type Migrated struct {
	State             // now
	From     int      // the highest migration before, 0 if the schema was missing
	Repaired []string // the functions and views that were missing and were made again
}

// Up migrates the database that conn is connected to to this binary's version. It runs
// one transaction per migration, each under an advisory lock: concurrent calls are
// safe, and a second call changes nothing. It also restores grants on the schema that a
// restore may have lost, and functions and views that are missing. It fails with a *LockedError if it has
// waited for a lock for longer than the options say, and with an *IncompleteError if the schema lacks
// a table or a sequence.
//
// conn must be connected as the control role, or as a superuser (or a member of the
// control role that may create a schema).
func Up(ctx context.Context, conn *pgx.Conn, opts Options) (Migrated, error) {
	files, err := list(embedded)
	if err != nil {
		return Migrated{}, err
	}
	return up(ctx, conn, opts, files)
}

func up(ctx context.Context, conn *pgx.Conn, opts Options, files []file) (Migrated, error) {
	done := Migrated{From: -1}
	for more := true; more; {
		var from int
		var again []string
		err := inTransaction(ctx, conn, opts.lockTimeout(), func(tx pgx.Tx) (err error) {
			from, more, again, err = step(ctx, tx, opts, files)
			return err
		})
		if err != nil {
			return Migrated{}, err
		}
		if done.From < 0 {
			done.From = from
		}
		done.Repaired = append(done.Repaired, again...)
	}
	err := inTransaction(ctx, conn, opts.lockTimeout(), func(tx pgx.Tx) (err error) {
		done.State, err = Status(ctx, tx.Conn())
		return err
	})
	if err != nil {
		return Migrated{}, err
	}
	return done, nil
}

// LockedError means that a lock could not be had in time. The step that needed it has changed nothing.
type LockedError struct {
	After time.Duration
	Err   error // of the server
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("gave up after it had waited for a lock for %s: %v", e.After, e.Err)
}

// Unwrap returns the server's error.
func (e *LockedError) Unwrap() error { return e.Err }

// inTransaction runs do in a transaction that is independent of the defaults of the
// role and the database, under the lock that all migrations of a database share. It waits for no lock for
// longer than wait.
func inTransaction(ctx context.Context, conn *pgx.Conn, wait time.Duration, do func(pgx.Tx) error) error {
	err := transact(ctx, conn, wait, do)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "55P03" { // lock_not_available
		err = &LockedError{After: wait, Err: err}
	}
	if err != nil {
		return fmt.Errorf("migrate the schema fencepost: %w", err)
	}
	return nil
}

func transact(ctx context.Context, conn *pgx.Conn, wait time.Duration, do func(pgx.Tx) error) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // does nothing after Commit
	for _, sql := range []string{
		"SET LOCAL search_path = pg_catalog, pg_temp",
		fmt.Sprintf("SET LOCAL lock_timeout = %d", wait.Milliseconds()),
		"SET LOCAL statement_timeout = 0",
		"SET LOCAL idle_in_transaction_session_timeout = 0",
		"SELECT pg_catalog.set_config(name, '0', true) FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout'", // PostgreSQL 17 and later
		"SET LOCAL check_function_bodies = on",
		"SET LOCAL standard_conforming_strings = on",
		"SET LOCAL synchronous_commit = on",
		fmt.Sprintf("SELECT pg_catalog.pg_advisory_xact_lock(%d)", int64(lockKey)),
	} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return fmt.Errorf("prepare the transaction (%s): %w", sql, err)
		}
	}
	if err := do(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// step makes again what is missing, and applies the next missing migration to the version that it has found. It reports
// false if none was missing; it has then only corrected the grants.
func step(ctx context.Context, tx pgx.Tx, opts Options, files []file) (version int, more bool, repaired []string, err error) {
	version, err = prepare(ctx, tx, opts)
	if err != nil {
		return 0, false, nil, err
	}
	latest := files[len(files)-1].version
	switch {
	case version > latest:
		return 0, false, nil, fmt.Errorf("%w: it is at version %d, but this binary knows %d; use a newer Fencepost", ErrNewer, version, latest)
	case version == 0:
		err = unversioned(ctx, tx)
	default:
		repaired, err = repair(ctx, tx, files)
	}
	if err != nil {
		return 0, false, nil, err
	}
	if version == latest {
		return version, false, repaired, grants(ctx, tx, opts.WorkerRoles)
	}
	next := files[version]
	if _, err := tx.Exec(ctx, next.sql); err != nil {
		return 0, false, nil, fmt.Errorf("apply migration %03d_%s: %w", next.version, next.name, explain(err))
	}
	_, err = tx.Exec(ctx, "INSERT INTO fencepost.schema_version (version, name) VALUES ($1, $2)", next.version, next.name)
	if err != nil {
		return 0, false, nil, fmt.Errorf("record migration %03d_%s: %w", next.version, next.name, err)
	}
	return version, true, repaired, nil
}

// prepare prepares the control role and the schema, and returns the version of the schema.
func prepare(ctx context.Context, tx pgx.Tx, opts Options) (version int, err error) {
	var me string
	if err := tx.QueryRow(ctx, "SELECT current_user").Scan(&me); err != nil {
		return 0, fmt.Errorf("read the current role: %w", err)
	}
	control := opts.Control
	if control == "" {
		control = me
	}
	if err := prepareRole(ctx, tx, me, control, opts.Password); err != nil {
		return 0, err
	}
	if err := prepareSchema(ctx, tx, me, control); err != nil {
		return 0, err
	}
	if err := tx.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM fencepost.schema_version").Scan(&version); err != nil {
		return 0, fmt.Errorf("read fencepost.schema_version: %w", err)
	}
	return version, nil
}

// grants sets the grants of the schema, for workers if any are named, otherwise for the
// recorded worker roles.
func grants(ctx context.Context, tx pgx.Tx, workers []string) error {
	if len(workers) > 0 {
		roles := []string{}
		for _, role := range workers {
			if !strings.EqualFold(role, Everybody) {
				roles = append(roles, role)
			} else if len(workers) > 1 {
				return fmt.Errorf("the worker role %s stands for all roles: name it alone", role)
			}
		}
		if _, err := tx.Exec(ctx, "SELECT fencepost.set_worker_roles($1)", roles); err != nil {
			return fmt.Errorf("record the worker roles: %w", explain(err))
		}
	}
	if _, err := tx.Exec(ctx, "SELECT fencepost.seal()"); err != nil {
		return fmt.Errorf("set the grants of the schema: %w", err)
	}
	return nil
}

// explain adds the DETAIL and context of a server error to its text.
func explain(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || (pg.Detail == "" && pg.Where == "") {
		return err
	}
	return fmt.Errorf("%w: %s %s", err, pg.Detail, pg.Where)
}
