package election

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
)

const (
	minPoll = 100 * time.Millisecond
	maxPoll = time.Second
	// maxWatchPause is the longest pause before the next attempt to watch a lease service
	// that cannot be reached. No one leads until it is reachable again.
	maxWatchPause = 250 * time.Millisecond
	// idleLook is how often, at least, the lease of a resource without a candidacy is looked at. Each
	// look may open a connection to the database and closes it again, so that DROP DATABASE,
	// which waits 5 s for connections to close, finds a moment without any.
	idleLook = 5 * time.Second
	// readWhileFailing is how often, at least, the record is read while the lease service cannot be reached: what
	// others do to the fence is then seen nowhere else.
	readWhileFailing = 5 * time.Second
	// afterLeaving is when the first such look follows the end of the last candidacy. If a worker connects
	// again before that, the database is spared a look that would be cancelled, and its connection closed.
	afterLeaving = 100 * time.Millisecond
	// soonestLook is the shortest time between two such looks.
	soonestLook = 500 * time.Millisecond
)

// watcher is what the goroutine that watches a lease is woken by, and what it fails to do.
type watcher struct {
	arrival chan struct{} // cap 1; a candidacy has started
	dropped chan struct{} // cap 1; the database is gone
	woken   atomic.Bool   // the record should be read
	// waits ends the wait of the goroutine for a change of the lease; nil if it does not wait.
	waits atomic.Pointer[context.CancelFunc]

	unwatched *faults.Series // failures to watch the lease
	unread    *faults.Series // failures to read the record
}

func (w *watcher) init(log *zap.Logger) {
	w.arrival, w.dropped = make(chan struct{}, 1), make(chan struct{}, 1)
	w.unwatched = faults.NewSeries(log, "cannot watch the lease", 0)
	w.unread = faults.NewSeries(log, "cannot read the record", 0)
}

// wake makes the goroutine read the record.
func (w *watcher) wake() {
	w.woken.Store(true)
	if end := w.waits.Load(); end != nil {
		(*end)()
	}
}

// leaseWatch is what the watch last showed of a lease.
type leaseWatch struct {
	observation  elector.Observation
	watchErr     error         // why the watch is failing
	failingSince time.Duration // since when it has been failing; it means nothing unless watchErr is set
	updated      chan struct{} // closed and replaced with each observation and each failure
	instanceID   string        // of the lease service, as last observed; "" before
	freeSince    time.Duration // since when the lease has had no holder; 0 if it has one
	// skipNextFailure means that the next failure is not to be shown: it may be that of a request to a database that
	// was dropped, and has been created again since.
	skipNextFailure bool
}

// observed records an observation that was made at this time.
func (s *leaseWatch) observed(o elector.Observation, now time.Duration) {
	s.observation, s.watchErr, s.instanceID, s.skipNextFailure = o, nil, o.InstanceID, false
	switch {
	case o.State == elector.Held:
		s.freeSince = 0
	case s.freeSince == 0:
		s.freeSince = now
	}
	s.announce()
}

// failed records that the watch has failed. It reports whether it had not failed before.
func (s *leaseWatch) failed(err error, now time.Duration) (first bool) {
	if s.skipNextFailure {
		s.skipNextFailure = false
		return false
	}
	if first = s.watchErr == nil; first {
		s.failingSince = now
	}
	s.watchErr = err
	s.announce()
	return first
}

// announce wakes those who wait for an observation.
func (s *leaseWatch) announce() {
	close(s.updated)
	s.updated = make(chan struct{})
}

// forget forgets what was observed while there was no candidacy, because it may be out of
// date.
func (s *leaseWatch) forget() {
	s.observation, s.freeSince, s.instanceID = elector.Observation{}, 0, ""
}

// startOver forgets all, because the database is another one.
func (s *leaseWatch) startOver() {
	s.forget()
	s.watchErr, s.skipNextFailure = nil, true
}

