package migrations_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/pgtest"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

// allowed is everything that PUBLIC may do in the schema.
var allowed = []string{
	"function claim EXECUTE",
	"function current EXECUTE",
	"function guard_1 EXECUTE",
	"function refuse EXECUTE",
	"function refuse EXECUTE",
	"function undone EXECUTE",
	"function verdict EXECUTE",
	"schema fencepost USAGE",
	"sequence epoch_1 SELECT",
	"view status SELECT",
}

func TestPublicMayOnlyReadTheFence(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.make_guard(1, NULL)")
	conn := s.Connect(t, pgtest.App, db)
	rows, err := conn.Query(context.Background(), `
		SELECT 'schema ' || nspname || ' ' || privilege_type FROM pg_namespace, aclexplode(coalesce(nspacl, acldefault('n', nspowner)))
			WHERE nspname = 'fencepost' AND grantee = 0
		UNION ALL
		SELECT CASE relkind WHEN 'S' THEN 'sequence ' WHEN 'v' THEN 'view ' ELSE 'table ' END || relname || ' ' || privilege_type
			FROM pg_class, aclexplode(coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner)))
			WHERE relnamespace = 'fencepost'::regnamespace AND relkind IN ('r', 'v', 'm', 'S', 'f', 'p') AND grantee = 0
		UNION ALL
		SELECT 'column ' || attrelid::regclass || '.' || attname FROM pg_attribute, aclexplode(attacl)
			WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace) AND grantee = 0
		UNION ALL
		SELECT 'function ' || proname || ' ' || privilege_type FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner)))
			WHERE pronamespace = 'fencepost'::regnamespace AND grantee = 0
		ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(got, "\n") != strings.Join(allowed, "\n") {
		t.Errorf("PUBLIC may\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(allowed, "\n"))
	}
}

// denied are things that a worker's role must not be able to do.
var denied = []string{
	"SELECT * FROM fencepost.fence",
	"SELECT * FROM fencepost.grants",
	"SELECT * FROM fencepost.running",
	"SELECT * FROM fencepost.generations",
	"UPDATE fencepost.fence SET epoch = 0",
	"DELETE FROM fencepost.running",
	"UPDATE fencepost.status SET epoch = 0",
	"SELECT nextval('fencepost.epoch_1')",
	"SELECT setval('fencepost.epoch_1', 1)",
	"ALTER SEQUENCE fencepost.epoch_1 RESTART",
	"DROP SEQUENCE fencepost.epoch_1",
	"DO $$BEGIN LOCK TABLE fencepost.fence IN ACCESS SHARE MODE; END$$",
	"DO $$BEGIN LOCK TABLE fencepost.status IN ROW EXCLUSIVE MODE; END$$",
	"CREATE TABLE fencepost.mine (id int)",
	"SELECT fencepost.register('x')",
	"SELECT fencepost.grant(1, 'w', 'i', 's', 'm', 1, 0, 0, '1s', '1s')",
	"SELECT fencepost.raise_epoch(1, 1, '1s', '1s')",
	"SELECT fencepost.raise_epoch(1, 1, 'me', '', '1s', '1s')",
	"SELECT fencepost.enter(1, pg_backend_pid(), 1, 'w', 'i', 0, 0)",
	"SELECT fencepost.enter(1, pg_backend_pid(), '', 1, 'w', 'i', 0, 0)",
	"SELECT fencepost.leave(1, pg_backend_pid(), 1)",
	"SELECT fencepost.holds(NULL, 1, 1, 1, 'i')",
	"SELECT fencepost.warnings()",
	"SELECT fencepost.set_worker_roles('{}')",
	"SELECT fencepost.admit('fencepost.epoch_1')",
	"SELECT * FROM fencepost.readers()",
	"SELECT * FROM fencepost.worker_roles",
	"INSERT INTO fencepost.worker_roles VALUES ('app')",
	"SELECT fencepost.state(1, NULL)",
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

func TestAWorkerRoleIsDeniedAllElse(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')")
	conn := s.Connect(t, pgtest.App, db)
	for _, sql := range denied {
		_, err := conn.Exec(context.Background(), sql)
		var pg *pgconn.PgError
		view := sql == "UPDATE fencepost.status SET epoch = 0" // nobody can update it
		if !errors.As(err, &pg) || pg.Code != "42501" && !(view && pg.Code == "55000") {
			t.Errorf("%s: %v; want 42501", sql, err)
		}
	}
	for _, sql := range []string{"SELECT * FROM fencepost.status", "SELECT pg_sequence_last_value('fencepost.epoch_1'::regclass)"} {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}
