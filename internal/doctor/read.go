package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing/owner"
	"github.com/fencepost/fencepost/internal/lockwait"
	"github.com/fencepost/fencepost/migrations"
)

const (
	// A setting of the connection's own role or database says nothing of the others; it is
	// among the overrides.
	settingsSQL = `SELECT name, CASE WHEN source IN ('global', 'database', 'user', 'database user') THEN '' ELSE setting END FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit',
		'synchronous_standby_names', 'max_connections', 'superuser_reserved_connections', 'reserved_connections')`

	overridesSQL = `SELECT coalesce(d.datname, '')::text, coalesce(r.rolname, '')::text, split_part(c.setting, '=', 2)
		FROM pg_db_role_setting s CROSS JOIN LATERAL unnest(s.setconfig) c(setting)
		LEFT JOIN pg_database d ON d.oid = s.setdatabase LEFT JOIN pg_roles r ON r.oid = s.setrole
		WHERE c.setting LIKE 'synchronous\_commit=%' ORDER BY 1, 2`

	// A subscription and the tools that copy the server are no targets of a failover.
	replicasSQL = `SELECT coalesce(r.application_name, '(unnamed)') FROM pg_stat_replication r
		WHERE coalesce(r.state, 'streaming') IN ('streaming', 'catchup') AND coalesce(r.application_name, '') NOT IN ('pg_basebackup', 'pg_receivewal')
			AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical') ORDER BY 1`

	mayReadRulesSQL = `SELECT has_table_privilege('pg_catalog.pg_hba_file_rules', 'SELECT') AND has_function_privilege('pg_catalog.pg_hba_file_rules()', 'EXECUTE')`

	rulesSQL = `SELECT coalesce(line_number, 0), coalesce(type, ''), coalesce(database, '{}'), coalesce(user_name, '{}'), coalesce(address, ''),
		coalesce(netmask, ''), coalesce(auth_method, ''), coalesce(options, '{}'), coalesce(error, '') FROM pg_hba_file_rules`

	// rolesSQL reads the roles that may log in and connect, without the owner of the schema.
	// It looks at the rights that a role has, or may take by SET ROLE.
	rolesSQL = `WITH RECURSIVE owner AS (SELECT n.oid AS schema, n.nspowner AS role FROM pg_namespace n WHERE n.nspname = 'fencepost'),
		member(role, of) AS (
			SELECT m.member, m.roleid FROM pg_auth_members m
			UNION SELECT member.role, m.roleid FROM member JOIN pg_auth_members m ON m.member = member.of),
		tables AS (SELECT c.oid, c.relnamespace, format('%I.%I', n.nspname, c.relname) AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE c.relkind IN ('r', 'p', 'f', 'v') AND c.relpersistence <> 't' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'fencepost', 'pg_toast'))
		SELECT r.rolname::text, r.rolsuper, r.oid = 10,
			coalesce((SELECT array_agg(g.rolname::text ORDER BY g.rolname) FROM member m JOIN pg_roles g ON g.oid = m.of WHERE m.role = r.oid), '{}'),
			coalesce((SELECT t.name FROM tables t
				WHERE EXISTS (SELECT FROM (SELECT r.oid UNION ALL SELECT m.of FROM member m WHERE m.role = r.oid) a(oid)
					WHERE has_schema_privilege(a.oid, t.relnamespace, 'USAGE')
						AND (has_table_privilege(a.oid, t.oid, 'INSERT, UPDATE, DELETE, TRUNCATE') OR has_any_column_privilege(a.oid, t.oid, 'INSERT, UPDATE'))) LIMIT 1), ''),
			CASE WHEN r.rolsuper OR pg_has_role(r.oid, 'pg_write_all_data', 'MEMBER') THEN ''
				WHEN pg_has_role(r.oid, owner.role, 'MEMBER') THEN 'membership in the control role ' || quote_ident(pg_get_userbyid(owner.role))
				WHEN has_schema_privilege(r.oid, owner.schema, 'CREATE') THEN 'CREATE on the schema fencepost'
				ELSE coalesce((SELECT 'the right to change fencepost.' || quote_ident(c.relname) FROM pg_class c
					WHERE c.relnamespace = owner.schema AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege(r.oid, c.oid, 'USAGE, UPDATE')
						WHEN 'r' THEN has_table_privilege(r.oid, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE') ELSE false END ORDER BY c.relname LIMIT 1), '') END
		FROM pg_roles r LEFT JOIN owner ON true
		WHERE r.rolcanlogin AND r.rolconnlimit <> 0 AND (r.rolvaliduntil IS NULL OR r.rolvaliduntil > clock_timestamp())
			AND r.oid IS DISTINCT FROM owner.role AND has_database_privilege(r.oid, current_database(), 'CONNECT') ORDER BY 1`
)

const (
	publicationsSQL = `SELECT DISTINCT p.pubname::text FROM pg_publication_tables p WHERE p.schemaname = 'fencepost' ORDER BY 1`

	subscriptionsSQL = `SELECT s.subname::text, array_agg(r::text ORDER BY r::text) FROM pg_subscription_rel x JOIN pg_subscription s ON s.oid = x.srsubid
		JOIN fencepost.replicable() r ON r = x.srrelid GROUP BY 1 ORDER BY 1`
)

