package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/unpinged"
)

// ErrNoResource means that the database has no resource of that name.
var ErrNoResource = errors.New("there is no such resource")

// ErrUnread means that an order was given, and that what it did could not be read then.
var ErrUnread = errors.New("it was given, and could not be read back: see fencepost status and fencepost resource list")

// Orderer says who gives an order, and why. Both are kept with the order.
type Orderer struct {
	AskedBy string
	Reason  string
}

// Evict takes the lead of a resource from whoever has it or, if worker is not empty, from
// that worker alone: the resource is then under a higher epoch that no one holds. If d is
// not 0, the worker may not campaign for so long; a worker that is named may not even if it
// does not lead. Evict returns nil if there was nothing to do. Like a grant, it ends the
// transactions that outlast the grace.
func (s *Store) Evict(ctx context.Context, resource, worker string, d time.Duration, by Orderer) (*fencing.Order, error) {
	var duration *time.Duration
	if d > 0 {
		duration = &d
	}
	return s.order(ctx, resource, "SELECT fencepost.evict($1, nullif($2, ''), $3, $4, $5, $6, $7)",
		worker, duration, by.AskedBy, by.Reason, grace(s.cfg.Grace), s.cfg.Patience)
}

// Sharers returns the other workers that led by the token whose epoch an order has ended, none if that was the epoch of
// a lease.
func (s *Store) Sharers(ctx context.Context, o *fencing.Order) ([]string, error) {
	const sql = `WITH ended AS (SELECT g.id, g.epoch, g.worker, g.source FROM fencepost.grants g JOIN fencepost.fence f ON f.id = g.id
			WHERE f.resource = $1 AND g.epoch < $2 AND g.worker IS NOT NULL ORDER BY g.epoch DESC LIMIT 1)
		SELECT e.worker FROM ended e WHERE e.source = 'token'
		UNION SELECT b.worker FROM ended e JOIN fencepost.bearers b ON b.id = e.id AND b.epoch = e.epoch
		EXCEPT SELECT $3 ORDER BY 1`
	rows, err := s.free.Query(ctx, sql, o.Resource, int64(o.Epoch), o.Worker)
	if err == nil {
		var workers []string
		if workers, err = pgx.CollectRows(rows, pgx.RowTo[string]); err == nil {
			return workers, nil
		}
	}
	return nil, fmt.Errorf("read who shares the token of resource %q: %w", o.Resource, s.explain(err))
}

// Pause takes the lead from whoever has it, and keeps everyone from being granted an epoch
// until Resume. It returns nil if the resource is paused already.
func (s *Store) Pause(ctx context.Context, resource string, by Orderer) (*fencing.Order, error) {
	return s.order(ctx, resource, "SELECT fencepost.pause($1, $2, $3, $4, $5)", by.AskedBy, by.Reason, grace(s.cfg.Grace), s.cfg.Patience)
}

// Resume ends the pause of a resource or, if worker is not empty, lets that worker campaign
// again. It returns nil if there was nothing to end.
func (s *Store) Resume(ctx context.Context, resource, worker string, by Orderer) (*fencing.Order, error) {
	return s.order(ctx, resource, "SELECT fencepost.resume($1, nullif($2, ''), $3, $4)", worker, by.AskedBy, by.Reason)
}

// handoverDelay is how long a leader continues after it is ordered to hand over: by then every proxy,
// which looks for orders once a second, knows that it must leave the lease to the chosen worker.
const handoverDelay = 1500 * time.Millisecond

// Handover offers the lead of a resource to a worker, for d after the leader is stopped; if d is 0, for
// the grace and the patience. It only makes the offer: package handover says what becomes of it. The
// same offer again returns the order that has made it. Handover returns nil if the worker leads already.
// If it cannot lead, the error is a *fencing.Refusal (StateNotHandedOver) that says why, and whose hint
// names the workers that could.
func (s *Store) Handover(ctx context.Context, resource, worker string, d time.Duration, by Orderer) (*fencing.Order, error) {
	if d == 0 {
		d = s.cfg.Grace + s.cfg.Patience
	}
	return s.order(ctx, resource, "SELECT fencepost.handover($1, $2, $3, $4, $5, $6)", worker, handoverDelay, d, by.AskedBy, by.Reason)
}