// watch keeps the resource's observation of the lease and its record up to date while
// there are candidacies. Elections.Close ends it.
func (r *resource) watch() {
	defer r.e.wg.Done()
	look, failures, read := minPoll, 0, time.Duration(0)
	for r.e.ctx.Err() == nil {
		if len(r.all()) == 0 {
			if !r.idle() {
				return
			}
			continue
		}
		ctx, done := r.lookContext(look)
		observation, err := r.provider.Watch(ctx, r.key.name, r.lastObservation())
		lookAgain := ctx.Err() != nil
		lookAgain = done() || lookAgain
		switch {
		case r.e.ctx.Err() != nil:
			return
		case err == nil:
			failures, look = 0, minPoll
			r.leaseObserved(observation)
			r.readRecord()
		case lookAgain && len(r.all()) == 0:
		case lookAgain:
			look = min(2*look, maxPoll)
			r.readRecord()
		default:
			failures++
			r.watchFailed(err)
			// The fence may be reachable although the lease service is not.
			if now := r.e.cfg.Now(); now-read >= readWhileFailing || failures%8 == 1 && r.expectsGrant() {
				r.readRecord()
				read = now
			}
			r.pause(maxWatchPause/2 + jitter(maxWatchPause/2))
		}
	}
}

// idle waits for a candidacy, and looks at the lease from time to time. It returns false
// when Elections is closed, or when the resource is forgotten because no candidacy has
// started for a while.
func (r *resource) idle() bool {
	firstLook := afterLeaving
	if r.lastObservation().State == elector.Unseen { // a new resource, whose first candidacy is about to start
		firstLook = idleLook
	}
	timer, look := time.NewTimer(r.e.cfg.Idle), time.NewTimer(firstLook)
	defer timer.Stop()
	defer look.Stop()
	for first := true; ; first = false {
		select {
		case <-r.watcher.arrival:
			r.arrived()
			return true
		case <-timer.C:
			return !r.e.forget(r)
		case <-r.watcher.dropped:
			if r.e.forget(r) {
				return false
			}
			continue
		case <-r.e.ctx.Done():
			return false
		case <-look.C:
		}
		ctx, cancel := context.WithTimeout(r.e.ctx, r.settings().callTimeout()+time.Second)
		looked := make(chan struct{})
		go func() {
			defer close(looked)
			r.look(ctx)
			r.e.followInForce(ctx, r.key.database, true)
		}()
		select {
		case <-r.watcher.arrival:
			cancel()
			<-looked
			r.arrived()
			return true
		case <-looked:
			cancel()
		}
		if !first { // Elections closes what the candidacies have used
			r.e.closeIfIdle(r.key.database)
		}
		look.Reset(r.nextLook())
	}
}

// nextLook returns when to look again at the lease of a resource without a candidacy: after
// idleLook, or when the lease that was seen is no longer known to be confirmed, if that is earlier.
func (r *resource) nextLook() time.Duration {
	if p, ok := r.provider.(elector.Expirer); ok {
		if left := p.ConfirmedUntil(r.key.name) - r.e.cfg.Now(); left > 0 {
			return min(max(left, soonestLook), idleLook)
		}
	}
	return idleLook
}

// arrived is called when a candidacy has started after a time without any, unless it has
// ended already.
func (r *resource) arrived() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.loops) > 0 {
		r.mu.forget()
	}
}

// look observes the lease of a resource without a candidacy, and reads the record if
// another candidacy than the recorded one holds it, if the record is unconfirmed, or if the
// lease cannot be observed. The fence is not reopened for that, because that may create it.
func (r *resource) look(ctx context.Context) {
	observing, cancel := context.WithTimeout(ctx, r.settings().callTimeout()) // which leaves time to read the record
	observation, err := r.observeNow(observing)
	cancel()
	r.mu.Lock()
	fence, known := r.mu.fence, r.mu.record
	r.mu.Unlock()
	if err != nil || known.Unconfirmed || observation.State == elector.Held && observation.Incarnation != known.Incarnation {
		rec, unread := fence.Record(ctx)
		if unread == nil {
			r.mu.Lock()
			r.learnLocked(rec, known, nil)
			r.mu.Unlock()
		}
		err = cmp.Or(err, unread)
	}
	switch {
	case err == nil:
		r.leaseObserved(observation)
	case !errors.Is(ctx.Err(), context.Canceled): // otherwise a candidacy has started, or Elections is closing
		r.watchFailed(err)
	}
}

