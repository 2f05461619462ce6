package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
)

// removeSQL first forgets tables that were guarded once and are not any more.
const removeSQL = "SELECT fencepost.remove($1, $2, $3, $4, $5, $6) FROM fencepost.unguard($1)"

// Remove deletes everything that the database knows of a resource. Connections that still
// use its fence are refused (ZF004). Unless force is true, a resource in use is refused
// with a *fencing.Refusal, ZF009. So is one that guards tables, always, and one whose
// sequence a transaction has read, for longer than the grace; backends that are in the way of the removal are then not ended. If
// such a transaction begins when that has been done, the refusal says how many were ended.
// Remove returns nil if the resource was removed at the same time by somebody else.
func (s *Store) Remove(ctx context.Context, resource string, force bool, by Orderer) (*fencing.Order, error) {
	return s.orderBy(ctx, resource, func(f *Fence) (int64, error) {
		if err := f.unguarded(ctx); err != nil {
			return 0, err
		}
		before, err := f.registered(ctx)
		if err != nil {
			return 0, err
		}
		w := &blockers{fence: f, log: s.log, unless: f.unread}
		id, err := f.advanceClearing(ctx, w, removeSQL, []any{f.id, force, by.AskedBy, by.Reason, grace(s.cfg.Grace), s.cfg.Patience})
		if errors.Is(err, errUnanswered) { // even if it was to be given up, for which there is a refusal
			return 0, fmt.Errorf("%w: %v", errOutcomeUnknown, err)
		}
		var refusal *fencing.Refusal
		if !errors.As(err, &refusal) || refusal.SQLState != fencing.StateInUse {
			return id, unlessAnswered(err, errOutcomeUnknown)
		}
		gone, goneErr := s.gone(ctx, before)
		if goneErr != nil {
			return 0, errors.Join(err, goneErr)
		}
		if n := w.ended + gone; n > 0 {
			said := *refusal
			said.Message += fmt.Sprintf("; before that, %d of its workers' backends were ended, and their transactions rolled back", n)
			return 0, &said
		}
		return 0, err
	})
}

// unguarded returns a *fencing.Refusal, ZF009, if the resource guards tables, which nobody
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
		Message:  fmt.Sprintf("resource %s was not removed: it guards %d tables: %s", quoted(f.resource), len(tables), ascii(strings.Join(tables, ", "))),
		Hint:     "Remove their guards first: fencepost guard remove --table TABLE.",
	}
}

// unread returns a *fencing.Refusal, ZF009, if a transaction has read the fence's sequence
// that is still open. It keeps the sequence from being dropped.
func (f *Fence) unread(ctx context.Context) error {
	var by *string
	if err := f.store.fences.QueryRow(ctx, "SELECT fencepost.readers_of($1)", f.id).Scan(&by); err != nil {
		return fmt.Errorf("look for readers of the sequence of resource %q: %w", f.resource, f.store.explain(err))
	}
	if by == nil {
		return nil
	}
	return &fencing.Refusal{
		SQLState: fencing.StateInUse,
		Message:  fmt.Sprintf("resource %s was not removed: a transaction has read its sequence, and is still open: %s", quoted(f.resource), ascii(*by)),
		Hint:     "Wait until that transaction has ended (pg_dump reads all sequences), or end its backend with pg_terminate_backend, and remove the resource again.",
	}
}

// backend is a process of the server.
type backend struct {
	PID     int32
	Started time.Time
}

// registered returns the backends that are registered for the fence.
func (f *Fence) registered(ctx context.Context) ([]backend, error) {
	rows, err := f.store.free.Query(ctx, `SELECT DISTINCT r.pid, r.backend_start FROM fencepost.running r
		JOIN pg_stat_activity a ON a.pid = r.pid AND a.backend_start = r.backend_start AND a.datname = current_database() WHERE r.fence = $1`, f.id)
	if err != nil {
		return nil, fmt.Errorf("list the registered backends of resource %q: %w", f.resource, f.store.explain(err))
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[backend])
	if err != nil {
		return nil, fmt.Errorf("list the registered backends of resource %q: %w", f.resource, f.store.explain(err))
	}
	return all, nil
}

// gone returns how many of the backends have ended.
func (s *Store) gone(ctx context.Context, backends []backend) (n int, err error) {
	pids, started := make([]int32, len(backends)), make([]time.Time, len(backends))
	for i, b := range backends {
		pids[i], started[i] = b.PID, b.Started
	}
	err = s.free.QueryRow(ctx, `SELECT count(*) FROM unnest($1::integer[], $2::timestamptz[]) b (pid, started)
		WHERE NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = b.pid AND a.backend_start = b.started)`, pids, started).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("look which backends have ended: %w", s.explain(err))
	}
	return n, nil
}