// order runs a statement that gives an order to the resource's fence, its parameter $1. The
// statement returns the id of the order, 0 for none. If the fence is removed meanwhile, the
// order goes to the one that has taken its place. After ErrUnread the order was given.
func (s *Store) order(ctx context.Context, resource, sql string, args ...any) (*fencing.Order, error) {
	return s.orderBy(ctx, resource, func(f *Fence) (int64, error) {
		id, err := f.advance(ctx, sql, append([]any{f.id}, args...)...)
		return id, unlessAnswered(err, errOutcomeUnknown)
	})
}

var (
	// errOutcomeUnknown means that the connection was lost after an order was sent.
	errOutcomeUnknown = errors.New("the connection was lost, and the order may have been given: see fencepost status and fencepost resource list")
	// errRaiseUnknown is the same of one of many orders.
	errRaiseUnknown = errors.New("the connection was lost, and this epoch may have been raised, but others were not: see fencepost status, and run the command again")
	// errDurableUnknown is the same of a statement that is no order.
	errDurableUnknown = errors.New("the connection was lost, and this may have been done")
)

// unlessAnswered returns err, or, if the connection was lost after the statement was sent, unknown with it.
func unlessAnswered(err, unknown error) error {
	var network net.Error
	if err != nil && !pgconn.SafeToRetry(err) && (errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errUnanswered) || errors.As(err, &network)) {
		return fmt.Errorf("%w: %w", unknown, err)
	}
	return err
}

// orderBy calls give with the resource's fence, as order runs a statement.
func (s *Store) orderBy(ctx context.Context, resource string, give func(f *Fence) (int64, error)) (*fencing.Order, error) {
	id, err := s.tryOrder(ctx, resource, give)
	for n := 1; errors.Is(err, fencing.ErrRemoved) && n < attempts; n++ {
		id, err = s.tryOrder(ctx, resource, give)
	}
	if err != nil {
		return nil, fmt.Errorf("give an order to resource %q: %w", resource, err)
	}
	if id == 0 {
		return nil, nil
	}
	o, err := s.given(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("order %d to resource %q: %w: %v", id, resource, ErrUnread, err) // err may be a refusal, and this was not refused
	}
	return o, nil
}

// given reads an order that has been given.
func (s *Store) given(ctx context.Context, id int64) (*fencing.Order, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	st, err := s.Orders(ctx, id-1)
	if err != nil {
		return nil, err
	}
	for i := range st.Orders {
		if st.Orders[i].ID == id {
			return &st.Orders[i], nil
		}
	}
	return nil, errors.New("it is gone: was the database replaced?")
}

// tryOrder gives an order to the fence that the resource has now, and returns the order's id.
func (s *Store) tryOrder(ctx context.Context, resource string, give func(f *Fence) (int64, error)) (int64, error) {
	f := &Fence{store: s, resource: resource, slots: make(chan struct{}, fenceSlots)}
	err := s.free.QueryRow(ctx, "SELECT f.id, i.id::text FROM fencepost.fence f, fencepost.identity i WHERE f.resource = $1", resource).
		Scan(&f.id, &f.database)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("%w in database %q: %q", ErrNoResource, s.cfg.Database, resource)
	}
	if err != nil {
		return 0, s.explain(err)
	}
	id, err := give(f)
	return id, f.unlessGone(ctx, err)
}

// Orders returns the orders with ids above after, the last id of all, and what else the database says. It is one
// statement, because every proxy asks it once a second.
func (s *Store) Orders(ctx context.Context, after int64) (all fencing.Ordered, err error) {
	err = unpinged.Run(ctx, func(ctx context.Context) error {
		all, err = s.orders(ctx, after)
		return err
	})
	if err != nil {
		return fencing.Ordered{}, fmt.Errorf("read the orders of database %q: %w", s.cfg.Database, s.explain(err))
	}
	return all, nil
}

