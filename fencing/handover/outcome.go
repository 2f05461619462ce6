package handover

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
)

// State is how far the newest hand-over of a resource has come.
type State struct {
	Order  int64 // which hand-over it is; 0 if the resource has none
	From   fencing.Epoch
	Former string        // who held From, "" for nobody
	Epoch  fencing.Epoch // the recorded one now
	Holder string        // who holds it, "" for nobody
	// Left is how much longer the offer lasts; it is not above 0 if it has run out.
	Left time.Duration
	// Stopped is when the leader was stopped, and Taken when the chosen worker could write, by the
	// clock of the server. They are zero if their proxies have not said so, or not yet.
	Stopped, Taken time.Time
}

// Gap is how long no transaction could begin that writes; 0 if that is not known.
func (s State) Gap() time.Duration {
	if s.Stopped.IsZero() || s.Taken.IsZero() {
		return 0
	}
	return s.Taken.Sub(s.Stopped)
}

// querier is what reads a row.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Look returns how far the hand-over of a resource has come. With settled it first waits for a grant
// that is in progress.
func Look(ctx context.Context, db querier, resource string, settled bool) (s State, err error) {
	if settled {
		var epoch int64
		if err := db.QueryRow(ctx, "SELECT f.epoch FROM fencepost.fence f WHERE f.resource = $1 FOR SHARE", resource).Scan(&epoch); err != nil {
			return s, fmt.Errorf("wait for a grant of resource %q: %w", resource, err)
		}
	}
	var stopped, taken *time.Time
	err = db.QueryRow(ctx, `SELECT coalesce(o.order_id, 0), coalesce(o.epoch, 0), coalesce(o.holder, ''), f.epoch, coalesce(f.worker, ''),
		coalesce(o.until - clock_timestamp(), '0'::interval), o.stopped, o.taken
		FROM fencepost.fence f LEFT JOIN fencepost.offers o ON o.fence = f.id WHERE f.resource = $1`, resource).
		Scan(&s.Order, &s.From, &s.Former, &s.Epoch, &s.Holder, &s.Left, &stopped, &taken)
	if err != nil {
		return s, fmt.Errorf("look at the hand-over of resource %q: %w", resource, err)
	}
	if stopped != nil {
		s.Stopped = *stopped
	}
	if taken != nil {
		s.Taken = *taken
	}
	return s, nil
}
