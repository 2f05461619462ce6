package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
)

// recordWait is how long Record waits for a grant in progress. It is long enough for a
// grant that ended a backend to return on a loaded machine, so that the backend's
// client gets the reason.
const recordWait = 2 * time.Second

// fenceSlots is how many statements of one fence may wait for its lock at once. It
// keeps a stuck resource from occupying all connections.
const fenceSlots = 2

const (
	// quickLock is how long such a statement waits for the lock before it returns its
	// connection and tries again later. A grant may hold the lock for as long as the
	// grace lasts.
	quickLock = 20 * time.Millisecond
	// retrySoon and retryLate bound the pause between attempts, which doubles each
	// time.
	retrySoon = 10 * time.Millisecond
	retryLate = 160 * time.Millisecond
)

// Fence is one resource's fence. It is safe for concurrent use.
type Fence struct {
	db       *Database
	id       int32
	database string // identity
	resource string
	slots    chan struct{}
	arrivals arrivals
}

var _ fencing.Fence = (*Fence)(nil)

// Fence returns the fence of a resource, and creates it if the resource is new.
func (d *Database) Fence(ctx context.Context, resource string) (*Fence, error) {
	if resource == "" || len(resource) > fencing.MaxName {
		return nil, fmt.Errorf("register resource %q: %w", resource, &fencing.Refusal{
			SQLState: fencing.StateNoFence, Message: fmt.Sprintf("the name of the resource has %d bytes", len(resource)), Hint: fencing.NameRule,
		})
	}
	f := &Fence{db: d, resource: resource, slots: make(chan struct{}, fenceSlots)}
	register := func() error { return d.Pool().QueryRow(ctx, "SELECT fencepost.register($1)", resource).Scan(&f.id) }
	err := register()
	for n := 1; (store.CodeOf(err) == codeNoRow || isRetryable(err)) && n < attempts; n++ { // an operator removed it meanwhile
		err = register()
	}
	if err == nil { // the first resource may have changed the identity
		err = d.Pool().QueryRow(ctx, "SELECT id::text FROM fencepost.identity").Scan(&f.database)
	}
	if err != nil {
		return nil, fmt.Errorf("register resource %q: %w", resource, d.Explain(err))
	}
	return f, nil
}

// ID implements fencing.Fence.
func (f *Fence) ID() int32 { return f.id }

// Database returns the identity of the fence's database. One that was dropped and
// recreated has another; one that was restored from a dump or copied has that of its origin.
func (f *Fence) Database() string { return f.database }

// Resource returns the resource's name.
func (f *Fence) Resource() string { return f.resource }

// Record returns the highest grant. It waits up to settle for a grant in progress,
// because the client of a backend that a grant has ended may ask before the grant has
// returned. With synchronous standbys, the grant is unconfirmed until they are known to have
// it: Record waits up to confirmPatience for that, and a later call returns what has become
// known since.
func (f *Fence) Record(ctx context.Context) (fencing.Record, error) {
	state, err := f.state(ctx, recordWait)
	if err != nil {
		return fencing.Record{}, fmt.Errorf("read the fence of resource %q: %w", f.resource, err)
	}
	rec := state.record
	rec.Unconfirmed = state.synchronous && rec.Epoch > 0 && !f.confirmed(ctx, grantID{rec.Epoch, rec.Incarnation})
	return rec, nil
}

// Verify compares what a proxy believes with the database. The error is a
// *fencing.Refusal: ZF001 if another candidacy was granted a higher epoch, ZF004 if
// this is not the fence in which the term was granted (it was restored). Without an epoch
// only the database is compared, and the resource must not have been removed. The error is
// fencing.ErrReplaced or fencing.ErrRemoved if the fence is gone.
func (f *Fence) Verify(ctx context.Context, t fencing.Term) error {
	if t.Epoch == 0 {
		return f.exists(ctx)
	}
	state, err := f.state(ctx, 0)
	if err != nil {
		return fmt.Errorf("read the fence of resource %q: %w", f.resource, err)
	}
	rec := state.record
	if rec.Epoch == t.Epoch && rec.Incarnation == t.Incarnation {
		return nil
	}
	if rec.Epoch > t.Epoch {
		return fencing.SupersededRefusal(f.resource, t.Worker, t.Incarnation, &fencing.Status{Epoch: t.Epoch, Holder: rec})
	}
	return &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message: fmt.Sprintf("worker %s was granted epoch %d on resource %s, but the fence has epoch %d, held by worker %s: the database was restored",
			fencing.Quoted(t.Worker), t.Epoch, fencing.Quoted(f.resource), rec.Epoch, fencing.Quoted(rec.Worker)),
		Detail: detail(f.resource, t, rec),
		Hint:   fencing.RestoredHint(f.db.cfg.Database, t.Epoch),
	}
}

