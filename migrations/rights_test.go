package migrations_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/migrations"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

// allowed is everything that roles beside the owner may do in the schema.
var allowed = []string{
	"function claim EXECUTE job",
	"function guard_1 EXECUTE PUBLIC", // its name cannot be used without the schema
	"schema fencepost USAGE job",
	"schema fencepost USAGE pg_monitor",
	"view status SELECT job",
	"view status SELECT pg_monitor",
}

// TestNoOneElseHasARight also where the control role's default privileges say otherwise.
func TestNoOneElseHasARight(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	db := s.Database(t)
	s.Exec(t, pgtest.Superuser, db, "CREATE ROLE job LOGIN")
	s.Exec(t, pgtest.Control, db, "ALTER DEFAULT PRIVILEGES IN SCHEMA fencepost GRANT SELECT ON SEQUENCES TO app")
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.make_guard(1, NULL)")
	if _, err := migrations.Up(context.Background(), s.Connect(t, pgtest.Control, db), migrations.Options{ClaimRoles: []string{"job"}}); err != nil {
		t.Fatal(err)
	}
	conn := s.Connect(t, pgtest.App, db)
	rows, err := conn.Query(context.Background(), `
		WITH rights(what, owner, acl) AS (
			SELECT 'schema ' || nspname, nspowner, coalesce(nspacl, acldefault('n', nspowner)) FROM pg_catalog.pg_namespace WHERE nspname = 'fencepost'
			UNION ALL
			SELECT CASE relkind WHEN 'S' THEN 'sequence ' WHEN 'v' THEN 'view ' ELSE 'table ' END || relname, relowner,
				coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner))
				FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace AND relkind IN ('r', 'v', 'm', 'S', 'f', 'p')
			UNION ALL
			SELECT 'column ' || attrelid::regclass || '.' || attname, 0, attacl FROM pg_attribute
				WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace)
			UNION ALL
			SELECT 'function ' || proname, proowner, coalesce(proacl, acldefault('f', proowner)) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace
		)
		SELECT what || ' ' || privilege_type || ' ' || CASE grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(grantee) END
		FROM rights, aclexplode(acl) WHERE grantee <> owner
		ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(got, "\n") != strings.Join(allowed, "\n") {
		t.Errorf("others may\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(allowed, "\n"))
	}
}

// TestTheRoleOfTheApplicationIsNoControlRole: it would own the fence that it is to respect.
func TestTheRoleOfTheApplicationIsNoControlRole(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.EmptyDatabase(t)
	role := db + "_shop"
	s.Exec(t, pgtest.Superuser, db, "CREATE ROLE "+role+" LOGIN IN ROLE pg_signal_backend, pg_read_all_stats", "CREATE SCHEMA AUTHORIZATION "+role,
		"CREATE TABLE "+role+".invoices (n int)", "CREATE TEMP TABLE passing (n int)", "ALTER TABLE passing OWNER TO "+role)
	admin := s.Connect(t, pgtest.Superuser, db)
	up := func() error {
		_, err := migrations.Up(t.Context(), admin, migrations.Options{Control: role})
		return err
	}
	if err := up(); err != nil {
		t.Errorf("a role without tables: %v", err)
	}
	s.Exec(t, pgtest.Superuser, db, "ALTER TABLE "+role+".invoices OWNER TO "+role)
	if err := up(); err == nil || !contains(err.Error(), "owns the table "+role+".invoices") || !contains(err.Error(), "REASSIGN OWNED BY") {
		t.Errorf("the owner of a table: %v", err)
	}
	t.Cleanup(func() { s.Exec(t, pgtest.Superuser, db, "DROP OWNED BY "+role+" CASCADE", "DROP ROLE "+role) })
}
