package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/owner"
	"github.com/fencepost/fencepost/internal/faults"
)

// examineLock is how long an examination waits for a lock on a table.
const examineLock = 2 * time.Second

// neededTables are the tables without which no one can be granted an epoch, with the embedded elector's.
var neededTables = []string{"identity", "fence", "grants", "bearers", "generations", "running", "orders", "bars", "lease", "lease_marker", "lease_over"}

// readableSQL fails if someone has locked one of the neededTables. It keeps no lock while it waits for the
// next one, so that it is in no one's way.
var readableSQL = fmt.Sprintf("SET LOCAL lock_timeout = '%dms'; SAVEPOINT look; LOCK TABLE fencepost.", examineLock.Milliseconds()) +
	strings.Join(neededTables, " IN ACCESS SHARE MODE; ROLLBACK TO look; LOCK TABLE fencepost.") + " IN ACCESS SHARE MODE"

// versionSQL reads the version of the schema and the privileges of the control role. The last is
// the function of confirmSQL if the role may not execute it.
const versionSQL = `SELECT (SELECT coalesce(max(version), 0) FROM fencepost.schema_version),
	pg_has_role('pg_signal_backend', 'USAGE'), pg_has_role('pg_read_all_stats', 'USAGE'),
	coalesce((SELECT pg_catalog.format('pg_catalog.%I(%s)', p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid))
		FROM pg_proc p WHERE p.proname = 'pg_logical_emit_message' AND p.pronamespace = 'pg_catalog'::regnamespace
		  AND p.proargtypes[2] = 'text'::regtype AND NOT has_function_privilege(p.oid, 'EXECUTE')), '')
	FROM pg_namespace n WHERE n.nspname = 'fencepost'`

// examine checks for what would otherwise fail later: the schema, its version, and the
// privileges of the control role.
func (s *Store) examine(ctx context.Context) error {
	if err := s.checkOwner(ctx, s.free); err != nil {
		return err
	}
	var version int
	var signals, reads bool
	var forbidden string
	err := pgx.BeginTxFunc(ctx, s.free, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// By itself, because the next statement waits for the lock when it is parsed.
		if _, err := tx.Exec(ctx, "SELECT pg_catalog.set_config('lock_timeout', $1, true)", examineLock.String()); err != nil {
			return err
		}
		return tx.QueryRow(ctx, versionSQL).Scan(&version, &signals, &reads, &forbidden)
	})
	if err == nil && version > 0 && version >= s.cfg.SchemaVersion {
		err = pgx.BeginTxFunc(ctx, s.free, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			_, err := tx.Conn().PgConn().Exec(ctx, readableSQL).ReadAll()
			return err
		})
	}
	switch {
	case CodeOf(err) == codeLocked:
		return s.locked(ctx, err)
	case err != nil:
		return s.Explain(err)
	case version == 0 || version < s.cfg.SchemaVersion:
		return s.NoFence(faults.Schema, "the schema fencepost of database %s is at version %d, but version %d is needed",
			fencing.ASCII(s.cfg.Database), version, max(s.cfg.SchemaVersion, 1))
	}
	for right, has := range map[string]bool{"pg_signal_backend": signals, "pg_read_all_stats": reads, "EXECUTE ON FUNCTION " + forbidden: forbidden == ""} {
		if !has {
			refusal := s.NoFence(faults.Privilege, "the control role %s lacks %s", fencing.ASCII(s.cfg.User), right)
			refusal.Hint = fmt.Sprintf("Run as a superuser: GRANT %s TO %s", right, fencing.ASCII(pgx.Identifier{s.cfg.User}.Sanitize()))
			return refusal
		}
	}
	return nil
}

// checkOwner returns an error unless the schema exists, and the control role has the rights of its owner. The error is
// fencing.ErrNoFence if there is none.
func (s *Store) checkOwner(ctx context.Context, q owner.Querier) error {
	by, err := owner.Of(ctx, q)
	var foreign *owner.ForeignError
	var unusable *Unusable
	switch {
	case errors.As(err, &unusable): // a new connection was needed, and begin says so
		return unusable
	case errors.Is(err, owner.ErrNoSchema):
		missing := s.NoFence(faults.Schema, "the schema fencepost is missing in database %s", fencing.ASCII(s.cfg.Database))
		missing.Err = fencing.ErrNoFence
		return missing
	case errors.As(err, &foreign):
		return s.foreign(foreign)
	case err != nil:
		return s.Explain(err)
	case !by.Usable:
		return s.notOwner(by.Role)
	}
	return nil
}