// ofAnother is true if the fence with the id $1 is not that of the resource $2. A database
// that was recreated from a template or restored has the identity of its origin, and may
// number its fences otherwise.
const ofAnother = "EXISTS (SELECT FROM fencepost.fence f WHERE f.id = $1 AND f.resource <> $2)"

// exists returns fencing.ErrReplaced if the database is not the one in which the fence was
// opened, and fencing.ErrRemoved if an operator has removed the fence. A fence that was
// lost otherwise is not looked for.
func (f *Fence) exists(ctx context.Context) error {
	var database string
	var removed bool
	err := f.db.Pool().QueryRow(ctx, `SELECT CASE WHEN `+ofAnother+` THEN '' ELSE i.id::text END, NOT EXISTS (SELECT FROM fencepost.fence f WHERE f.id = $1)
		AND EXISTS (SELECT FROM fencepost.orders o WHERE o.kind = 'remove' AND o.resource = $2)
		FROM fencepost.identity i`, f.id, f.resource).Scan(&database, &removed)
	switch {
	case err != nil:
		return fmt.Errorf("read the identity of the database: %w", f.db.Explain(err))
	case database != f.database:
		return f.replaced()
	case removed:
		return f.removed()
	}
	return nil
}

// unlessGone returns err, or fencing.ErrReplaced or fencing.ErrRemoved if it came because
// the fence is not in the database any more.
func (f *Fence) unlessGone(ctx context.Context, err error) error {
	var refusal *fencing.Refusal
	if errors.As(err, &refusal) && refusal.SQLState == fencing.StateNoFence {
		if gone := f.exists(ctx); errors.Is(gone, fencing.ErrReplaced) || errors.Is(gone, fencing.ErrRemoved) {
			return gone
		}
	}
	return err
}

// removed is the error for a fence whose resource an operator has removed.
func (f *Fence) removed() error {
	return fmt.Errorf("%w: %w", fencing.ErrRemoved, &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message:  fmt.Sprintf("an operator removed resource %s after its fence was opened", fencing.Quoted(f.resource)),
		Hint:     "Connect again.",
	})
}

// replaced is the error for a fence whose database is gone.
func (f *Fence) replaced() error {
	return fmt.Errorf("%w: %w", fencing.ErrReplaced, &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message:  fmt.Sprintf("database %s, or its schema fencepost, was dropped and recreated after the fence of resource %s was opened", fencing.ASCII(f.db.cfg.Database), fencing.Quoted(f.resource)),
		Hint:     "Connect again.",
	})
}

// SupersededBefore reports whether this worker id led under an epoch, and another worker has led under a
// higher one since. Grants to the candidacy except do not count.
func (f *Fence) SupersededBefore(ctx context.Context, worker, except string) (bool, error) {
	const (
		own = `least((SELECT min(g.epoch) FROM fencepost.grants g WHERE g.id = $1 AND g.worker = $2 AND g.incarnation IS DISTINCT FROM $3),
			(SELECT min(b.epoch) FROM fencepost.bearers b WHERE b.id = $1 AND b.worker = $2))`
		others = `greatest((SELECT max(g.epoch) FROM fencepost.grants g WHERE g.id = $1 AND g.worker IS DISTINCT FROM $2),
			(SELECT max(b.epoch) FROM fencepost.bearers b WHERE b.id = $1 AND b.worker <> $2))`
	)
	var before bool
	err := f.db.Pool().QueryRow(ctx, "SELECT coalesce("+own+" < "+others+", false)", f.id, worker, except).Scan(&before)
	if err != nil {
		return false, fmt.Errorf("look for earlier grants to worker %q on resource %q: %w", worker, f.resource, f.db.Explain(err))
	}
	return before, nil
}

