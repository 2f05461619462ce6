package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// neededTables are the tables without which nobody can be granted an epoch, with the embedded elector's.
var neededTables = []string{"identity", "fence", "grants", "bearers", "generations", "running", "orders", "bars", "lease", "lease_marker", "lease_over"}

// readableSQL fails if somebody has locked one of the neededTables. It keeps no lock while it waits for the
// next one, so that it is in nobody's way.
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
	if err := s.owns(ctx, s.free); err != nil {
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
	case codeOf(err) == codeLocked:
		return s.locked(ctx, err)
	case err != nil:
		return s.explain(err)
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

// owns returns an error unless the schema is there, and the control role has the rights of its owner. The error is
// fencing.ErrNoFence if there is none.
func (s *Store) owns(ctx context.Context, q owner.Querier) error {
	by, err := owner.Of(ctx, q)
	var foreign *owner.ForeignError
	var unusable *Unusable
	switch {
	case errors.As(err, &unusable): // a new connection was needed, and begin says so
		return unusable
	case errors.Is(err, owner.ErrNoSchema):
		missing := s.noFence(faults.Schema, "the schema fencepost is missing in database %s", ascii(s.cfg.Database))
		missing.Err = fencing.ErrNoFence
		return missing
	case errors.As(err, &foreign):
		return s.foreign(foreign)
	case err != nil:
		return s.explain(err)
	case !by.Usable:
		return s.notOwner(by.Role)
	}
	return nil
}

// Examine looks whether the fence can still be used, as Open does, and whether the schema has all that its
// migrations have made. What is missing need not keep workers from leading.
func (s *Store) Examine(ctx context.Context) error {
	err := s.examine(ctx)
	if s.cfg.Complete == nil || err != nil && codeOf(err) != codeNoTable {
		return err
	}
	var incomplete *Unusable
	lookErr := s.free.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		problem, remedy, err := s.cfg.Complete(ctx, conn.Conn(), s.migrateCommand())
		if err == nil && problem != "" {
			incomplete = s.noFence(faults.Schema, "the schema fencepost of database %s %s", ascii(s.cfg.Database), ascii(problem))
			incomplete.Hint = ascii(remedy)
		}
		return err
	})
	switch {
	case incomplete != nil:
		return incomplete
	case err != nil: // it says more
		return err
	}
	return s.explain(lookErr)
}

// checkableSQL is true if the database has what every check calls. Without it, a worker that is granted an epoch
// cannot write.
const checkableSQL = `(to_regprocedure('fencepost.refuse(integer,bigint,text,text,bigint,boolean)') IS NOT NULL AND to_regprocedure('fencepost.current(bigint,bigint,bigint)') IS NOT NULL)`

// uncheckable returns the error of a fence whose check cannot run, nil if the database has what it calls.
func (f *Fence) uncheckable(ctx context.Context) error {
	var can bool
	if err := f.store.free.QueryRow(ctx, "SELECT "+checkableSQL).Scan(&can); err != nil || can {
		return err
	}
	if err := f.store.Examine(ctx); err != nil {
		return err
	}
	return f.store.noFence(faults.Schema, "the schema fencepost of database %s lacks a function that every check calls", ascii(f.store.cfg.Database))
}

// notOwner returns the error of a role that is not the control role: the schema belongs to another one. It
// names no migration, which would not help: the role of a command is wrong, or the configured one.
func (s *Store) notOwner(owner string) *Unusable {
	u := s.noFence(faults.Privilege, "role %s is not the control role of database %s: the schema fencepost belongs to role %s",
		ascii(s.cfg.User), ascii(s.cfg.Database), ascii(owner))
	u.Hint = fmt.Sprintf("Connect as %s (control.user in Fencepost's configuration, or the role in --dsn).", ascii(pgx.Identifier{owner}.Sanitize()))
	return u
}

// foreign returns the error of a schema that is not Fencepost's.
func (s *Store) foreign(err *owner.ForeignError) *Unusable {
	u := s.noFence(faults.Schema, "database %s has a schema that is not Fencepost's: %s", ascii(s.cfg.Database), ascii(err.Problem()))
	u.Hint, u.Err = ascii(err.Remedy()), err
	return u
}

// WorkerRole is a role under which workers of a resource connect, or of any resource if that is "".
type WorkerRole struct{ Role, Resource string }

// lackingSQL returns the roles among $1 that lack a privilege without which what Fencepost runs on the
// connections of workers fails; each stands beside its resource in $2. listed says that fencepost.seal
// would give it to the role.
const lackingSQL = `WITH asked AS (
		SELECT r.oid, r.rolname, w.resource FROM unnest($1::text[], $2::text[]) w (role, resource) JOIN pg_roles r ON r.rolname = w.role::name
	), lacking AS (
		SELECT a.oid, a.rolname, 'USAGE ON SCHEMA fencepost' AS what FROM asked a WHERE NOT has_schema_privilege(a.oid, 'fencepost', 'USAGE')
		UNION SELECT a.oid, a.rolname, 'EXECUTE ON FUNCTION ' || p.oid::regprocedure FROM asked a, pg_proc p
			WHERE p.oid IN (to_regprocedure('fencepost.refuse(integer,bigint,text,text,bigint,boolean)'), to_regprocedure('fencepost.current(bigint,bigint,bigint)'),
				to_regprocedure('fencepost.verdict(integer,bigint,text,text,bigint,boolean)'), to_regprocedure('fencepost.undone()'))
			  AND NOT has_function_privilege(a.oid, p.oid, 'EXECUTE')
		UNION SELECT a.oid, a.rolname, 'SELECT ON SEQUENCE ' || fencepost.sequence_of(f.id) FROM asked a CROSS JOIN LATERAL (SELECT f.id FROM fencepost.fence f
			WHERE a.resource IN ('', f.resource) AND NOT has_sequence_privilege(a.oid, fencepost.sequence_of(f.id), 'SELECT, USAGE') LIMIT 1) f
	)
	SELECT l.rolname::text, string_agg(l.what, ', ' ORDER BY l.what), NOT EXISTS (SELECT FROM fencepost.worker_roles)
		OR EXISTS (SELECT FROM fencepost.worker_roles w JOIN pg_roles p ON p.rolname = w.role WHERE pg_has_role(l.oid, p.oid, 'USAGE')) AS listed,
		ARRAY(SELECT w.role::text FROM fencepost.worker_roles w JOIN pg_roles p ON p.rolname = w.role ORDER BY 1)
	FROM lacking l GROUP BY l.oid, l.rolname ORDER BY l.rolname`

