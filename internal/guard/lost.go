package guard

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Lost returns the tables that are recorded as guarded, and have no guard, by the names of
// their resources. It returns none to a role that may not see them.
func Lost(ctx context.Context, conn *pgx.Conn) (map[string][]string, error) {
	var may bool
	if err := conn.QueryRow(ctx, "SELECT coalesce(pg_catalog.has_function_privilege(pg_catalog.to_regprocedure('fencepost.lost_guards()')::oid, 'EXECUTE'), false)").Scan(&may); err != nil {
		return nil, fmt.Errorf("look for the right to read the recorded guards: %w", err)
	}
	if !may {
		return nil, nil
	}
	list, err := lost(ctx, conn)
	tables := make(map[string][]string)
	for _, g := range list {
		tables[g.Resource] = append(tables[g.Resource], g.Table)
	}
	return tables, err
}

// lost reads the tables that are only recorded as guarded.
func lost(ctx context.Context, q querier) ([]Guard, error) {
	rows, err := q.Query(ctx, "SELECT l.resource, l.name FROM fencepost.lost_guards() l")
	if err != nil {
		return nil, fmt.Errorf("read the recorded guards: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g Guard, err error) { return g, row.Scan(&g.Resource, &g.Table) })
	if err != nil {
		return nil, fmt.Errorf("read the recorded guards: %w", err)
	}
	return list, nil
}
