package evidence

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/owner"
)

// Grant is a row of the ledger.
type Grant struct {
	Resource   string
	Epoch      int64
	Worker     string // "" if the epoch was given to nobody
	Source     string // the lease service, or operator
	Generation int64  // of the lease service
	Index      int64  // of the award within it: the token, if the source is token
	At         time.Time
	Xid        Xid      // of the grant
	Snapshot   Snapshot // of that transaction, when nothing of an older epoch could commit any more
	// Copied: the row was not written by the transaction that it names, so it came with a
	// restored dump, and its ids are those of another server or another life of this one.
	Copied bool
	// Proxy is the one through which the worker was granted the epoch, Ended how the term before had ended, and Gap how
	// long no worker was confirmed as the leader before, if the proxy has said that; otherwise "", "" and 0.
	Proxy string
	Ended fencing.Ending
	Gap   time.Duration
	// Order is what an operator has ordered to give the epoch to no one or, if its kind is handover, to this worker. It
	// is the zero Order if none has.
	Order Order
}

// Order is what is known of an order.
type Order struct{ Kind, AskedBy, Reason string }

// rowsOfLedger compares each row's own transaction with the recorded one. Rows that were
// written by one transaction and name several have come by a copy too, also if one of the ids
// happens to be the right one.
const rowsOfLedger = `SELECT g.resource, g.epoch, coalesce(g.worker, ''), g.source, g.source_generation, g.source_index, g.granted_at,
	g.x, g.snapshot::text, g.x & 4294967295 <> g.own OR min(g.x) OVER w <> max(g.x) OVER w,
	coalesce(t.proxy, ''), coalesce(t.ended, ''), coalesce(t.gap, '0'::interval), coalesce(o.kind, ''), coalesce(o.asked_by, ''), coalesce(o.reason, '')
	FROM (SELECT l.*, l.xid::text::bigint AS x, l.xmin::text::bigint AS own, lag(l.granted_at) OVER (PARTITION BY l.id ORDER BY l.epoch) AS began FROM fencepost.grants l) g
	LEFT JOIN fencepost.takeovers t ON t.id = g.id AND t.epoch = g.epoch
	LEFT JOIN LATERAL (SELECT o.kind, o.asked_by, o.reason FROM fencepost.orders o
		WHERE o.resource = g.resource AND (o.epoch = g.epoch OR o.kind = 'handover' AND o.worker = g.worker AND o.asked_at BETWEEN g.began AND g.granted_at)
		ORDER BY o.id DESC LIMIT 1) o ON true
	WINDOW w AS (PARTITION BY g.own) ORDER BY g.resource COLLATE "C", g.epoch`

// Ledger returns the grants of each resource, in the order of their epochs.
func (s *Session) Ledger(ctx context.Context) (map[string][]Grant, error) {
	ledger := make(map[string][]Grant)
	err := s.asControl(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, rowsOfLedger)
		if err != nil {
			return err
		}
		var g Grant
		var xid int64
		var snapshot string
		_, err = pgx.ForEachRow(rows, []any{&g.Resource, &g.Epoch, &g.Worker, &g.Source, &g.Generation, &g.Index, &g.At, &xid, &snapshot, &g.Copied,
			&g.Proxy, &g.Ended, &g.Gap, &g.Order.Kind, &g.Order.AskedBy, &g.Order.Reason}, func() (err error) {
			g.Xid = Xid(xid)
			if g.Snapshot, err = ParseSnapshot(snapshot); err != nil {
				return err
			}
			ledger[g.Resource] = append(ledger[g.Resource], g)
			return nil
		})
		return err
	})
	if stateOf(err) == "42P01" {
		return nil, fmt.Errorf("read the ledger: %w: run fencepost migrate --dsn DSN", err)
	} else if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	return ledger, nil
}

// Resources returns the names of the resources.
func (s *Session) Resources(ctx context.Context) (names []string, err error) {
	err = s.asControl(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT f.resource FROM fencepost.fence f ORDER BY f.resource`)
		if err != nil {
			return err
		}
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the resources: %w", err)
	}
	return names, nil
}

// examine returns an error unless the schema has what this package reads.
func (s *Session) examine(ctx context.Context) error {
	by, err := owner.Of(ctx, s.conn)
	if err != nil {
		return err
	}
	s.control = by.Role
	return nil
}
