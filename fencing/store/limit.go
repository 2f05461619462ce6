package store

import (
	"context"
	"fmt"
)

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
