package fence

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
)

// awaitedSQL lists the backends $1, and if $2 those that are registered at the fence $3. The last column is how long
// after the beginning of the drain an idle one is ended, as in fencepost.drain, NULL for the others.
const awaitedSQL = `SELECT a.pid, coalesce(pg_get_userbyid(a.usesysid)::text, ''), coalesce(a.application_name, ''), coalesce(host(a.client_addr), 'local'),
		coalesce(a.state, ''), a.state_change,
		CASE WHEN $2 AND a.state = 'idle' THEN coalesce(nullif(current_setting('fencepost.drain_idle', true), ''), '250 ms')::interval END
	FROM pg_stat_get_activity(NULL) a
	WHERE a.pid = ANY ($1) OR $2 AND a.datid = (SELECT fencepost.here())
		AND EXISTS (SELECT FROM fencepost.running r WHERE r.fence = $3 AND r.pid = a.pid AND r.backend_start = a.backend_start)
	ORDER BY a.state_change, a.pid`

// reportAwaited says which backends the grant waits for and ends.
func (w *watch) reportAwaited(ctx context.Context) {
	drains := !w.drained.IsZero()
	if !drains && len(w.ends) == 0 {
		w.fence.db.cfg.Awaited(w.fence.resource, nil)
		return
	}
	asking, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	defer context.AfterFunc(w.running, cancel)()
	rows, _ := w.fence.db.fences.Query(asking, awaitedSQL, w.ends, drains, w.fence.id)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (b fencing.Awaited, err error) {
		var idle *time.Duration
		err = row.Scan(&b.PID, &b.User, &b.Application, &b.Address, &b.State, &b.Since, &idle)
		b.EndsAt = w.blockers.began.Add(w.fence.db.cfg.Grace)
		if idle != nil && w.drained.Add(*idle).Before(b.EndsAt) {
			b.EndsAt = w.drained.Add(*idle)
		}
		return b, err
	})
	if err != nil {
		w.blockers.pollFailed(asking, err)
		return
	}
	w.fence.db.cfg.Awaited(w.fence.resource, all)
}
