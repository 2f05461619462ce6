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

// TestNobodyElseHasARight also where the control role's default privileges say otherwise.
func TestNobodyElseHasARight(t *testing.T) {
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

// denied are things that a role which is not a superuser's must not be able to do.
var denied = []string{
	"SELECT * FROM fencepost.fence",
	"SELECT * FROM fencepost.grants",
	"SELECT * FROM fencepost.running",
	"SELECT * FROM fencepost.generations",
	"UPDATE fencepost.fence SET epoch = 0",
	"DELETE FROM fencepost.running",
	"UPDATE fencepost.status SET epoch = 0",
	"SELECT FROM fencepost.fence FOR KEY SHARE",
	"SELECT FROM fencepost.identity FOR UPDATE",
	"SELECT fencepost.share(1)",
	"SELECT fencepost.pass(1)",
	"SELECT fencepost.alone()",
	"SELECT nextval('fencepost.lease_award')",
	"SELECT setval('fencepost.lease_award', 1)",
	"DO $$BEGIN LOCK TABLE fencepost.fence IN ACCESS SHARE MODE; END$$",
	"DO $$BEGIN LOCK TABLE fencepost.status IN ROW EXCLUSIVE MODE; END$$",
	"CREATE TABLE fencepost.mine (id int)",
	"SELECT fencepost.register('x')",
	"SELECT fencepost.grant(1, 'w', 'i', 's', 'm', 1, 0, 0, '1s', '1s')",
	"SELECT fencepost.raise_epoch(1, 1, 'me', '', '1s', '1s')",
	"SELECT fencepost.enter(1, pg_backend_pid(), '', '', 1, 'w', 'i', 0, 0)",
	"SELECT fencepost.leave(1, pg_backend_pid(), 1)",
	"SELECT fencepost.holds(NULL, 1, 1, 'i')",
	"SELECT fencepost.warnings()",
	"SELECT fencepost.admit('app')",
	"SELECT fencepost.registered(1)",
	"SELECT fencepost.claim('billing', 1)",
	"SELECT fencepost.refuse(1, 0, 'w', 'i', 0)",
	"SELECT fencepost.refuse(1, '{warn}', 'pg_class'::regclass)",
	"SELECT * FROM fencepost.status",
	"CREATE TRIGGER mine BEFORE INSERT ON public.mine FOR EACH ROW EXECUTE FUNCTION fencepost.guard_1()",
	"SELECT fencepost.state(1)",
	"SELECT fencepost.bump_generation('s', 'm')",
	"SELECT fencepost.seal()",
	"SELECT fencepost.quoted('x')",
	"SELECT * FROM fencepost.orders",
	"SELECT * FROM fencepost.bars",
	"DELETE FROM fencepost.bars",
	"UPDATE fencepost.floor SET epoch = 0",
	"SELECT fencepost.evict(1, NULL, NULL, 'me', '', '1s', '1s')",
	"SELECT fencepost.pause(1, 'me', '', '1s', '1s')",
	"SELECT fencepost.resume(1, NULL, 'me', '')",
	"SELECT fencepost.remove(1, true, 'me', '', '1s', '1s')",
	"SELECT fencepost.prune('1s', 'me', '')",
	"SELECT fencepost.barred(1, 'w')",
	"SELECT fencepost.make_guard(1, NULL)",
	"SELECT fencepost.write_guard('guard_1', 1, NULL)",
	"SELECT fencepost.record_guards(1, NULL, NULL)",
	"SELECT fencepost.unguard(1)",
	"SELECT * FROM fencepost.lost_guards()",
	"SELECT * FROM fencepost.guarded_tables",
	"SELECT * FROM fencepost.guards",
	"SELECT * FROM fencepost.rejections",
	"DELETE FROM fencepost.rejections",
	"INSERT INTO fencepost.rejections SELECT * FROM fencepost.rejections",
	"INSERT INTO fencepost.guarded VALUES (1, 1)",
}

func TestAWorkerIsDeniedAll(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	ctx := context.Background()
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.make_guard(1, NULL)")
	s.Exec(t, pgtest.App, db, "CREATE TABLE public.mine (id int)")
	tx, err := s.Connect(t, pgtest.App, db).Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for _, sql := range denied {
		err := pgx.BeginFunc(ctx, tx, func(sub pgx.Tx) error {
			_, err := sub.Exec(ctx, sql)
			return err
		})
		if pgtest.StateOf(err) != "42501" {
			t.Errorf("%s: %v; want 42501", sql, err)
		}
	}
}
