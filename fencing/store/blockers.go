package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

// blockers is what stands in the way of one grant, over all its attempts. It belongs
// to one goroutine at a time.
type blockers struct {
	fence    *Fence
	log      *zap.Logger
	seen     map[string]*obstacle // by transaction
	reported []string             // what was reported as blocking the grant
	yields   bool                 // the turn goes to another grant
}

// obstacle is a transaction that is in the way.
type obstacle struct {
	since time.Time // when it was first seen there
	ended time.Time // when its backend was ended first
}

// endSQL ends backend $1 if its transaction $3 still holds the sequence $2.
const endSQL = `SELECT pg_terminate_backend(h.pid) FROM pg_locks h WHERE h.pid = $1 AND h.granted AND h.locktype = 'relation'
	AND h.relation = to_regclass($2) AND h.virtualtransaction = $3
	AND h.database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1`

// clear ends those holders that have been in the way for longer than the grace.
// The error says that something will not go, and that the grant is to be given
// up. What cannot be ended is reported when it is seen for the second time.
func (w *blockers) clear(ctx context.Context, holders []holder) error {
	now, grace := time.Now(), w.fence.store.cfg.Grace
	w.remember(holders, now)
	var blocked, stays []string
	for _, h := range holders {
		remedy, age := h.remedy(), now.Sub(w.seen[h.Transaction].since)
		if remedy != "" && age > 0 {
			blocked = append(blocked, remedy)
		}
		if remedy != "" && age >= grace {
			stays = append(stays, remedy)
		}
	}
	w.report(blocked)
	if len(stays) > 0 { // do not end others in vain
		return &GrantBlockedError{Resource: w.fence.resource, Holders: stays}
	}
	if len(blocked) > 0 {
		return nil
	}
	return w.end(ctx, holders, now)
}

// remember notes when each holder was seen first, and forgets those that have
// gone.
func (w *blockers) remember(holders []holder, now time.Time) {
	present := make(map[string]*obstacle, len(holders))
	for _, h := range holders {
		if present[h.Transaction] = w.seen[h.Transaction]; present[h.Transaction] == nil {
			present[h.Transaction] = &obstacle{since: now}
		}
	}
	w.seen = present
}

// oldest is how long the first of what is in the way has been there.
func (w *blockers) oldest() time.Duration {
	age := time.Duration(0)
	for _, o := range w.seen {
		age = max(age, time.Since(o.since))
	}
	return age
}

// end ends the holders whose grace is over, and gives up when they do not go.
func (w *blockers) end(ctx context.Context, holders []holder, now time.Time) error {
	cfg := &w.fence.store.cfg
	var stays []string
	for _, h := range holders {
		o := w.seen[h.Transaction]
		if now.Sub(o.since) < cfg.Grace {
			continue
		}
		_, err := w.fence.store.watches.Exec(ctx, endSQL, *h.PID, w.fence.sequence(), h.Transaction)
		var pg *pgconn.PgError
		switch {
		case errors.As(err, &pg) && pg.Code == codeNoRight:
			stays = append(stays, h.String()+" may not be ended by the control role: "+pg.Message)
			continue
		case err != nil:
			w.pollFailed(ctx, err)
			return nil
		}
		if o.ended.IsZero() {
			o.ended = now
			w.log.Info("ended a backend in the way of a grant", zap.String("resource", w.fence.resource),
				zap.Int32("pid", *h.PID), zap.String("user", h.Role), zap.String("application", h.Application), zap.String("state", h.State))
		}
		if now.Sub(o.ended) > cfg.Patience {
			stays = append(stays, fmt.Sprintf("%s is still there %s after it was ended", h, cfg.Patience))
		}
	}
	if len(stays) > 0 {
		w.report(stays)
		return &GrantBlockedError{Resource: w.fence.resource, Holders: stays}
	}
	return nil
}

// report says what blocks the grant when that changes, nothing for a way that is
// free.
func (w *blockers) report(blocked []string) {
	slices.Sort(blocked)
	if slices.Equal(blocked, w.reported) {
		return
	}
	w.reported = blocked
	if len(blocked) > 0 {
		w.log.Warn("a takeover is blocked by what the control role cannot end",
			zap.String("resource", w.fence.resource), zap.Strings("blocked_by", blocked))
	}
	w.fence.store.cfg.Blocked(w.fence.resource, blocked)
}

// pollFailed keeps the grant waiting when only the look failed: the limit, or
// its own connection's end, will tell.
func (w *blockers) pollFailed(ctx context.Context, err error) {
	if ctx.Err() == nil {
		w.log.Warn("look what a grant waits for", zap.String("resource", w.fence.resource), zap.Error(err))
	}
}

// aside is for a grant that gave its turn to another one: it returns when those
// that were in its way then are gone, and ends them when their grace is over.
// Whoever came since is none of its business: it is not in the queue.
func (w *blockers) aside(ctx context.Context) error {
	tick := time.NewTicker(pollLate)
	defer tick.Stop()
	was := w.seen
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		all, err := w.fence.store.polls.at(ctx, w.fence.id)
		if err != nil {
			w.pollFailed(ctx, err)
			continue
		}
		var left []holder
		for _, h := range all {
			if h.Holds && !h.Control && was[h.Transaction] != nil {
				left = append(left, h)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if err := w.clear(ctx, left); err != nil {
			return err
		}
	}
}
