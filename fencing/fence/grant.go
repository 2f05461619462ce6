package fence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/faults"
)

// attempts is how often a grant is attempted when concurrent locks interfere.
const attempts = 5

// Number numbers an instance of a lease service unless it has a number already.
// Instances are numbered in the order in which they are first seen, so it must be
// called before anyone asks for a lease under the instance.
func (f *Fence) Number(ctx context.Context, source, marker string) error {
	err := f.db.read(ctx, func() error {
		_, err := f.db.fences.Exec(ctx, "SELECT fencepost.generation($1, $2)", source, marker)
		return err
	})
	if err != nil {
		return fmt.Errorf("number an instance of source %q: %w", source, f.db.Explain(err))
	}
	return nil
}

// Grant records an award and returns its epoch. Once it has returned without an error,
// no backend that was registered under a lower epoch is left.
//
// Refusals are *fencing.Refusal: ZF001 if another candidacy was granted an epoch since
// this one held its own; ZF004 if the fence is older than what was seen before, or
// cannot be used, or no one could be registered; ZF006 if the award is not newer than the
// recorded one; ZF007 if the award's lease service instance has no number (see Number).
// If an operator's order forbids the grant, the error is a *fencing.Barred. After a
// GrantBlockedError the old epoch stays in force, unless the connection did not respond
// either. After any other error, including ErrUnconfirmed, ask again with the same
// award. fencing.ErrReplaced is a ZF004 as well.
func (f *Fence) Grant(ctx context.Context, a fencing.Award) (fencing.Epoch, error) {
	if a.Resource != f.resource {
		return 0, fmt.Errorf("grant on resource %q: the award is for %q", f.resource, a.Resource)
	}
	epoch, err := f.advance(ctx, "SELECT fencepost.grant($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) FROM fencepost.identity i "+
		"WHERE i.id = $11::uuid AND NOT EXISTS (SELECT FROM fencepost.fence f WHERE f.id = $1 AND f.resource <> $12) AND "+enterableSQL,
		f.id, a.Worker, a.Incarnation, a.Source, a.InstanceID, a.Index, int64(a.Held), int64(a.HighestObserved), f.db.Grace(), f.db.Patience(), f.database, f.resource)
	if err == nil {
		f.db.confirmed.note(f.id, grantID{fencing.Epoch(epoch), a.Incarnation})
		return fencing.Epoch(epoch), nil
	}
	ctx, cancel := context.WithTimeout(ctx, pollTimeout) // the server may have frozen since
	defer cancel()
	if errors.Is(err, pgx.ErrNoRows) {
		if err = f.checkEnterable(ctx); err == nil {
			err = f.replaced()
		}
	}
	return 0, fmt.Errorf("grant an epoch on resource %q: %w", f.resource, f.unlessGone(ctx, err))
}

// enterableSQL is true if the database has what a registration calls. Without it, a worker that is granted an epoch
// cannot write.
const enterableSQL = `(to_regprocedure('fencepost.enter(integer,integer,text,text,bigint,text,text,bigint,bigint)') IS NOT NULL AND to_regprocedure('fencepost.holds(fencepost.fence,bigint,bigint,text)') IS NOT NULL)`

// checkEnterable returns the error of a fence where no one can be registered, nil if the database has what that calls.
func (f *Fence) checkEnterable(ctx context.Context) error {
	var can bool
	if err := f.db.Pool().QueryRow(ctx, "SELECT "+enterableSQL).Scan(&can); err != nil || can {
		return err
	}
	if err := f.db.Examine(ctx); err != nil {
		return err
	}
	return f.db.NoFence(faults.Schema, "the schema fencepost of database %s lacks a function that every registration calls", fencing.ASCII(f.db.cfg.Database))
}

// advance runs a statement that may record a new epoch, and returns the number that the
// statement returns. It retries if concurrent locks interfered, or if it gave its turn to
// another grant.
func (f *Fence) advance(ctx context.Context, sql string, args ...any) (int64, error) {
	defer f.db.reports.startWatch(f.resource, f.db.cfg.Blocked)()
	w := &blockers{fence: f, log: f.db.log, began: time.Now()}
	for n := 1; ; {
		number, err := f.turn(ctx, w, sql, withGrace(args, time.Since(w.began)))
		switch {
		case err == nil:
			w.report(nil)
			return number, nil
		case errors.Is(err, errYielded): // it waits for its next turn
		case n == attempts || !isRetryable(err) || ctx.Err() != nil:
			err = f.explainGrant(err)
			w.gaveUp(ctx, err)
			return 0, err
		default:
			n++
		}
	}
}

// Grace is an argument of a statement that may record a new epoch: how long those of the old one may continue.
type Grace time.Duration

// withGrace returns the arguments with the grace that is left. A grant that has given up its turn does not restart it.
func withGrace(args []any, since time.Duration) []any {
	left := slices.Clone(args)
	for i, a := range left {
		if g, ok := a.(Grace); ok {
			left[i] = max(time.Duration(g)-since, 0)
		}
	}
	return left
}

// Grace returns the configured grace as an argument of Advance.
func (d *Database) Grace() Grace { return Grace(d.cfg.Grace) }

// Patience returns the configured patience.
func (d *Database) Patience() time.Duration { return d.cfg.Patience }

// ErrNoResource means that the database has no resource of that name.
var ErrNoResource = errors.New("there is no such resource")