var preparedSQL = `SELECT p.gid, p.owner::text, f.resource FROM pg_prepared_xacts p JOIN fencepost.fence f ON ` + lockwait.HasLocked("p.transaction", "f.xmax") + `
	WHERE p.database = current_database() ORDER BY 1, 3`

// server reads what is known of the server. The notes say what could not be known.
func server(ctx context.Context, conn *pgx.Conn) (p Postgres, notes []string, err error) {
	var there time.Time
	asked := time.Now()
	if err := conn.QueryRow(ctx, "SELECT clock_timestamp(), pg_is_in_recovery()").Scan(&there, &p.Standby); err != nil {
		return p, nil, fmt.Errorf("read the clock: %w", err)
	}
	took := time.Since(asked)
	p.Clock = Clock{Ahead: there.Sub(asked.Add(took / 2)), Doubt: took / 2}
	type setting struct{ Name, Value string }
	settings, err := rows[setting](ctx, conn, settingsSQL)
	if err != nil {
		return p, nil, fmt.Errorf("read the settings: %w", err)
	}
	p.Settings = map[string]string{}
	for _, s := range settings {
		p.Settings[s.Name] = s.Value
	}
	if p.Overrides, err = rows[Override](ctx, conn, overridesSQL); err != nil {
		return p, nil, fmt.Errorf("read the settings of roles and databases: %w", err)
	}
	if p.Replicas, err = names(ctx, conn, replicasSQL); err != nil {
		return p, nil, fmt.Errorf("read the replicas: %w", err)
	}
	var may bool
	if err := conn.QueryRow(ctx, mayReadRulesSQL).Scan(&may); err != nil {
		return p, nil, fmt.Errorf("find out whether pg_hba.conf may be read: %w", err)
	}
	if !may {
		return p, []string{fmt.Sprintf("pg_hba.conf was not looked at, because role %s may not read it: whether workers can connect past the proxy is not known. Give --dsn with a superuser.", conn.Config().User)}, nil
	}
	if p.Rules, err = rows[Rule](ctx, conn, rulesSQL); err != nil {
		return p, nil, fmt.Errorf("read pg_hba.conf: %w", err)
	}
	return p, nil, nil
}

// database reads what is known of the database that conn is connected to.
func database(ctx context.Context, conn *pgx.Conn) (d Database, err error) {
	if err := conn.QueryRow(ctx, "SELECT current_database()::text").Scan(&d.Name); err != nil {
		return d, fmt.Errorf("read the name of the database: %w", err)
	}
	state, err := migrations.Status(ctx, conn)
	if err != nil {
		return d, err
	}
	d.Schema = Schema{Version: state.Version, Needed: migrations.Needed, Latest: state.Latest}
	if d.Roles, err = rows[Role](ctx, conn, rolesSQL); err != nil {
		return d, fmt.Errorf("read the roles: %w", err)
	}
	if d.Schema.Version == 0 {
		return d, nil
	}
	by, err := owner.Mine(ctx, conn)
	if err != nil {
		return d, err
	}
	d.Schema.Owner, d.Schema.Lacks = by.Role, by.Lacks
	if d.Schema.OwnerTable, err = migrations.TableOf(ctx, conn, by.Role); err != nil {
		return d, err
	}
	if d.Schema.Incomplete, d.Schema.Remedy, err = migrations.Examine(ctx, conn, "fencepost migrate --dsn DSN"); err != nil {
		return d, err
	}
	if d.Schema.Version < d.Schema.Needed || d.Schema.Incomplete != "" { // what is below may not exist
		return d, nil
	}
	if d.Warnings, err = migrations.Warnings(ctx, conn); err != nil {
		return d, err
	}
	if d.Prepared, err = rows[Prepared](ctx, conn, preparedSQL); err != nil {
		return d, fmt.Errorf("read the prepared transactions: %w", err)
	}
	if d.Places, err = rows[Place](ctx, conn, placesSQL); err != nil {
		return d, fmt.Errorf("read the addresses of the workers: %w", err)
	}
	if d.Guards, err = guards(ctx, conn); err != nil {
		return d, fmt.Errorf("read the guarded tables: %w", err)
	}
	if d.Recorded, err = rows[Recorded](ctx, conn, recordedSQL); err != nil {
		return d, fmt.Errorf("read the recorded awards: %w", err)
	}
	if d.Lost, err = rows[LostGuard](ctx, conn, "SELECT l.resource, l.name FROM fencepost.lost_guards() l"); err != nil {
		return d, fmt.Errorf("read the recorded guards: %w", err)
	}
	if d.Publications, err = names(ctx, conn, publicationsSQL); err != nil {
		return d, fmt.Errorf("read the publications: %w", err)
	}
	if d.Subscriptions, err = rows[Subscription](ctx, conn, subscriptionsSQL); err != nil {
		return d, fmt.Errorf("read the subscriptions: %w", err)
	}
	return d, nil
}

// rows reads the result of a query, whose columns are the fields of T in order.
func rows[T any](ctx context.Context, conn *pgx.Conn, sql string) ([]T, error) {
	result, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(result, pgx.RowToStructByPos[T])
}

// names reads the result of a query with one column.
func names(ctx context.Context, conn *pgx.Conn, sql string) ([]string, error) {
	result, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(result, pgx.RowTo[string])
}
