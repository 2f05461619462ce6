package election

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
)

// grants is what a resource knows of the grants in its fence.
type grants struct {
	record fencing.Record // the highest known one
	// highestObserved is the highest epoch ever observed here, even before the resource
	// was forgotten. An unconfirmed one does not count: a failover may lose it, although
	// nothing is lost that was announced to anyone.
	highestObserved fencing.Epoch
}

// learn records the result of a request that began when before was the highest known grant. It
// reports false if a newer one is known, and remembers no more than the epoch then.
func (g *grants) learn(rec, before fencing.Record) bool {
	if !rec.Unconfirmed {
		g.highestObserved = max(g.highestObserved, rec.Epoch)
	}
	if !replaces(rec, g.record, before) {
		return false
	}
	g.record = rec
	return true
}

// replaces reports whether rec, the result of a request that began when before was known, is as new
// as the known record. Responses may overtake each other, so the higher epoch is the newer one. But
// an unconfirmed grant may be lost: whatever was asked after it was known is newer.
func replaces(rec, known, before fencing.Record) bool {
	switch {
	case known.Unconfirmed && known == before:
		return true
	case rec.Epoch == known.Epoch:
		return !rec.Unconfirmed || known.Unconfirmed
	default:
		return rec.Epoch > known.Epoch
	}
}

// fenceAccess is the fence of a resource.
type fenceAccess struct {
	fence Fence
	// needsReopen means that the fence could not be used. It is reopened for the next
	// candidacy, because it may have been recreated.
	needsReopen bool
	// numbered is the lease service instance that the fence has a number for, "" if none
	// is known.
	numbered string
	// unusable is why the last connection that would have begun a candidacy was refused:
	// the fence cannot be used. It is nil if that one was not.
	unusable error
	// lost is why the fence is not the one in which the known epochs were granted, as the last
	// reading of the record has shown; nil if it is. No write passes its check then.
	lost error
}

// kinded is the error of a database that cannot be used, and whose fault is known to be another than that
// its fence contradicts what was granted.
type kinded interface {
	error
	FaultKind() faults.Kind
}

// faultOf returns what is shown of err: the refusal in it, with the kind of its fault if it has one.
func faultOf(err error) error {
	var k kinded
	if errors.As(err, &k) {
		return k
	}
	return fencing.FaultRefusal(err)
}

// hasRead records the result of reading the record.
func (f *fenceAccess) hasRead(err error) {
	var k kinded
	switch {
	case err == nil:
		f.lost = nil
	case isState(err, fencing.StateNoFence) && !errors.As(err, &k) && !errors.Is(err, fencing.ErrRemoved):
		f.lost = fencing.FaultRefusal(err)
	}
}

// differsLocked reports whether a database has another fence of the resource than this one, or one that shows a
// lower epoch than was seen. r.mu is held.
func (r *resource) differsLocked(has fencing.Fences) bool {
	row := has.ByResource[r.key.name]
	return has.Database != r.mu.fence.Database() || row.ID != r.mu.fence.ID() || row.Epoch < r.mu.highestObserved
}

// history is what the fence knew of a worker when its candidacy began.
type history struct {
	before  bool          // the result of Fence.SupersededBefore
	highest fencing.Epoch // the highest epoch, read before that; 0 if it was unconfirmed
	// incarnation is that of the candidacy, which follows from its token; "" if it has none.
	incarnation string
}

// examine reads the worker's history from the fence for a new candidacy. It refuses a token
// that cannot lead.
func (r *resource) examine(ctx context.Context, req fencing.JoinRequest) (fence Fence, h history, err error) {
	if fence, err = r.usableFence(ctx); err != nil {
		return nil, history{}, err
	}
	rec, err := r.refresh(ctx)
	if err != nil {
		return nil, history{}, err
	}
	if !rec.Unconfirmed {
		h.highest = rec.Epoch
	}
	if h.before, err = fence.SupersededBefore(ctx, req.Worker, ""); err != nil {
		return nil, history{}, fmt.Errorf("look for earlier epochs of the worker: %w", err)
	}
	r.mu.Lock()
	if _, ok := r.mu.supersededSelf[req.Worker]; ok {
		h.before = true
	}
	r.mu.Unlock()
	if req.Token > 0 {
		if h.incarnation, err = r.tokenIncarnation(ctx, req, rec); err != nil {
			return nil, history{}, err
		}
	}
	return fence, h, nil
}

