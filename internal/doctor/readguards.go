package doctor

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const (
	// A role acts as the owner if it is the owner, or may become it: since 16 a membership
	// alone is not enough for that, and until 15 CREATEROLE is.
	guardsSQL = `WITH parts AS (
			SELECT g.*, c.relowner, (SELECT count(DISTINCT t.tgtype & 32) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
				WHERE t.tgrelid = g.relation AND p.pronamespace = 'fencepost'::regnamespace AND p.proname ~ format('^guard_%s(_|$)', g.fence)
					AND t.tgenabled IN ('A', 'O')) = 2 AS fires
			FROM fencepost.guards g JOIN pg_class c ON c.oid = g.relation),
		server AS (SELECT current_setting('server_version_num')::integer >= 160000 AS modern, n.nspowner AS control FROM pg_namespace n WHERE n.nspname = 'fencepost')
		SELECT g.root::text, g.resource, coalesce(array_agg(g.relation::text ORDER BY g.relation::text) FILTER (WHERE NOT g.fires), '{}'),
			coalesce(array_agg(g.relation::text ORDER BY g.relation::text) FILTER (WHERE g.fires AND NOT (g.writes AND g.truncates)), '{}'), '{}'::text[],
			coalesce((SELECT array_agg(r.rolname::text ORDER BY r.rolname) FROM pg_roles r, server s
				WHERE r.rolcanlogin AND NOT r.rolsuper AND r.oid <> s.control AND EXISTS (SELECT FROM parts p JOIN pg_roles o ON o.oid = p.relowner WHERE p.root = g.root
					AND (pg_has_role(r.oid, o.oid, CASE WHEN s.modern THEN 'USAGE, SET, MEMBER WITH ADMIN OPTION' ELSE 'MEMBER' END)
						OR r.rolcreaterole AND NOT s.modern AND NOT o.rolsuper))), '{}'),
			coalesce((SELECT array_agg(DISTINCT s.subname::text) FROM pg_subscription_rel x JOIN pg_subscription s ON s.oid = x.srsubid
				JOIN parts p ON p.relation = x.srrelid WHERE p.root = g.root AND p.writes), '{}'),
			coalesce(max(g.stamp), ''), (SELECT f.epoch FROM fencepost.fence f WHERE f.id = g.fence),
			coalesce((SELECT array_agg(format('%I on %s', b.name, p.relation) ORDER BY b.name, p.relation::text) FROM parts p CROSS JOIN LATERAL unnest(p.behind) b (name)
				WHERE p.root = g.root AND p.fence = g.fence), '{}')
		FROM parts g GROUP BY g.root, g.resource, g.fence ORDER BY 1`

	settersSQL = `SELECT coalesce(array_agg(r.rolname::text ORDER BY r.rolname), '{}') FROM pg_roles r
		WHERE r.rolcanlogin AND NOT r.rolsuper AND has_parameter_privilege(r.oid, 'session_replication_role', 'SET')`
)

// guards reads the guarded tables.
func guards(ctx context.Context, conn *pgx.Conn) ([]Guard, error) {
	list, err := rows[Guard](ctx, conn, guardsSQL)
	if err != nil {
		return nil, err
	}
	var setters []string
	if err := conn.QueryRow(ctx, settersSQL).Scan(&setters); err != nil {
		return nil, err
	}
	for i := range list {
		if len(list[i].NotAlways) > 0 {
			list[i].Setters = setters
		}
	}
	return list, nil
}
