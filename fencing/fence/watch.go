package fence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

const (
	// pollSoon is when a watch first polls, and how often it polls while it waits for
	// terminated backends. An unobstructed grant has returned by then.
	pollSoon = 20 * time.Millisecond
	// pollLate is how often it polls during the grace, and the least time that a grant
	// waits before it gives its turn to another one.
	pollLate = 100 * time.Millisecond
	// drainLate is the least time that a grant waits for registered backends before it gives its turn to another
	// one. Those that are idle are gone by then.
	drainLate = 600 * time.Millisecond
	// cancelWait is how long a cancelled statement may take to return before its
	// connection is closed.
	cancelWait = 2 * time.Second
)

// lookEvery is when a watch first looks at what the backend of its grant does, and the time from
// one look to the next. It is how long the standbys may take to confirm a grant before that is reported.
const lookEvery = time.Second

// backendSQL returns what the backend $1 does: since when it has been waiting for a message of its client, NULL if it
// has not, and the setting by which it waits for standbys, NULL if it does not. Without track_activities there is no
// state_change.
const backendSQL = `SELECT CASE WHEN wait_event = 'ClientRead' THEN concat(backend_start, ' ', state_change) END,
	CASE WHEN wait_event = 'SyncRep' THEN current_setting('synchronous_standby_names') END FROM pg_stat_get_activity($1)`

// errUnanswered means that the server has not received a statement or not all of it, or has done with it, or has ended,
// and that no answer has come. Mostly the connection is cut, and neither side has noticed.
var errUnanswered = errors.New("its connection does not respond: the request or its answer was lost")

// errYielded means that a grant has left the queue for another resource's grant.
var errYielded = errors.New("the turn was given to another grant")

// watch accompanies one attempt of a grant: it removes what blocks the grant, and
// cancels it if that is impossible, or if other grants wait for the connection.
type watch struct {
	fence    *Fence
	blockers *blockers
	pid      uint32          // the backend that runs the grant
	stop     func()          // aborts the grant's connection
	running  context.Context // ends when the grant has returned
	progress *drainProgress
	drained  time.Time     // when the grant began to wait for registered backends
	ending   fencing.Epoch // under which, or an older one, these are registered
	notified int           // of how many terminated backends the proxies were notified
	ends     []int32       // the backends that kept the grant from its locks at the last poll, and that it ends
	reading  string        // since when the backend waited for its client at the last look; "" if it did not
	log      *zap.Logger
}

// run returns when the grant has returned. The result is nil, or the reason why the
// watch cancelled the grant.
func (w *watch) run(ctx context.Context) error {
	began := time.Now()
	looked := began
	w.blockers.free = time.Time{}
	defer w.fence.db.cfg.Awaited(w.fence.resource, nil)
	tick := time.NewTimer(pollSoon)
	defer tick.Stop()
	limit := time.NewTimer(w.fence.limit())
	defer limit.Stop()
	for {
		select {
		case <-w.running.Done():
			return nil
		case <-ctx.Done():
			w.cancel(ctx)
			return context.Cause(ctx)
		case <-limit.C:
			err := w.stuck(ctx)
			w.cancel(ctx)
			return err
		case e := <-w.progress.began:
			w.drained, w.ending = time.Now(), e
			w.fence.notifyDrain(ctx, e, nil)
		case <-tick.C:
			if err := w.poll(ctx, time.Since(began) >= pollLate); err != nil {
				w.cancel(ctx)
				return err
			}
			if !w.drained.IsZero() && time.Since(w.drained) >= drainLate && w.fence.db.turns.yield() {
				w.blockers.yields = true
				w.cancel(ctx)
				return errYielded
			}
			if time.Since(looked) >= lookEvery {
				if err := w.look(ctx); err != nil {
					w.end(ctx) // there is nothing to cancel
					return err
				}
				w.reportAwaited(ctx)
				looked = time.Now()
			}
			tick.Reset(w.nextPoll())
		}
	}
}

// nextPoll returns the time until the next poll, which is not much longer than the rest
// of the grace.
func (w *watch) nextPoll() time.Duration {
	if len(w.blockers.seen) == 0 {
		return pollSoon
	}
	return min(max(w.fence.db.cfg.Grace-time.Since(w.blockers.began), pollSoon), pollLate)
}

