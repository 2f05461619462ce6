package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/unpinged"
)

// Orders returns the orders with ids above after, the last id of all, and what else the database says. It is one
// statement, because every proxy asks it once a second.
func (op Operator) Orders(ctx context.Context, after int64) (all fencing.Ordered, err error) {
	err = unpinged.Run(ctx, func(ctx context.Context) error {
		all, err = op.orders(ctx, after)
		return err
	})
	if err != nil {
		return fencing.Ordered{}, fmt.Errorf("read the orders of database %q: %w", op.db.Name(), op.db.Explain(err))
	}
	return all, nil
}

func (op Operator) orders(ctx context.Context, after int64) (all fencing.Ordered, err error) {
	rows, _ := op.db.Pool().Query(ctx, `SELECT m.last, m.guards, m.barred, coalesce(o.id, 0), coalesce(o.kind, ''), coalesce(o.resource, ''), coalesce(o.worker, ''), o.until,
		coalesce(o.epoch, 0), coalesce(o.asked_by, ''), coalesce(o.role, ''), coalesce(o.reason, ''), o.asked_at
		FROM (SELECT (SELECT coalesce(max(id), 0) FROM fencepost.orders), EXISTS (SELECT FROM fencepost.bars),
			(SELECT json_object_agg(f.resource, g.tables) FROM fencepost.guarded g JOIN fencepost.fence f ON f.id = g.fence)) m (last, barred, guards)
		LEFT JOIN fencepost.orders o ON o.id > $1 ORDER BY o.id`, after)
	var o fencing.Order
	var until, asked *time.Time
	_, err = pgx.ForEachRow(rows, []any{&all.LastOrder, &all.Guards, &all.Barred, &o.ID, &o.Kind, &o.Resource, &o.Worker, &until,
		&o.Epoch, &o.AskedBy, &o.Role, &o.Reason, &asked}, func() error {
		if o.ID == 0 {
			return nil // there is none
		}
		o.Until, o.AskedAt = time.Time{}, time.Time{}
		if until != nil {
			o.Until = *until
		}
		if asked != nil {
			o.AskedAt = *asked
		}
		all.Orders = append(all.Orders, o)
		return nil
	})
	return all, err
}

// InForce returns the orders that keep workers from leading now, in the words of the view status, by
// resource.
func (op Operator) InForce(ctx context.Context) (map[string]fencing.InForce, error) {
	rows, _ := op.db.Pool().Query(ctx, `SELECT s.resource, s.orders, s.paused,
		coalesce(CASE WHEN s.state = 'paused' THEN pg_catalog.clock_timestamp() - s.state_since END, '0') FROM fencepost.status s
		WHERE s.resource IN (SELECT f.resource FROM fencepost.bars b JOIN fencepost.fence f ON f.id = b.fence)`)
	all := make(map[string]fencing.InForce)
	var resource string
	var in fencing.InForce
	_, err := pgx.ForEachRow(rows, []any{&resource, &in.Orders, &in.Paused, &in.PausedFor}, func() error { all[resource], in.Orders = in, nil; return nil })
	if err != nil {
		return nil, fmt.Errorf("read the orders that are in force in database %q: %w", op.db.Name(), op.db.Explain(err))
	}
	return all, nil
}

// Sharers returns the other workers that led by the token whose epoch an order has ended, none if that was the epoch of
// a lease.
func (op Operator) Sharers(ctx context.Context, o *fencing.Order) ([]string, error) {
	const sql = `WITH ended AS (SELECT g.id, g.epoch, g.worker, g.source FROM fencepost.grants g JOIN fencepost.fence f ON f.id = g.id
			WHERE f.resource = $1 AND g.epoch < $2 AND g.worker IS NOT NULL ORDER BY g.epoch DESC LIMIT 1)
		SELECT e.worker FROM ended e WHERE e.source = 'token'
		UNION SELECT b.worker FROM ended e JOIN fencepost.bearers b ON b.id = e.id AND b.epoch = e.epoch
		EXCEPT SELECT $3 ORDER BY 1`
	rows, _ := op.db.Pool().Query(ctx, sql, o.Resource, int64(o.Epoch), o.Worker)
	workers, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read who shares the token of resource %q: %w", o.Resource, op.db.Explain(err))
	}
	return workers, nil
}

// Bar is an order that keeps a worker of a resource, or everyone, or, if it is offered to one, everyone
// else, from being granted an epoch.
type Bar struct {
	Worker  string    // "" for everybody: the resource is paused
	Offered bool      // the resource is handed over to Worker
	Until   time.Time // zero: until it is lifted
	AskedBy string
	AskedAt time.Time
	Reason  string
}

// Bars returns the bars that count now, by resource; that of everyone is the first, and an offer the last.
func (op Operator) Bars(ctx context.Context) (map[string][]Bar, error) {
	rows, _ := op.db.Pool().Query(ctx, `SELECT f.resource, coalesce(b.worker, ''), b.offered, b.until, o.asked_by, o.asked_at, o.reason
		FROM (SELECT bar.fence, bar.worker, false AS offered, bar.until, bar.order_id FROM fencepost.bars bar
			UNION ALL SELECT f.id, offer.worker, true, offer.until, offer.order_id
				FROM fencepost.offers offer JOIN fencepost.fence f ON f.id = offer.fence AND f.epoch = offer.epoch) b
		JOIN fencepost.fence f ON f.id = b.fence JOIN fencepost.orders o ON o.id = b.order_id
		WHERE b.until IS NULL OR b.until > clock_timestamp() ORDER BY f.resource, b.offered, b.worker NULLS FIRST`)
	bars := make(map[string][]Bar)
	var resource string
	var bar Bar
	var until *time.Time
	_, err := pgx.ForEachRow(rows, []any{&resource, &bar.Worker, &bar.Offered, &until, &bar.AskedBy, &bar.AskedAt, &bar.Reason}, func() error {
		bar.Until = time.Time{}
		if until != nil {
			bar.Until = *until
		}
		bars[resource] = append(bars[resource], bar)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the bars of database %q: %w", op.db.Name(), op.db.Explain(err))
	}
	return bars, nil
}