func (s *Store) orders(ctx context.Context, after int64) (all fencing.Ordered, err error) {
	rows, err := s.free.Query(ctx, `SELECT m.last, m.guards, m.barred, coalesce(o.id, 0), coalesce(o.kind, ''), coalesce(o.resource, ''), coalesce(o.worker, ''), o.until,
		coalesce(o.epoch, 0), coalesce(o.asked_by, ''), coalesce(o.role, ''), coalesce(o.reason, ''), o.asked_at
		FROM (SELECT (SELECT coalesce(max(id), 0) FROM fencepost.orders), EXISTS (SELECT FROM fencepost.bars),
			(SELECT json_object_agg(f.resource, g.tables) FROM fencepost.guarded g JOIN fencepost.fence f ON f.id = g.fence)) m (last, barred, guards)
		LEFT JOIN fencepost.orders o ON o.id > $1 ORDER BY o.id`, after)
	if err != nil {
		return all, err
	}
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
func (s *Store) InForce(ctx context.Context) (map[string]fencing.InForce, error) {
	rows, err := s.free.Query(ctx, `SELECT s.resource, s.orders, s.paused,
		coalesce(CASE WHEN s.state = 'paused' THEN pg_catalog.clock_timestamp() - s.state_since END, '0') FROM fencepost.status s
		WHERE s.resource IN (SELECT f.resource FROM fencepost.bars b JOIN fencepost.fence f ON f.id = b.fence)`)
	all := make(map[string]fencing.InForce)
	if err == nil {
		var resource string
		var in fencing.InForce
		_, err = pgx.ForEachRow(rows, []any{&resource, &in.Orders, &in.Paused, &in.PausedFor}, func() error { all[resource], in.Orders = in, nil; return nil })
	}
	if err != nil {
		return nil, fmt.Errorf("read the orders that are in force in database %q: %w", s.cfg.Database, s.explain(err))
	}
	return all, nil
}

// Fences returns the fences of the database.
func (s *Store) Fences(ctx context.Context) (fencing.Fences, error) {
	has := fencing.Fences{ByResource: make(map[string]fencing.FenceRow)}
	rows, err := s.free.Query(ctx, `SELECT i.id::text, coalesce(f.resource, ''), coalesce(f.id, 0), coalesce(f.epoch, 0)
		FROM fencepost.identity i LEFT JOIN fencepost.fence f ON true`)
	if err == nil {
		var resource string
		var row fencing.FenceRow
		_, err = pgx.ForEachRow(rows, []any{&has.Database, &resource, &row.ID, &row.Epoch}, func() error { has.ByResource[resource] = row; return nil })
	}
	if err != nil {
		return fencing.Fences{}, fmt.Errorf("read the fences of database %q: %w", s.cfg.Database, s.explain(err))
	}
	return has, nil
}

// Prune deletes the grants that are older than keep, except the newest of each resource,
// and returns how many. A worker id that was superseded in a deleted grant counts as new.
func (s *Store) Prune(ctx context.Context, keep time.Duration, by Orderer) (deleted int64, err error) {
	if err := s.Durable().QueryRow(ctx, "SELECT fencepost.prune($1, $2, $3)", keep, by.AskedBy, by.Reason).Scan(&deleted); err != nil {
		return 0, fmt.Errorf("prune the ledger of database %q: %w", s.cfg.Database, err)
	}
	return deleted, nil
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
func (s *Store) Bars(ctx context.Context) (map[string][]Bar, error) {
	rows, err := s.free.Query(ctx, `SELECT f.resource, coalesce(b.worker, ''), b.offered, b.until, o.asked_by, o.asked_at, o.reason
		FROM (SELECT bar.fence, bar.worker, false AS offered, bar.until, bar.order_id FROM fencepost.bars bar
			UNION ALL SELECT f.id, offer.worker, true, offer.until, offer.order_id
				FROM fencepost.offers offer JOIN fencepost.fence f ON f.id = offer.fence AND f.epoch = offer.epoch) b
		JOIN fencepost.fence f ON f.id = b.fence JOIN fencepost.orders o ON o.id = b.order_id
		WHERE b.until IS NULL OR b.until > clock_timestamp() ORDER BY f.resource, b.offered, b.worker NULLS FIRST`)
	if err != nil {
		return nil, fmt.Errorf("list the bars of database %q: %w", s.cfg.Database, s.explain(err))
	}
	bars := make(map[string][]Bar)
	var resource string
	var bar Bar
	var until *time.Time
	_, err = pgx.ForEachRow(rows, []any{&resource, &bar.Worker, &bar.Offered, &until, &bar.AskedBy, &bar.AskedAt, &bar.Reason}, func() error {
		bar.Until = time.Time{}
		if until != nil {
			bar.Until = *until
		}
		bars[resource] = append(bars[resource], bar)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the bars of database %q: %w", s.cfg.Database, s.explain(err))
	}
	return bars, nil
}
