package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

// removeSQL first forgets tables that were guarded once and are not any more.
const removeSQL = "SELECT fencepost.remove($1, $2, $3, $4, $5, $6) FROM fencepost.unguard($1)"

// Remove deletes everything that the database knows of a resource. Connections that still
// use its fence are refused (ZF004). Unless force is true, a resource in use is refused
// with a *fencing.Refusal, ZF009. So is one that guards tables, always.
// Remove returns nil if the resource was removed at the same time by someone else.
func (s *Store) Remove(ctx context.Context, resource string, force bool, by Orderer) (*fencing.Order, error) {
	return s.orderBy(ctx, resource, func(f *Fence) (int64, error) {
		if err := f.unguarded(ctx); err != nil {
			return 0, err
		}
		id, err := f.advance(ctx, removeSQL, f.id, force, by.AskedBy, by.Reason, grace(s.cfg.Grace), s.cfg.Patience)
		if errors.Is(err, errUnanswered) { // even if it was to be given up, for which there is a refusal
			return 0, fmt.Errorf("%w: %v", errOutcomeUnknown, err)
		}
		return id, unlessAnswered(err, errOutcomeUnknown)
	})
}

// unguarded returns a *fencing.Refusal, ZF009, if the resource guards tables, which no one
// could write any more.
func (f *Fence) unguarded(ctx context.Context) error {
	var tables []string
	err := f.store.free.QueryRow(ctx, "SELECT coalesce(array_agg(DISTINCT g.root::text), '{}') FROM fencepost.guards g WHERE g.fence = $1", f.id).Scan(&tables)
	switch {
	case err != nil:
		return fmt.Errorf("look for guards of resource %q: %w", f.resource, f.store.explain(err))
	case len(tables) == 0:
		return nil
	}
	return &fencing.Refusal{
		SQLState: fencing.StateInUse,
		Message:  fmt.Sprintf("resource %s was not removed: it guards %d tables: %s", fencing.Quoted(f.resource), len(tables), fencing.ASCII(strings.Join(tables, ", "))),
		Hint:     "Remove their guards first: fencepost guard remove --table TABLE --dsn DSN",
	}
}
