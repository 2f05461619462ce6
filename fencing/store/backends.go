package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// waitForSQL follows the chain of blockers from each backend of $1, and returns those
// whose chain reaches a backend of $2. Prepared transactions appear as process 0 and
// end the chain.
const waitForSQL = `WITH RECURSIVE blocked(root, pid) AS (
		SELECT w.pid, b.pid FROM unnest($1::int[]) w(pid), unnest(pg_catalog.pg_blocking_pids(w.pid)) b(pid)
	UNION
		SELECT w.root, b.pid FROM blocked w, unnest(pg_catalog.pg_blocking_pids(w.pid)) b(pid)
	) SELECT DISTINCT root FROM blocked WHERE pid = ANY ($2::int[])`

// WaitFor is fencing.Fence.WaitFor.
func (s *Store) WaitFor(ctx context.Context, waiting, holding []uint32) ([]uint32, error) {
	rows, _ := s.free.Query(ctx, waitForSQL, waiting, holding)
	list, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
	if err != nil {
		return nil, fmt.Errorf("look for locks that backends wait for: %w", s.Explain(err))
	}
	return list, nil
}