// namedRoles bounds how many roles a fault names.
const namedRoles = 3

// LookAtWorkers looks whether these roles have the privileges that what Fencepost runs on their connections
// needs. It returns the fault if one lacks some, and nil if all have them. Roles that do not exist count
// as having them.
func (s *Store) LookAtWorkers(ctx context.Context, workers []WorkerRole) (fault *faults.Fault, err error) {
	err = s.free.AcquireFunc(ctx, func(conn *pgxpool.Conn) (err error) {
		fault, err = LookAtWorkers(ctx, conn.Conn(), s.cfg.Database, s.migrateCommand(), workers)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look at the privileges of workers: %w", s.explain(err))
	}
	return fault, nil
}

// LookAtWorkers is Store.LookAtWorkers on any connection to the database whose role may read the fence. migrate
// is the command that migrates the database.
func LookAtWorkers(ctx context.Context, conn *pgx.Conn, database, migrate string, workers []WorkerRole) (*faults.Fault, error) {
	if _, err := owner.Mine(ctx, conn); err != nil {
		return nil, err
	}
	roles, resources := make([]string, 0, len(workers)), make([]string, 0, len(workers))
	for _, w := range workers {
		roles, resources = append(roles, w.Role), append(resources, w.Resource)
	}
	rows, err := conn.Query(ctx, lackingSQL, roles, resources)
	if err != nil {
		return nil, err
	}
	var lacks, unlisted, recorded []string
	var role, what string
	var listed bool
	_, err = pgx.ForEachRow(rows, []any{&role, &what, &listed, &recorded}, func() error {
		lacks = append(lacks, fmt.Sprintf("role %s lacks %s", ascii(pgx.Identifier{role}.Sanitize()), ascii(what)))
		if !listed {
			unlisted = append(unlisted, role)
		}
		return nil
	})
	if err != nil || len(lacks) == 0 {
		return nil, err
	}
	if more := len(lacks) - namedRoles; more > 0 {
		lacks = append(lacks[:namedRoles], fmt.Sprintf("and %d more roles", more))
	}
	return &faults.Fault{Kind: faults.Privilege,
		Problem: fmt.Sprintf("workers in database %s may not run the check, without which they are refused (ZF004): %s", ascii(database), strings.Join(lacks, "; ")),
		Remedy:  admitRemedy(migrate, recorded, unlisted),
	}, nil
}

// admitRemedy says how roles get the privileges of workers: those that are recorded as worker roles, and
// those that are not.
func admitRemedy(command string, recorded, unlisted []string) string {
	if len(unlisted) == 0 {
		return "Run: " + command + ", which grants that again"
	}
	for _, role := range slices.Concat(recorded, unlisted) {
		command += " --worker-role '" + strings.ReplaceAll(role, "'", `'\''`) + "'"
	}
	return "Only the recorded worker roles may read the fence. If these roles are to write through Fencepost, run: " + ascii(command)
}

// ProbeWorkers connects to a database as the control role, on a connection of its own, and looks at workers
// as LookAtWorkers does.
func ProbeWorkers(ctx context.Context, cfg Config, workers []WorkerRole) (fault *faults.Fault, err error) {
	err = once(ctx, cfg, func(s *Store) (err error) {
		fault, err = s.LookAtWorkers(ctx, workers)
		return err
	})
	return fault, err
}

// locked returns the error of an examination that a lock has kept from reading a table. It names the
// table, and who has the lock, or waits for it ahead of others.
func (s *Store) locked(ctx context.Context, err error) error {
	table, by := "a table", "a transaction that has ended by now"
	if queryErr := s.free.QueryRow(ctx, `SELECT coalesce('table ' || min(format('fencepost.%I', c.relname)), $1), coalesce(string_agg(DISTINCT CASE WHEN l.pid IS NULL THEN 'a prepared transaction'
			ELSE format('backend %s of role "%s" (application "%s", %s)', l.pid, a.usename, a.application_name, coalesce(a.state, 'unknown')) END, '; '), $2)
		FROM pg_locks l JOIN pg_class c ON c.oid = l.relation LEFT JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND c.relnamespace = to_regnamespace('fencepost') AND c.relname = ANY ($3)
		  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())`,
		table, by, append([]string{"schema_version"}, neededTables...)).Scan(&table, &by); queryErr != nil {
		return s.explain(queryErr)
	}
	return &Unusable{Kind: faults.Schema, Err: err, Refusal: &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message:  fmt.Sprintf("the schema fencepost of database %s cannot be read: %s is locked by %s", ascii(s.cfg.Database), ascii(table), ascii(by)),
		Hint:     "Wait until that transaction has ended, or end its backend with pg_terminate_backend. Until then no worker that connects can be granted an epoch; those that lead go on while their lease lasts.",
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
