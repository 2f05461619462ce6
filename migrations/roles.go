package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// prepareRole makes sure that the control role exists and may end and see other roles'
// backends. It creates and grants what is missing if it may.
func prepareRole(ctx context.Context, tx pgx.Tx, me, control, password string) error {
	var super, mayCreate bool
	if err := tx.QueryRow(ctx, "SELECT rolsuper, rolsuper OR rolcreaterole FROM pg_catalog.pg_roles WHERE rolname = $1", me).Scan(&super, &mayCreate); err != nil {
		return fmt.Errorf("read the privileges of role %q: %w", me, err)
	}
	var there bool
	if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1)", control).Scan(&there); err != nil {
		return fmt.Errorf("look for role %q: %w", control, err)
	}
	quoted := pgx.Identifier{control}.Sanitize()
	if !there {
		if password == "" || !mayCreate {
			return fmt.Errorf("the control role %q does not exist; run as a superuser: CREATE ROLE %s LOGIN PASSWORD '...'; GRANT pg_signal_backend, pg_read_all_stats TO %s",
				control, quoted, quoted)
		}
		var create string
		if err := tx.QueryRow(ctx, "SELECT pg_catalog.format('CREATE ROLE %I LOGIN PASSWORD %L', $1::text, $2::text)", control, password).Scan(&create); err != nil {
			return fmt.Errorf("build the statement that creates role %q: %w", control, err)
		}
		if _, err := tx.Exec(ctx, create); err != nil {
			return fmt.Errorf("create role %q: %w", control, err)
		}
	}
	table, err := TableOf(ctx, tx, control)
	if err != nil {
		return err
	}
	if table != "" {
		return fmt.Errorf("the control role %q owns the table %s: whoever uses that table as its owner could change the fence. Name a role that is Fencepost's own "+
			"(CREATE ROLE fencepost LOGIN PASSWORD '...'; GRANT pg_signal_backend, pg_read_all_stats TO fencepost), or give the tables of %s to another role (REASSIGN OWNED BY %s TO ...)",
			control, table, quoted, quoted)
	}
	for _, right := range []string{"pg_signal_backend", "pg_read_all_stats"} {
		has, err := hasRole(ctx, tx, control, right)
		if err != nil {
			return err
		}
		if has {
			continue
		}
		grant := fmt.Sprintf("GRANT %s TO %s", right, quoted)
		if !super && !there { // it is not created either
			grant = fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '...'; GRANT pg_signal_backend, pg_read_all_stats TO %s", quoted, quoted)
		}
		if !super {
			return &RightError{Role: control, Right: "membership in " + right, Fix: grant}
		}
		if _, err := tx.Exec(ctx, grant); err != nil {
			return fmt.Errorf("grant %s to role %q: %w", right, control, err)
		}
		if has, err = hasRole(ctx, tx, control, right); err != nil {
			return err
		}
		if !has {
			return &RightError{Role: control, Right: fmt.Sprintf("the rights of %s, because it does not inherit those of its roles", right),
				Fix: fmt.Sprintf("ALTER ROLE %s INHERIT; REVOKE %s FROM %s; %s", quoted, right, quoted, grant)}
		}
	}
	return nil
}

// TableOf returns a table of the database that a role owns and that is not Fencepost's, "" if there is none. A
// control role must not have one. Those of extensions and of a superuser do not count: nobody need be one to use them.
func TableOf(ctx context.Context, on interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, role string) (table string, err error) {
	err = on.QueryRow(ctx, `SELECT coalesce((SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN pg_catalog.pg_roles r ON r.oid = c.relowner
		WHERE r.rolname = $1 AND NOT r.rolsuper AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND n.nspname NOT IN ('fencepost', 'pg_catalog', 'information_schema')
			AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e')
		ORDER BY 1 LIMIT 1), '')`, role).Scan(&table)
	if err != nil {
		return "", fmt.Errorf("look for tables of role %q: %w", role, err)
	}
	return table, nil
}

// hasRole reports whether a role has the rights of another one without SET ROLE.
func hasRole(ctx context.Context, tx pgx.Tx, role, other string) (has bool, err error) {
	if err := tx.QueryRow(ctx, "SELECT pg_catalog.pg_has_role($1::name, $2::name, 'USAGE')", role, other).Scan(&has); err != nil {
		return false, fmt.Errorf("find out whether role %q has %s: %w", role, other, err)
	}
	return has, nil
}

// prepareSchema creates the empty schema with its version table, owned by the control
// role, and continues the transaction as that role.
func prepareSchema(ctx context.Context, tx pgx.Tx, me, control string) error {
	quoted := pgx.Identifier{control}.Sanitize()
	if me != control {
		var member bool
		if err := tx.QueryRow(ctx, "SELECT pg_catalog.pg_has_role($1::name, $2::name, 'MEMBER')", me, control).Scan(&member); err != nil {
			return fmt.Errorf("find out whether role %q is a member of %q: %w", me, control, err)
		}
		if !member {
			return &RightError{Role: me, Right: fmt.Sprintf("membership in the control role %q", control),
				Fix: fmt.Sprintf("GRANT %s TO %s (or run the migration as %s)", quoted, pgx.Identifier{me}.Sanitize(), quoted)}
		}
	}
	var owner string
	err := tx.QueryRow(ctx, "SELECT pg_catalog.pg_get_userbyid(nspowner) FROM pg_catalog.pg_namespace WHERE nspname = 'fencepost'").Scan(&owner)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		if err := createSchema(ctx, tx, me, quoted); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("look for the schema fencepost: %w", err)
	case owner != control:
		return fmt.Errorf("the schema fencepost belongs to role %q, not to the control role %q: if %q is the control role, name it; if you do not know the schema, drop it (DROP SCHEMA fencepost CASCADE), without using anything in it before", owner, control, owner)
	}
	if me != control {
		if _, err := tx.Exec(ctx, "SET LOCAL ROLE "+quoted); err != nil {
			return fmt.Errorf("continue as role %q: %w", control, err)
		}
	}
	return makeVersions(ctx, tx)
}

// makeVersions makes the table of versions, if there is none.
func makeVersions(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS fencepost.schema_version (
		version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT pg_catalog.now())`)
	if err != nil {
		return fmt.Errorf("create fencepost.schema_version: %w", err)
	}
	return nil
}

func createSchema(ctx context.Context, tx pgx.Tx, me, control string) error {
	var database string
	var may bool
	if err := tx.QueryRow(ctx, "SELECT current_database(), pg_catalog.has_database_privilege(current_database(), 'CREATE')").Scan(&database, &may); err != nil {
		return fmt.Errorf("check the privilege to create a schema: %w", err)
	}
	if !may {
		quoted := pgx.Identifier{database}.Sanitize()
		return &RightError{Role: me, Right: fmt.Sprintf("CREATE on database %q", database),
			Fix: fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s", quoted, pgx.Identifier{me}.Sanitize())}
	}
	if _, err := tx.Exec(ctx, "CREATE SCHEMA fencepost AUTHORIZATION "+control); err != nil {
		return fmt.Errorf("create the schema fencepost: %w", err)
	}
	return nil
}
