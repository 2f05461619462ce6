package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

const (
	// lookSoon is when a watch looks first, and how often while it ends what is
	// in the way. A grant that nobody is in the way of has returned by then.
	lookSoon = 20 * time.Millisecond
	// lookLate is how often it looks while the grace lasts.
	lookLate = 250 * time.Millisecond
	// cancelWait is how long a cancelled statement may take to return before
	// its connection is cut.
	cancelWait = 2 * time.Second
)

// watch stands beside one running grant: it ends the backends that are in its
// way for longer than the grace, and cancels the grant when that cannot be done.
type watch struct {
	fence *Fence
	pid   uint32             // the backend that runs the grant
	stop  context.CancelFunc // cuts the grant's connection
	done  chan struct{}      // closed when the grant has returned
	log   *zap.Logger

	since     time.Time // the grant was first seen waiting for the sequence
	ended     time.Time // the first backend was ended
	announced map[int32]bool
}

// holder is what has the lock that a grant waits for.
type holder struct {
	PID         *int32 // nil: a prepared transaction
	Gid         string // the prepared transaction's name
	Role        string
	Application string
	State       string
	Super       bool // a superuser's, and the control role is none
}

func (h holder) String() string {
	if h.PID == nil {
		return fmt.Sprintf("prepared transaction %q of role %q", h.Gid, h.Role)
	}
	return fmt.Sprintf("backend %d of role %q (application %q, %s)", *h.PID, h.Role, h.Application, h.State)
}

// run returns when the grant has: nil, or why it was cancelled.
func (w *watch) run(ctx context.Context) error {
	tick := time.NewTimer(lookSoon)
	defer tick.Stop()
	limit := time.NewTimer(w.fence.limit())
	defer limit.Stop()
	for {
		select {
		case <-w.done:
			return nil
		case <-ctx.Done():
			w.cancel(ctx)
			return context.Cause(ctx)
		case <-limit.C:
			err := w.stuck(ctx)
			w.cancel(ctx)
			return err
		case <-tick.C:
			if err := w.look(ctx); err != nil {
				w.cancel(ctx)
				return err
			}
			tick.Reset(w.nextLook())
		}
	}
}

// nextLook is how long to wait for the next look: not much longer than the grace
// still lasts.
func (w *watch) nextLook() time.Duration {
	if w.since.IsZero() {
		return lookSoon
	}
	return min(max(w.fence.store.cfg.Grace-time.Since(w.since), lookSoon), lookLate)
}

// cancel makes the grant leave the queue, and waits until it has returned.
func (w *watch) cancel(ctx context.Context) {
	free, release := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
	defer release()
	if _, err := w.fence.store.looks.Exec(free, "SELECT pg_cancel_backend($1)", int32(w.pid)); err != nil {
		w.log.Warn("cancel a grant", zap.String("resource", w.fence.resource), zap.Error(err))
	}
	select {
	case <-w.done:
	case <-free.Done():
		w.stop()
		<-w.done
	}
}

// conflicting are the lock modes that ALTER SEQUENCE … RESTART waits for.
const conflicting = "'{RowExclusiveLock,ShareUpdateExclusiveLock,ShareLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}'"

// lookSQL lists who holds the sequence that backend $1 waits for.
const lookSQL = `SELECT h.pid, coalesce(max(p.gid), ''), coalesce(max(a.usename::text), max(p.owner::text), ''), coalesce(max(a.application_name), ''),
		coalesce(max(a.state), ''), coalesce(bool_or(r.rolsuper), false) AND NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
	FROM pg_locks w
	JOIN pg_locks h ON h.locktype = 'relation' AND h.database = w.database AND h.relation = w.relation AND h.granted
		AND h.pid IS DISTINCT FROM w.pid AND h.mode = ANY (` + conflicting + `)
	LEFT JOIN pg_stat_activity a ON a.pid = h.pid
	LEFT JOIN pg_roles r ON r.oid = a.usesysid
	LEFT JOIN pg_locks x ON h.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid' AND x.virtualtransaction = h.virtualtransaction
	LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
	WHERE w.pid = $1 AND w.locktype = 'relation' AND NOT w.granted AND w.relation = to_regclass($2)
		AND w.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	GROUP BY h.pid, h.virtualtransaction`