// Examine looks whether the fence can still be used, as Open does, and whether the schema has all that its
// migrations have made. What is missing need not keep workers from leading.
func (s *Store) Examine(ctx context.Context) error {
	err := s.examine(ctx)
	if s.cfg.Complete == nil || err != nil && CodeOf(err) != codeNoTable {
		return err
	}
	var incomplete *Unusable
	lookErr := s.free.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		problem, remedy, err := s.cfg.Complete(ctx, conn.Conn(), s.migrateCommand())
		if err == nil && problem != "" {
			incomplete = s.NoFence(faults.Schema, "the schema fencepost of database %s %s", fencing.ASCII(s.cfg.Database), fencing.ASCII(problem))
			incomplete.Hint = fencing.ASCII(remedy)
		}
		return err
	})
	switch {
	case incomplete != nil:
		return incomplete
	case err != nil: // it says more
		return err
	}
	return s.Explain(lookErr)
}

// notOwner returns the error of a role that is not the control role: the schema belongs to another one. It
// names no migration, which would not help: the role of a command is wrong, or the configured one.
func (s *Store) notOwner(owner string) *Unusable {
	u := s.NoFence(faults.Privilege, "role %s is not the control role of database %s: the schema fencepost belongs to role %s",
		fencing.ASCII(s.cfg.User), fencing.ASCII(s.cfg.Database), fencing.ASCII(owner))
	u.Hint = fmt.Sprintf("Connect as %s (control.user in Fencepost's configuration, or the role in --dsn).", fencing.ASCII(pgx.Identifier{owner}.Sanitize()))
	return u
}

// foreign returns the error of a schema that is not Fencepost's.
func (s *Store) foreign(err *owner.ForeignError) *Unusable {
	u := s.NoFence(faults.Schema, "database %s has a schema that is not Fencepost's: %s", fencing.ASCII(s.cfg.Database), fencing.ASCII(err.Problem()))
	u.Hint, u.Err = fencing.ASCII(err.Remedy()), err
	return u
}

// locked returns the error of an examination that a lock has kept from reading a table. It names the
// table, and who has the lock, or waits for it ahead of others.
func (s *Store) locked(ctx context.Context, err error) error {
	table, by := "a table", "a transaction that has ended by now"
	if queryErr := s.free.QueryRow(ctx, `SELECT coalesce('table ' || min(format('fencepost.%I', c.relname)), $1), coalesce(string_agg(DISTINCT CASE WHEN l.pid IS NULL THEN 'a prepared transaction'
			ELSE format('backend %s of role "%s" (application "%s", %s)', l.pid, pg_get_userbyid(a.usesysid), a.application_name, coalesce(a.state, 'unknown')) END, '; '), $2)
		FROM pg_lock_status() l JOIN pg_class c ON c.oid = l.relation LEFT JOIN pg_stat_get_activity(NULL) a ON a.pid = l.pid
		WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND c.relnamespace = to_regnamespace('fencepost') AND c.relname = ANY ($3)
		  AND l.database = (SELECT me.datid FROM pg_stat_get_activity(pg_backend_pid()) me)`,
		table, by, append([]string{"schema_version"}, neededTables...)).Scan(&table, &by); queryErr != nil {
		return s.Explain(queryErr)
	}
	return &Unusable{Kind: faults.Schema, Err: err, Refusal: &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message:  fmt.Sprintf("the schema fencepost of database %s cannot be read: %s is locked by %s", fencing.ASCII(s.cfg.Database), fencing.ASCII(table), fencing.ASCII(by)),
		Hint:     "Wait until that transaction has ended, or end its backend with pg_terminate_backend. Until then no worker that connects can be granted an epoch; those that lead continue while their lease lasts.",
	}}
}
