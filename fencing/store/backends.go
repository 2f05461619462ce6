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
	rows, _ := s.free.Query(ctx, waitForSQL, backends(waiting), backends(holding))
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (uint32, error) {
		var pid int32
		err := row.Scan(&pid)
		return uint32(pid), err
	})
	if err != nil {
		return nil, fmt.Errorf("look for locks that backends wait for: %w", s.Explain(err))
	}
	return list, nil
}

func backends(pids []uint32) []int32 {
	list := make([]int32, len(pids))
	for i, pid := range pids {
		list[i] = int32(pid)
	}
	return list
}