// observeNow observes the lease without waiting for a change.
func (r *resource) observeNow(ctx context.Context) (elector.Observation, error) {
	if p, ok := r.provider.(elector.Looker); ok {
		return p.Look(ctx, r.key.name)
	}
	return r.provider.Watch(ctx, r.key.name, elector.Observation{})
}

// pause waits for d, or until Elections is closed.
func (r *resource) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.e.ctx.Done():
	}
}

// lookContext returns a context that ends when the record should be read again: after
// look if a grant is expected, and at once when woken. done ends it too, and reports whether it
// was woken.
func (r *resource) lookContext(look time.Duration) (ctx context.Context, done func() (woken bool)) {
	var end context.CancelFunc
	if r.expectsGrant() {
		ctx, end = context.WithTimeout(r.e.ctx, look)
	} else {
		ctx, end = context.WithCancel(r.e.ctx)
	}
	w := &r.watcher
	w.waits.Store(&end)
	if w.woken.Load() { // before there was a wait to end
		end()
	}
	return ctx, func() bool {
		w.waits.Store(nil)
		end()
		return w.woken.Swap(false)
	}
}

// expectsGrant reports whether an epoch may be granted that this proxy would not learn
// about by itself: another proxy's candidacy holds the lease and is not the recorded
// one, the recorded grant may be confirmed or lost, or a candidacy here has an epoch but no
// confirmed lease.
func (r *resource) expectsGrant() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.record.Unconfirmed || r.mu.holder == nil && r.mu.observation.State == elector.Held && r.mu.observation.Incarnation != r.mu.record.Incarnation {
		return true
	}
	for _, c := range r.mu.loops {
		if c.Status().Lapsed {
			return true
		}
	}
	return false
}

func (r *resource) lastObservation() elector.Observation {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.watchErr != nil {
		return elector.Observation{} // report whatever is observed next
	}
	return r.mu.observation
}

func (r *resource) leaseObserved(observation elector.Observation) {
	now := r.e.cfg.Now()
	r.mu.Lock()
	wasHeld := r.mu.observation.State == elector.Held && r.mu.holder == nil
	r.mu.observed(observation, now)
	if leads := r.followLocked(now).Leads(); wasHeld && observation.State != elector.Held && !leads {
		r.mu.EndedLeading(now-observation.Unconfirmed, observation.Ended())
	}
	r.pokeAllLocked()
	r.mu.Unlock()
	r.watcher.unwatched.Passed()
}

func (r *resource) watchFailed(err error) {
	now := r.e.cfg.Now()
	r.mu.Lock()
	if r.mu.failed(err, now) {
		r.pokeAllLocked()
	}
	r.followLocked(now)
	r.mu.Unlock()
	r.watcher.unwatched.Failed(zap.Error(err))
}

// readRecord refreshes the record for the candidacies. A failure is logged unless
// Elections is closing, or the candidacies end with their fence; the check does not depend on what is read here.
func (r *resource) readRecord() {
	ctx, cancel := context.WithTimeout(r.e.ctx, r.settings().callTimeout()+time.Second)
	defer cancel()
	_, err := r.refresh(ctx)
	switch {
	case err == nil:
		r.watcher.unread.Passed()
	case !errors.Is(err, context.Canceled) && !errors.Is(err, fencing.ErrRemoved):
		r.watcher.unread.Failed(zap.Error(err))
	}
}