// endSQL ends backend $1 if it still holds the sequence $2.
const endSQL = `SELECT pg_terminate_backend(h.pid) FROM pg_locks h WHERE h.pid = $1 AND h.granted AND h.locktype = 'relation'
	AND h.relation = to_regclass($2) AND h.database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1`

// look ends what is in the way for longer than the grace. The error says that
// something will not go, and that the grant is to be given up.
func (w *watch) look(ctx context.Context) error {
	looks := w.fence.store.looks
	rows, err := looks.Query(ctx, lookSQL, int32(w.pid), w.fence.sequence())
	if err != nil {
		return w.lookFailed(ctx, err)
	}
	holders, err := pgx.CollectRows(rows, pgx.RowToStructByPos[holder])
	if err != nil {
		return w.lookFailed(ctx, err)
	}
	if len(holders) == 0 {
		return nil
	}
	now := time.Now()
	if w.since.IsZero() {
		w.since = now
	}
	if now.Sub(w.since) < w.fence.store.cfg.Grace {
		return nil
	}
	var stays []string
	for _, h := range holders {
		switch {
		case h.PID == nil:
			stays = append(stays, h.String()+" must be committed or rolled back")
		case h.Super:
			stays = append(stays, h.String()+" is a superuser's, which the control role may not end")
		}
	}
	if len(stays) > 0 { // do not end others in vain
		return &InTheWayError{Resource: w.fence.resource, Holders: stays}
	}
	return w.end(ctx, holders, now)
}

// end ends the holders, and gives up when they do not go.
func (w *watch) end(ctx context.Context, holders []holder, now time.Time) error {
	var stays []string
	for _, h := range holders {
		_, err := w.fence.store.looks.Exec(ctx, endSQL, *h.PID, w.fence.sequence())
		var pg *pgconn.PgError
		switch {
		case errors.As(err, &pg) && pg.Code == codeNoRight:
			stays = append(stays, h.String()+" may not be ended by the control role: "+pg.Message)
			continue
		case err != nil:
			return w.lookFailed(ctx, err)
		}
		w.announce(h)
		if !w.ended.IsZero() && now.Sub(w.ended) > w.fence.store.cfg.Patience {
			stays = append(stays, fmt.Sprintf("%s is still there %s after it was ended", h, w.fence.store.cfg.Patience))
		}
	}
	if w.ended.IsZero() {
		w.ended = now
	}
	if len(stays) > 0 {
		return &InTheWayError{Resource: w.fence.resource, Holders: stays}
	}
	return nil
}

// announce logs once per backend that it was ended.
func (w *watch) announce(h holder) {
	if w.announced == nil {
		w.announced = make(map[int32]bool)
	}
	if w.announced[*h.PID] {
		return
	}
	w.announced[*h.PID] = true
	w.log.Info("ended a backend in the way of a grant", zap.String("resource", w.fence.resource),
		zap.Int32("pid", *h.PID), zap.String("user", h.Role), zap.String("application", h.Application), zap.String("state", h.State))
}

// lookFailed keeps the grant waiting when only the look failed: the limit, or
// its own connection's end, will tell.
func (w *watch) lookFailed(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		w.log.Warn("look what a grant waits for", zap.String("resource", w.fence.resource), zap.Error(err))
	}
	return nil
}

// stuck says what a grant waits for that is not its sequence.
func (w *watch) stuck(ctx context.Context) error {
	var what, blockers string
	err := w.fence.store.looks.QueryRow(ctx, `SELECT coalesce(a.wait_event_type || '/' || a.wait_event, a.state, ''),
		coalesce((SELECT string_agg(b::text, ', ') FROM unnest(pg_blocking_pids($1)) b), '') FROM pg_stat_activity a WHERE a.pid = $1`,
		int32(w.pid)).Scan(&what, &blockers)
	if err != nil {
		return fmt.Errorf("the grant did not return within %s", w.fence.limit())
	}
	line := fmt.Sprintf("it did not return within %s (waiting for %s)", w.fence.limit(), what)
	if blockers != "" {
		line += " behind backends " + strings.TrimSpace(blockers)
	}
	return &InTheWayError{Resource: w.fence.resource, Holders: []string{line}}
}
