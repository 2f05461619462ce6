package fence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

// blockers tracks what blocks one grant, over all of its attempts. It belongs to one
// goroutine at a time.
type blockers struct {
	fence  *Fence
	log    *zap.Logger
	began  time.Time            // the grace counts from here
	seen   map[string]*obstacle // by transaction
	yields bool                 // the grant gives its turn to another one
	named  bool                 // a poll has found, and reported, something that cannot be ended
	free   time.Time            // since when polls find no such thing; zero if the last one did
}

// obstacle is a transaction that blocks the grant.
type obstacle struct {
	ended time.Time // when its backend was first terminated
}

// endSQL terminates the backends of those of the transactions $1 that have not ended.
const endSQL = `SELECT pg_terminate_backend(t.pid) FROM (` + transactionsSQL + `) t WHERE t.transaction = ANY ($1) AND t.pid IS NOT NULL`

// clear terminates the holders when the grace has passed. It returns an error if something cannot be removed and the
// grant must be given up. A holder that the control role cannot terminate is reported when it is seen for the second
// time.
func (w *blockers) clear(ctx context.Context, holders []holder) error {
	before := w.seen
	w.remember(holders)
	over := time.Since(w.began) >= w.fence.db.cfg.Grace
	var blocked, stays []string
	for _, h := range holders {
		remedy := h.remedy()
		if remedy != "" && before[h.Transaction] != nil {
			blocked = append(blocked, remedy)
		}
		if remedy != "" && over {
			stays = append(stays, remedy)
		}
	}
	if len(blocked) > 0 { // otherwise the last report stays, see found
		w.named = true
		w.report(blocked)
	}
	if len(stays) > 0 { // do not terminate others in vain
		return &GrantBlockedError{Resource: w.fence.resource, Holders: stays}
	}
	if len(blocked) > 0 || !over {
		return nil
	}
	return w.end(ctx, holders)
}

// found follows whether polls find something that cannot be ended. If they have, and have not for a while, it is gone,
// although the grant may wait for others.
func (w *blockers) found(holders []holder) {
	switch {
	case slices.ContainsFunc(holders, func(h holder) bool { return h.remedy() != "" }):
		w.free = time.Time{}
	case w.free.IsZero():
		w.free = time.Now()
	case w.named && time.Since(w.free) >= lookEvery:
		w.named = false
		w.report(nil)
	}
}

// remember forgets the obstacles that are gone.
func (w *blockers) remember(holders []holder) {
	present := make(map[string]*obstacle, len(holders))
	for _, h := range holders {
		if present[h.Transaction] = w.seen[h.Transaction]; present[h.Transaction] == nil {
			present[h.Transaction] = &obstacle{}
		}
	}
	w.seen = present
}

// end terminates the holders. It returns an error if they do not go away.
func (w *blockers) end(ctx context.Context, holders []holder) error {
	patience := w.fence.db.cfg.Patience
	var stays []string
	denied, err := w.terminate(ctx, holders)
	if err != nil {
		w.pollFailed(ctx, err)
		return nil
	}
	now := time.Now()
	for _, h := range holders {
		if why := denied[h.Transaction]; why != "" {
			stays = append(stays, h.String()+" cannot be terminated by the control role: "+why)
			continue
		}
		o := w.seen[h.Transaction]
		if o.ended.IsZero() {
			o.ended = now
			w.logEnded(endedBackend{PID: *h.PID, User: h.Role, Application: h.Application, State: h.State, at: now})
		}
		if now.Sub(o.ended) > patience {
			stays = append(stays, fmt.Sprintf("%s is still there %s after it was terminated", h, patience))
		}
	}
	if len(stays) > 0 {
		w.report(stays)
		return &GrantBlockedError{Resource: w.fence.resource, Holders: stays}
	}
	return nil
}

// terminate terminates the backends of these transactions. It returns why the control role may not terminate some of
// them, by transaction.
func (w *blockers) terminate(ctx context.Context, holders []holder) (denied map[string]string, err error) {
	transactions := make([]string, len(holders))
	for i, h := range holders {
		transactions[i] = h.Transaction
	}
	asked, cancel := context.WithTimeout(ctx, pollTimeout)
	_, err = w.fence.db.fences.Exec(asked, endSQL, transactions)
	cancel()
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &pg) || pg.Code != codeNoRight:
		return nil, err
	case len(holders) == 1:
		return map[string]string{holders[0].Transaction: pg.Message}, nil
	}
	denied = make(map[string]string)
	for i := range holders { // the error does not say which one it is about
		one, err := w.terminate(ctx, holders[i:i+1])
		if err != nil {
			return nil, err
		}
		maps.Copy(denied, one)
	}
	return denied, nil
}

// logEnded logs that a backend was terminated.
func (w *blockers) logEnded(b endedBackend) {
	w.log.Warn("terminated a backend that blocked a grant", zap.String("resource", w.fence.resource),
		zap.Int32("pid", b.PID), zap.String("user", b.User), zap.String("application", b.Application), zap.String("state", b.State))
}

// report reports to the operator what blocks the grant and cannot be ended, if that has changed
// since the last report about the resource, of this grant or of one before.
func (w *blockers) report(blocked []string) {
	w.reportAs("takeover blocked by a transaction the control role cannot end", blocked)
}

// reportAs is report for an obstacle of any kind, which the log line names.
func (w *blockers) reportAs(what string, blocked []string) {
	slices.Sort(blocked)
	if w.fence.db.reports.change(w.fence.resource, blocked, w.fence.db.cfg.Blocked) && len(blocked) > 0 {
		w.log.Warn(what, zap.String("resource", w.fence.resource), zap.Strings("blocked_by", blocked))
	}
}

// gaveUp reports what blocks a grant that was given up. If it was given up for another
// reason, nothing here waits any more. A grant that no standby has confirmed is asked for again, so
// its report stays, unless the one who asked is gone.
func (w *blockers) gaveUp(ctx context.Context, err error) {
	var blocked *GrantBlockedError
	switch {
	case errors.As(err, &blocked):
		w.report(slices.Clone(blocked.Holders))
		w.fence.db.reports.keep(w.fence.resource, slices.Collect(maps.Keys(w.seen)))
	case errors.Is(err, ErrUnconfirmed) && ctx.Err() == nil:
		w.fence.db.reports.keep(w.fence.resource, []string{standbys})
	default:
		w.report(nil)
	}
}

// pollFailed logs a failed poll and keeps the grant waiting. If the failure lasts, the
// limit or the end of the grant's own connection will end the grant.
func (w *blockers) pollFailed(ctx context.Context, err error) {
	if ctx.Err() == nil {
		w.log.Warn("could not read what a grant waits for", zap.String("resource", w.fence.resource), zap.Error(err))
	}
}
