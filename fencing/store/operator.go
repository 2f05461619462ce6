package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
)

// Status is one resource's state as the database knows it.
type Status struct {
	Resource string
	fencing.Record
	// Running is how many backends are registered, without
	// those that have ended.
	Running int
}

// Status lists all resources of the database, ordered by name.
func (s *Store) Status(ctx context.Context) ([]Status, error) {
	rows, err := s.free.Query(ctx, `SELECT f.epoch, coalesce(f.worker, ''), coalesce(f.incarnation, ''), coalesce(f.source, ''),
		f.source_generation, f.source_index, f.granted_at, f.resource,
		(SELECT count(*) FROM fencepost.running r JOIN pg_stat_get_activity(NULL) a USING (pid, backend_start) WHERE r.fence = f.id AND a.datid = (SELECT fencepost.here())),
		coalesce((SELECT g.tables FROM fencepost.guarded g WHERE g.fence = f.id), 0) FROM fencepost.fence f ORDER BY f.resource`)
	if err != nil {
		return nil, fmt.Errorf("list the fences of database %q: %w", s.cfg.Database, s.explain(err))
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Status, error) {
		var st Status
		err := scanRecord(row, &st.Record, &st.Resource, &st.Running, &st.Guards)
		return st, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the fences of database %q: %w", s.cfg.Database, s.explain(err))
	}
	return list, nil
}

// RaisedEpoch is what RaiseEpochs did to a resource.
type RaisedEpoch struct {
	Epoch fencing.Epoch // the highest recorded one now
	// Raised is false if the recorded epoch was above the floor already. Its holder then
	// keeps it.
	Raised bool
	// Worker held the epoch until it was raised; "" if nobody did.
	Worker string
}

// RaiseEpochs is for an operator whose database was restored from an older state. It
// puts every resource that is not above floor under an epoch above floor that no one
// holds, so that every former holder is superseded and no lost epoch is granted again.
// Resources that were lost begin above floor, too, when they are recreated. floor is the
// highest epoch that was ever granted (the ZF004 error names it); 0 means unknown, and skips
// far ahead with every resource. Stop all workers of the lost epochs before running it. Each
// raised epoch is an order, which the proxies follow. It returns what became of each resource,
// without those that are removed meanwhile; on an error, of those before it.
func (s *Store) RaiseEpochs(ctx context.Context, floor fencing.Epoch, by Orderer) (map[string]RaisedEpoch, error) {
	var above *int64
	if floor > 0 {
		n := int64(floor)
		above = &n
	}
	var done bool
	if err := s.Durable().QueryRow(ctx, "SELECT true FROM fencepost.raise_floor($1)", above).Scan(&done); err != nil {
		return nil, fmt.Errorf("raise the floor of database %q: %w", s.cfg.Database, err)
	}
	list, err := s.Status(ctx)
	if err != nil {
		return nil, err
	}
	raised := make(map[string]RaisedEpoch)
	for _, st := range list {
		epoch, err := s.tryOrder(ctx, st.Resource, func(f *Fence) (int64, error) {
			epoch, err := f.advance(ctx, "SELECT fencepost.raise_epoch($1, $2, $3, $4, $5, $6)", f.id, above, by.AskedBy, by.Reason, grace(s.cfg.Grace), s.cfg.Patience)
			return epoch, unlessAnswered(err, errRaiseUnknown)
		})
		if errors.Is(err, ErrNoResource) || errors.Is(err, fencing.ErrRemoved) {
			continue // if it has been recreated since, it has begun above the floor
		}
		if err != nil {
			return raised, fmt.Errorf("raise the epoch of resource %q: %w", st.Resource, err)
		}
		now := RaisedEpoch{Epoch: fencing.Epoch(epoch), Raised: fencing.Epoch(epoch) > st.Epoch}
		if now.Raised {
			now.Worker = st.Worker
		}
		raised[st.Resource] = now
	}
	return raised, nil
}

// Durable runs statements that an operator relies on once they have returned. Scan returns when the
// synchronous standbys have what the statement has written; while it waits for them, that is
// reported as for a grant (Config.Blocked), of no resource. After ErrUnconfirmed the statement has
// had its effect, which a failover may lose, because the wait was cancelled: ctx has ended, or
// someone has cancelled it.
type Durable struct{ store *Store }

// Durable returns what runs such statements.
func (s *Store) Durable() Durable { return Durable{s} }

// QueryRow returns the row of a statement, which runs when the row is scanned.
func (d Durable) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return durableRow(func(into []any) error {
		f := &Fence{store: d.store}
		w := &blockers{fence: f, log: d.store.log, began: time.Now()}
		if err := f.attempt(ctx, w, into, sql, args); err != nil {
			w.gaveUp(ctx, err)
			return unlessAnswered(d.store.explain(err), errDurableUnknown)
		}
		w.report(nil)
		return nil
	})
}

type durableRow func(into []any) error

// Scan implements pgx.Row.
func (r durableRow) Scan(into ...any) error { return r(into) }
