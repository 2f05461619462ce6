package store

import (
	"context"
	"fmt"
	"slices"
	"time"

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

// WaitFor implements fencing.Fence.
func (f *Fence) WaitFor(ctx context.Context, waiting, holding []uint32) ([]uint32, error) {
	rows, err := f.store.free.Query(ctx, waitForSQL, backends(waiting), backends(holding))
	if err != nil {
		return nil, fmt.Errorf("look for locks that backends wait for: %w", f.store.explain(err))
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (uint32, error) {
		var pid int32
		err := row.Scan(&pid)
		return uint32(pid), err
	})
	if err != nil {
		return nil, fmt.Errorf("look for locks that backends wait for: %w", f.store.explain(err))
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

// unblockedEvery is the time between two looks at what blocked a grant that was given up.
const unblockedEvery = time.Second

// AwaitUnblocked implements election.Fence.
func (f *Fence) AwaitUnblocked(ctx context.Context) error {
	defer f.store.reports.startWatch(f.resource, f.store.cfg.Blocked)()
	w, was := &blockers{fence: f, log: f.store.log}, f.store.reports.kept(f.resource)
	tick := time.NewTicker(unblockedEvery)
	defer tick.Stop()
	for known := len(was) > 0; ; known = true {
		holders, err := f.remainingBlockers(ctx, was)
		var left []string
		for _, h := range holders {
			if remedy := h.remedy(); remedy != "" {
				left = append(left, remedy)
			}
		}
		switch {
		case ctx.Err() != nil: // another grant may have begun, which reports what blocks it
		case !known && len(holders) == 0: // it is not known what to look for
			<-ctx.Done()
		case err != nil: // the next grant shows what is wrong
		case len(holders) == 0:
			w.report(nil)
			return nil
		case len(left) > 0:
			w.report(left)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// remainingBlockers returns what is left of the transactions that have blocked a grant, with superusers' backends that are
// registered. If it was the standbys, it returns an error until they confirm.
func (f *Fence) remainingBlockers(ctx context.Context, was []string) ([]holder, error) {
	if slices.Contains(was, standbys) {
		_, err := f.store.confirms.ask(ctx, f.id)
		return nil, err
	}
	return f.store.holders(ctx, leftSQL, was, f.id)
}