// usableFence returns the fence, after reopening it if it could not be used.
func (r *resource) usableFence(ctx context.Context) (Fence, error) {
	r.mu.Lock()
	fence, needsReopen := r.mu.fence, r.mu.needsReopen
	r.mu.Unlock()
	if !needsReopen {
		return fence, nil
	}
	fence, err := r.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the fence of resource %q: %w", r.key.name, err)
	}
	r.adopt(fence)
	return fence, nil
}

// adopt replaces the fence. If it is that of another database, nothing of what is known
// of the old one counts, and its candidacies end: the connections of their members have. First attempts wait
// until these have given back what they have at a lease service outside the database.
func (r *resource) adopt(fence Fence) {
	if !r.replaceFence(fence) {
		return
	}
	r.log.Info("the database was dropped and created again: what was known of the old one is forgotten")
	r.e.forgetOrders(r.key.database)
	r.watcher.wake()
}

// replaceFence reports whether the fence is that of another database.
func (r *resource) replaceFence(fence Fence) (another bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	another = fence.Database() != r.mu.fence.Database()
	r.mu.fence, r.mu.needsReopen, r.mu.lost = fence, false, nil
	if !another {
		return false
	}
	r.mu.grants, r.mu.History, r.mu.knowledge, r.mu.numbered = grants{}, status.History{}, knowledge{}, ""
	r.mu.offered = offered{}
	r.mu.startOver()
	for _, c := range r.mu.loops {
		if c.fence.Database() != fence.Database() {
			c.departLocked()
			c.deserted.Store(true) // a release that fails is not tried again
			c.endLocked()
		}
	}
	return true
}

func (r *resource) reopenLater() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.needsReopen = true
}

// refresh reads the record and passes it to all candidacies. A record below one that
// was seen before the call is a refusal.
func (r *resource) refresh(ctx context.Context) (fencing.Record, error) {
	r.mu.Lock()
	highest, before, fence := r.mu.highestObserved, r.mu.record, r.mu.fence
	r.mu.Unlock()
	rec, err := fence.Record(ctx)
	switch {
	case err == nil && rec.Epoch < highest:
		err = r.refuseRestored(rec.Epoch, highest)
	case errors.Is(err, fencing.ErrRemoved):
		r.removed(fence)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.fence == fence {
		r.mu.hasRead(err)
		r.mu.needsReopen = r.mu.needsReopen || errors.Is(err, fencing.ErrReplaced)
	}
	if err == nil {
		r.learnLocked(rec, before, nil)
	}
	r.followLocked(r.e.cfg.Now())
	if err != nil {
		return rec, fmt.Errorf("read the record of resource %q: %w", r.key.name, err)
	}
	return rec, nil
}

// learnLocked passes a record, the result of a request that began when before was known, to every
// candidacy except one, unless a newer one is known, which it reports. r.mu is held.
func (r *resource) learnLocked(rec, before fencing.Record, but *Candidacy) (newest bool) {
	was := r.mu.record
	if !r.mu.learn(rec, before) {
		return false
	}
	switch {
	case rec.Epoch < was.Epoch:
		r.log.Info("the newest grants are not in this database: no synchronous standby had confirmed them, and their epochs were not announced",
			zap.Int64("lost_epoch", int64(was.Epoch)), zap.Int64("epoch", int64(rec.Epoch)))
	case rec.Epoch > was.Epoch || rec.Unconfirmed != was.Unconfirmed:
		r.log.Debug("the newest grant", zap.Int64("epoch", int64(rec.Epoch)), zap.String("of", rec.Worker), zap.Bool("unconfirmed", rec.Unconfirmed))
	}
	for _, c := range r.mu.loops {
		if c != but {
			c.observeGrantLocked(rec, was)
		}
	}
	r.followLocked(r.e.cfg.Now())
	return true
}

func (r *resource) refuseRestored(epoch, highest fencing.Epoch) error {
	return &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message: fmt.Sprintf("resource %s: the fence shows epoch %d, but epoch %d was seen before: the database was restored from an older state",
			strconv.QuoteToASCII(r.key.name), epoch, highest),
		Hint: fencing.RestoredHint(r.key.database, highest),
	}
}
