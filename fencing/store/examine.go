package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
)

// examineLock is how long an examination waits for a lock on schema_version.
const examineLock = 2 * time.Second

// versionSQL reads the version of the schema and the privileges of the control role. The last is
// the function of confirmSQL if the role may not execute it.
const versionSQL = `SELECT (SELECT coalesce(max(version), 0) FROM fencepost.schema_version),
	pg_has_role(n.nspowner, 'USAGE'), pg_has_role('pg_signal_backend', 'USAGE'), pg_has_role('pg_read_all_stats', 'USAGE'),
	coalesce((SELECT pg_catalog.format('pg_catalog.%I(%s)', p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid))
		FROM pg_proc p WHERE p.proname = 'pg_logical_emit_message' AND p.pronamespace = 'pg_catalog'::regnamespace
		  AND p.proargtypes[2] = 'text'::regtype AND NOT has_function_privilege(p.oid, 'EXECUTE')), '')
	FROM pg_namespace n WHERE n.nspname = 'fencepost'`

// examine checks for what would otherwise fail later: the schema, its version, and the
// privileges of the control role.
func (s *Store) examine(ctx context.Context) error {
	var there bool
	if err := s.free.QueryRow(ctx, "SELECT to_regnamespace('fencepost') IS NOT NULL").Scan(&there); err != nil {
		return s.explain(err)
	}
	if !there {
		missing := s.noFence(faults.Schema, "the schema fencepost is missing in database %s", ascii(s.cfg.Database))
		missing.Err = fencing.ErrNoFence
		return missing
	}
	var version int
	var owner, signals, reads bool
	var forbidden string
	err := pgx.BeginTxFunc(ctx, s.free, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// By itself, because the next statement waits for the lock when it is parsed.
		if _, err := tx.Exec(ctx, "SELECT pg_catalog.set_config('lock_timeout', $1, true)", examineLock.String()); err != nil {
			return err
		}
		return tx.QueryRow(ctx, versionSQL).Scan(&version, &owner, &signals, &reads, &forbidden)
	})
	switch {
	case codeOf(err) == codeLocked:
		return s.locked(ctx, err)
	case err != nil:
		return s.explain(err)
	case !owner:
		return s.noFence(faults.Privilege, "role %s does not own the schema fencepost of database %s", ascii(s.cfg.User), ascii(s.cfg.Database))
	case version == 0 || version < s.cfg.SchemaVersion:
		return s.noFence(faults.Schema, "the schema fencepost of database %s is at version %d, but version %d is needed",
			ascii(s.cfg.Database), version, max(s.cfg.SchemaVersion, 1))
	}
	for right, has := range map[string]bool{"pg_signal_backend": signals, "pg_read_all_stats": reads, "EXECUTE ON FUNCTION " + forbidden: forbidden == ""} {
		if !has {
			refusal := s.noFence(faults.Privilege, "the control role %s lacks %s", ascii(s.cfg.User), right)
			refusal.Hint = fmt.Sprintf("Run as a superuser: GRANT %s TO %s", right, ascii(pgx.Identifier{s.cfg.User}.Sanitize()))
			return refusal
		}
	}
	return nil
}

// locked returns the error of an examination that a lock on schema_version has kept from
// reading the version. It names who has the lock, or waits for it ahead of others.
func (s *Store) locked(ctx context.Context, err error) error {
	by := "a transaction that has ended by now"
	if queryErr := s.free.QueryRow(ctx, `SELECT coalesce(string_agg(DISTINCT CASE WHEN l.pid IS NULL THEN 'a prepared transaction'
			ELSE format('backend %s of role "%s" (application "%s", %s)', l.pid, a.usename, a.application_name, coalesce(a.state, 'unknown')) END, '; '), $1)
		FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND l.relation = to_regclass('fencepost.schema_version')
		  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())`, by).Scan(&by); queryErr != nil {
		return s.explain(queryErr)
	}
	return &Unusable{Kind: faults.Schema, Err: err, Refusal: &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message: fmt.Sprintf("the version of the schema fencepost of database %s cannot be read: table fencepost.schema_version is locked by %s",
			ascii(s.cfg.Database), ascii(by)),
		Hint: "Wait until that transaction has ended, or end its backend with pg_terminate_backend. Workers that are connected are not affected.",
	}}
}

// Known reports whether the resource already has a fence, and how many other resources
// have one, not counting those in except.
func (s *Store) Known(ctx context.Context, resource string, except []string) (known bool, others int, err error) {
	err = s.free.QueryRow(ctx, `SELECT coalesce(bool_or(f.resource = $1), false),
		count(*) FILTER (WHERE f.resource <> $1 AND f.resource <> ALL (coalesce($2::text[], '{}'))) FROM fencepost.fence f`,
		resource, except).Scan(&known, &others)
	if err != nil {
		return false, 0, fmt.Errorf("count the resources of the database: %w", s.explain(err))
	}
	return known, others, nil
}