// retry calls try, which waits for the fence's lock for at most quickLock, until it
// reports that it got the lock or fails, or until wait has passed (0: until ctx has
// ended). Between attempts it holds no connection.
func (f *Fence) retry(ctx context.Context, wait time.Duration, try func() (bool, error)) error {
	began := time.Now()
	for pause := retrySoon; ; pause = min(2*pause, retryLate) {
		release, err := f.slot(ctx)
		if err != nil {
			return err
		}
		got, err := try()
		release()
		if got || err != nil || wait > 0 && time.Since(began) >= wait {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("wait for the fence's row or the registry, which a grant or somebody else has locked: %w", context.Cause(ctx))
		}
	}
}

// CheckRole implements election.Fence.
func (f *Fence) CheckRole(ctx context.Context, user string, pid uint32) error {
	return f.db.roles.check(ctx, user, pid)
}

// WaitFor implements fencing.Fence.
func (f *Fence) WaitFor(ctx context.Context, waiting, holding []uint32) ([]uint32, error) {
	return f.db.WaitFor(ctx, waiting, holding)
}

// Elsewhere implements fencing.Fence.
func (f *Fence) Elsewhere(ctx context.Context, started string) bool {
	return f.db.Elsewhere(ctx, started)
}

// Catalog implements fencing.Fence.
func (f *Fence) Catalog() *fencing.Catalog { return f.db.Catalog() }

// RefreshCatalog implements fencing.Fence.
func (f *Fence) RefreshCatalog(ctx context.Context) { f.db.RefreshCatalog(ctx) }

// UnregisterBackend implements fencing.Fence.
func (f *Fence) UnregisterBackend(ctx context.Context, n fencing.Entry) error {
	if _, err := f.db.Pool().Exec(ctx, "SELECT fencepost.leave($1, $2, $3)", f.id, int32(n.PID), n.ID); err != nil {
		return fmt.Errorf("delete the registration of backend %d on resource %q: %w", n.PID, f.resource, f.db.Explain(err))
	}
	return nil
}

// slot waits until this fence may use one more connection for a statement that can wait
// for its lock.
func (f *Fence) slot(ctx context.Context) (release func(), err error) {
	select {
	case f.slots <- struct{}{}:
		return func() { <-f.slots }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the fence of resource %q: %w", f.resource, context.Cause(ctx))
	}
}

// state is a fence's row, read after every grant in progress has ended if it is settled.
type state struct {
	record      fencing.Record
	settled     bool
	database    string
	synchronous bool // there are synchronous standbys
}

// state reads the fence. It waits for at most wait for a grant in progress, or for as
// long as ctx allows if wait is 0.
func (f *Fence) state(ctx context.Context, wait time.Duration) (state, error) {
	var s state
	err := f.retry(ctx, wait, func() (bool, error) {
		err := f.db.read(ctx, func() error {
			row := f.db.fences.QueryRow(ctx, `SELECT coalesce((s.rec).epoch, 0), coalesce((s.rec).worker, ''), coalesce((s.rec).incarnation, ''),
			coalesce((s.rec).source, ''), (s.rec).source_generation, (s.rec).source_index, (s.rec).granted_at, s.settled, CASE WHEN `+ofAnother+` THEN '' ELSE i.id::text END,
			coalesce((SELECT g.tables FROM fencepost.guarded g WHERE g.fence = $1), 0), current_setting('synchronous_standby_names') <> ''
			FROM fencepost.identity i, fencepost.state($1) s`, f.id, f.resource)
			return scanRecord(row, &s.record, &s.settled, &s.database, &s.record.Guards, &s.synchronous)
		})
		return s.settled, err
	})
	if err != nil {
		return state{}, f.unlessGone(ctx, f.db.Explain(err))
	}
	if s.database != f.database {
		return state{}, f.replaced()
	}
	return s, nil
}

// scanRecord scans a record's columns and any that follow them.
func scanRecord(row pgx.Row, r *fencing.Record, more ...any) error {
	var granted *time.Time // NULL: no grant yet
	into := append([]any{&r.Epoch, &r.Worker, &r.Incarnation, &r.Source, &r.Generation, &r.Index, &granted}, more...)
	if err := row.Scan(into...); err != nil {
		return err
	}
	if granted != nil {
		r.GrantedAt = *granted
	}
	return nil
}