// poll removes what blocks a grant: what it waits for in order to lock the fence's row, and then what keeps registered
// backends from ending that it has terminated a while ago. A backend that ends drops its temporary tables, and whoever
// has locked one of them keeps it from that: any role can, by nextval. A grant that has returned does not wait for the
// answer. What the control role executes is another grant, or a registration, and ends by itself.
func (w *watch) poll(ctx context.Context, mayYield bool) error {
	if w.fence.id == 0 { // it is no grant, and waits for what it finds
		return nil
	}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.running, cancel)()
	holders, err := w.fence.db.polls.ask(asking, int32(w.pid))
	late := w.progress.endedFor(w.fence.db.cfg.Patience / 2)
	if len(late) > w.notified {
		w.notified = len(late)
		w.fence.notifyDrain(asking, w.ending, late)
	}
	if err == nil && len(late) > 0 {
		var kept []holder
		kept, err = w.fence.db.holders(asking, lingerSQL, w.fence.id, late)
		holders = append(holders, kept...)
	}
	if err != nil {
		w.blockers.pollFailed(asking, err)
		return nil
	}
	others := slices.DeleteFunc(holders, func(h holder) bool { return h.Control && h.State == "active" })
	w.blockers.found(others)
	w.ends = nil
	for _, h := range others {
		if h.remedy() == "" {
			w.ends = append(w.ends, *h.PID)
		}
	}
	if len(others) == 0 {
		return nil
	}
	if err := w.blockers.clear(ctx, others); err != nil {
		return err
	}
	if mayYield && time.Since(w.blockers.began) < w.fence.db.cfg.Grace && w.fence.db.turns.yield() {
		w.blockers.yields = true
		return errYielded
	}
	return nil
}

// cancel cancels the grant and waits until it has returned.
func (w *watch) cancel(ctx context.Context) {
	free, release := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
	defer release()
	if _, err := w.fence.db.fences.Exec(free, "SELECT pg_cancel_backend($1)", int32(w.pid)); err != nil {
		w.log.Warn("could not cancel a grant", zap.String("resource", w.fence.resource), zap.Error(err))
	}
	select {
	case <-w.running.Done():
	case <-free.Done():
		w.end(ctx)
	}
}

// end aborts the connection of the grant, and waits until the grant has returned. It also ends the backend, which may
// be frozen, or may get the grant later: it must not do that when no one counts on it any more.
func (w *watch) end(ctx context.Context) {
	w.stop()
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
	defer cancel()
	if _, err := w.fence.db.fences.Exec(ending, "SELECT pg_terminate_backend(pid) FROM pg_stat_get_activity($1)", int32(w.pid)); err != nil {
		w.log.Warn("could not end the backend of a grant that was given up", zap.String("resource", w.fence.resource), zap.Error(err))
	}
	<-w.running.Done()
}

// stuck returns an error that says what the grant waits for if that is nothing that the watch removes.
func (w *watch) stuck(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	var what, blockers string
	err := w.fence.db.fences.QueryRow(ctx, `SELECT coalesce(a.wait_event_type || '/' || a.wait_event, a.state, ''),
		coalesce((SELECT string_agg(b::text, ', ') FROM unnest(pg_blocking_pids($1)) b), '') FROM pg_stat_get_activity($1) a`,
		int32(w.pid)).Scan(&what, &blockers)
	if err != nil {
		return fmt.Errorf("the grant did not return within %s", w.fence.limit())
	}
	line := fmt.Sprintf("it did not return within %s (waiting for %s)", w.fence.limit(), what)
	if blockers != "" {
		line += ", blocked by backends " + strings.TrimSpace(blockers)
	}
	return &GrantBlockedError{Resource: w.fence.resource, Holders: []string{line}}
}

// look looks at what the backend of the grant does. It returns errUnanswered if the backend waits for its client, the
// same at two looks, or has ended: an answer that is on its way arrives meanwhile.
//
// It reports a grant that has its epoch, but waits for a synchronous standby to confirm it. Nothing is to be ended
// then, and the grant continues to wait.
func (w *watch) look(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	var reading, standbys *string
	err := w.fence.db.fences.QueryRow(asking, backendSQL, int32(w.pid)).Scan(&reading, &standbys)
	before := w.reading
	w.reading = ""
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		w.reading = "ended"
	case err != nil:
		w.blockers.pollFailed(ctx, err)
	case reading != nil:
		w.reading = *reading
	case standbys != nil:
		what := "the grant"
		if w.fence.id == 0 {
			what = "what was written"
		}
		w.blockers.reportAs("takeover waits for a synchronous standby", []string{fmt.Sprintf(
			"no standby of synchronous_standby_names = '%s' confirms %s: start one, or change the setting", *standbys, what)})
	}
	if w.reading != "" && w.reading == before {
		return errUnanswered
	}
	return nil
}