// Advance runs a statement that may record a new epoch, as a grant does, for the fence that the resource has now, whose
// id is its parameter $1. It returns the number that the statement returns. The error is ErrNoResource if the resource
// has no fence, and fencing.ErrRemoved if the fence was removed meanwhile. If Unanswered, the statement may have had
// its effect.
func (d *Database) Advance(ctx context.Context, resource, sql string, args ...any) (int64, error) {
	f := &Fence{db: d, resource: resource, slots: make(chan struct{}, fenceSlots)}
	err := d.Pool().QueryRow(ctx, "SELECT f.id, i.id::text FROM fencepost.fence f, fencepost.identity i WHERE f.resource = $1", resource).
		Scan(&f.id, &f.database)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("%w in database %q: %q", ErrNoResource, d.cfg.Database, resource)
	}
	if err != nil {
		return 0, d.Explain(err)
	}
	number, err := f.advance(ctx, sql, append([]any{f.id}, args...)...)
	return number, f.unlessGone(ctx, err)
}

// Unanswered reports whether err says that the connection was lost after a statement was sent.
func Unanswered(err error) bool {
	var network net.Error
	return err != nil && !pgconn.SafeToRetry(err) && (errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errUnanswered) || errors.As(err, &network))
}

// turn waits for this grant's turn and makes one attempt.
func (f *Fence) turn(ctx context.Context, w *blockers, sql string, args []any) (int64, error) {
	if err := f.db.turns.take(ctx); err != nil {
		return 0, err
	}
	w.yields = false
	defer func() { f.db.turns.give(w.yields) }()
	var number int64
	err := f.attempt(ctx, w, []any{&number}, sql, args)
	return number, err
}

// attempt runs the statement once, and scans its row, while a watch removes what blocks it.
func (f *Fence) attempt(ctx context.Context, clear *blockers, into []any, sql string, args []any) error {
	conn, err := f.db.fences.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("get a connection: %w", err)
	}
	defer conn.Release()
	pg := conn.Conn().PgConn()
	forgetNotices(pg)

	// The caller's cancellation goes through the watch, which cancels the statement in an orderly way, and closes
	// the connection if the server does not respond.
	aborted := false
	running := context.WithoutCancel(ctx)
	watched, returned := context.WithCancel(running)
	progress := &drainProgress{began: make(chan fencing.Epoch, 1)}
	pg.CustomData()[progressKey] = progress
	defer delete(pg.CustomData(), progressKey)
	w := &watch{fence: f, blockers: clear, pid: pg.PID(), running: watched, progress: progress, log: f.db.log}
	w.stop = func() { aborted = true; store.Abort(pg.Conn()) }
	over := make(chan error, 1)
	go func() { over <- w.run(ctx) }()

	err = conn.QueryRow(running, sql, args...).Scan(into...)
	returned()
	cancelled := <-over
	for _, b := range progress.ended { // the watch has returned, and nothing else uses the connection
		clear.logEnded(b)
	}
	if aborted || cancelled != nil && store.CodeOf(err) != codeCancelled {
		// The cancel request may still be in flight. It must not hit someone else's
		// statement on this connection.
		defer f.db.discard(conn, aborted)
	}
	switch {
	case isUnconfirmed(pg):
		return ErrUnconfirmed
	case err == nil:
		return nil
	}
	answered := store.CodeOf(err) != "" || !pg.IsClosed()
	switch lost := errors.Is(cancelled, errUnanswered); {
	case cancelled == nil, lost && answered:
		return err
	case answered:
		return cancelled
	case lost, errors.Is(cancelled, errYielded): // what may have been done is not asked for again
		return errUnanswered
	}
	return fmt.Errorf("%w: %w", cancelled, errUnanswered)
}

// discard closes a connection. One that was aborted leaves its pool at once, and what has cut it has probably cut
// others.
func (d *Database) discard(conn *pgxpool.Conn, aborted bool) {
	ctx, cancel := context.WithTimeout(context.Background(), cancelWait)
	defer cancel()
	closes := conn.Conn()
	if aborted {
		closes = conn.Hijack()
		d.Store.CloseIdle()
	}
	_ = closes.Close(ctx)
}

// explainGrant converts the error of a grant into one that callers can distinguish.
func (f *Fence) explainGrant(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == codeInUse {
		return &GrantBlockedError{Resource: f.resource, Holders: []string{pg.Message}}
	}
	return f.db.Explain(err)
}

// detail returns the DETAIL of a refusal, one line of JSON in the format of
// fencepost.detail.
func detail(resource string, t fencing.Term, rec fencing.Record) string {
	return fencing.Detail(struct {
		Resource      string        `json:"resource"`
		Worker        string        `json:"worker"`
		Incarnation   string        `json:"incarnation"`
		Epoch         fencing.Epoch `json:"epoch"`
		CurrentEpoch  fencing.Epoch `json:"current_epoch"`
		CurrentWorker *string       `json:"current_worker"`
	}{resource, t.Worker, t.Incarnation, t.Epoch, rec.Epoch, nullable(rec.Worker)})
}

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// limit returns the longest that one attempt may take. Who calls for no resource bounds it.
func (f *Fence) limit() time.Duration {
	if f.id == 0 {
		return math.MaxInt64
	}
	return 2*(f.db.cfg.Grace+f.db.Patience()) + 10*time.Second
}
