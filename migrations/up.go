package migrations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Migrated is what Up has done to a database's schema.
type Migrated struct {
	State             // now
	From     int      // the version before, 0 if the schema was missing
	Repaired []string // the functions and views that were missing and were made again
	Orphans  []string // if the schema was missing: tables with guards of an earlier one, which refuse every write
}

// Up makes or upgrades the schema of the database that conn is connected to, to this binary's version. It is one
// transaction under an advisory lock: concurrent calls are safe, a call that fails has changed nothing, and a
// second call changes nothing. It also restores grants on the schema that a restore may have lost, and functions
// and views that are missing. It fails with a *LockedError if it has waited for a lock for longer than the
// options say, and with an *IncompleteError if the schema lacks a table or a sequence.
//
// conn must be connected as the control role, or as a superuser (or a member of the
// control role that may create a schema).
func Up(ctx context.Context, conn *pgx.Conn, opts Options) (Migrated, error) {
	known, err := embeddedRelease()
	if err != nil {
		return Migrated{}, err
	}
	return known.up(ctx, conn, opts)
}

func (r *release) up(ctx context.Context, conn *pgx.Conn, opts Options) (done Migrated, err error) {
	err = inTransaction(ctx, conn, cmp.Or(opts.LockTimeout, DefaultLockTimeout), func(tx pgx.Tx) (err error) {
		if done.From, err = prepare(ctx, tx, opts); err != nil {
			return err
		}
		if done.Repaired, err = r.migrate(ctx, tx, done.From); err != nil {
			return err
		}
		if err := grants(ctx, tx, opts.ClaimRoles); err != nil {
			return err
		}
		if done.From == 0 {
			if done.Orphans, err = orphans(ctx, tx); err != nil {
				return err
			}
		}
		done.State, err = r.status(ctx, tx.Conn())
		return err
	})
	if err != nil {
		return Migrated{}, err
	}
	return done, nil
}

// LockedError means that a lock could not be had in time. The migration has changed nothing.
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

// migrate makes the schema, upgrades it from a version, or makes again what is missing, and returns the names
// of that.
func (r *release) migrate(ctx context.Context, tx pgx.Tx, from int) (repaired []string, err error) {
	switch {
	case from > r.version():
		return nil, fmt.Errorf("%w: it is at version %d, but this binary knows %d; use a newer Fencepost", ErrNewer, from, r.version())
	case from == 0:
		if err := clearUnused(ctx, tx); err != nil {
			return nil, err
		}
		if _, err := tx.Exec(ctx, r.sql); err != nil {
			return nil, fmt.Errorf("make the schema: %w", explain(err))
		}
		return nil, record(ctx, tx, r.version(), "schema")
	}
	for _, u := range r.upgrades[from-1:] {
		if _, err := tx.Exec(ctx, u.sql); err != nil {
			return nil, fmt.Errorf("apply the upgrade %s: %w", u, explain(err))
		}
		if err := record(ctx, tx, u.version, u.name); err != nil {
			return nil, err
		}
	}
	upgraded := from < r.version()
	lacked, err := r.complete(ctx, tx, upgraded)
	if err != nil || upgraded {
		return nil, err
	}
	for _, o := range lacked {
		repaired = append(repaired, o.String())
	}
	return repaired, nil
}

// record records what brought the schema to a version.
func record(ctx context.Context, tx pgx.Tx, version int, name string) error {
	if _, err := tx.Exec(ctx, "INSERT INTO fencepost.schema_version (version, name) VALUES ($1, $2)", version, name); err != nil {
		return fmt.Errorf("record version %d of the schema: %w", version, err)
	}
	return nil
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

// grants sets the grants of the schema, and lets more roles call fencepost.claim.
func grants(ctx context.Context, tx pgx.Tx, claim []string) error {
	if _, err := tx.Exec(ctx, "SELECT fencepost.seal()"); err != nil {
		return fmt.Errorf("set the grants of the schema: %w", err)
	}
	for _, role := range claim {
		if _, err := tx.Exec(ctx, "SELECT fencepost.admit($1)", role); err != nil {
			return fmt.Errorf("let a role call fencepost.claim: %w", explain(err))
		}
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
