package election

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

const (
	minPoll = 100 * time.Millisecond
	maxPoll = time.Second
	// maxBlind bounds the pause between looks at a lease service that cannot be
	// reached: nobody leads before it is seen again.
	maxBlind = 250 * time.Millisecond
)

// watch keeps the resource's sight of the lease and its record up to date while
// there are candidacies. Elections.Close ends it.
func (r *resource) watch() {
	defer r.e.wg.Done()
	look, failures := minPoll, 0
	for r.e.ctx.Err() == nil {
		if len(r.all()) == 0 {
			if !r.idle() {
				return
			}
			continue
		}
		ctx, cancel := r.lookContext(look)
		sight, err := r.provider.Watch(ctx, r.key.name, r.lastSight())
		lookAgain := ctx.Err() != nil
		cancel()
		switch {
		case r.e.ctx.Err() != nil:
			return
		case err == nil:
			failures, look = 0, minPoll
			r.seen(sight)
			r.readRecord()
		case lookAgain && len(r.all()) == 0:
		case lookAgain:
			look = min(2*look, maxPoll)
			r.readRecord()
		default:
			failures++
			r.blind(err)
			if failures%8 == 1 && r.expectsGrant() { // the fence may be in reach though the lease service is not
				r.readRecord()
			}
			r.pause(maxBlind/2 + jitter(maxBlind/2))
		}
	}
}

// idle waits for a candidacy. It returns false when the elections are closed, or
// when the resource is forgotten because none came for a while.
func (r *resource) idle() bool {
	r.mu.Lock()
	r.mu.sight, r.mu.freeSince, r.mu.life = LeaseObservation{}, 0, ""
	r.mu.Unlock()
	timer := time.NewTimer(r.e.cfg.Idle)
	defer timer.Stop()
	select {
	case <-r.arrival:
		return true
	case <-timer.C:
		return !r.e.forget(r)
	case <-r.e.ctx.Done():
		return false
	}
}

// pause waits for d, or until the elections end.
func (r *resource) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.e.ctx.Done():
	}
}

// lookContext returns a context that ends when the record is to be read again:
// when look is over if a grant is to be expected, and at once on a wake.
func (r *resource) lookContext(look time.Duration) (context.Context, context.CancelFunc) {
	if !r.expectsGrant() {
		look = time.Hour
	}
	ctx, cancel := context.WithTimeout(r.e.ctx, look)
	ended := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		select {
		case <-r.wake:
			cancel()
		case <-ended:
		}
	}()
	return ctx, func() {
		cancel()
		close(ended)
		<-finished
	}
}

// expectsGrant reports that somebody may be granted an epoch whom this proxy
// would not know of: another proxy's candidacy holds the lease and is not the
// recorded one, or a candidacy here has an epoch and no confirmed lease.
func (r *resource) expectsGrant() bool {
	r.mu.Lock()
	held := r.mu.holder == nil && r.mu.sight.State == Held && r.mu.sight.Incarnation != r.mu.record.Incarnation
	r.mu.Unlock()
	if held {
		return true
	}
	for _, c := range r.all() {
		if c.Status().Lapsed {
			return true
		}
	}
	return false
}

func (r *resource) lastSight() LeaseObservation {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.sightErr != nil {
		return LeaseObservation{} // whatever is seen now is news
	}
	return r.mu.sight
}

func (r *resource) seen(sight LeaseObservation) {
	now := r.e.cfg.Now()
	r.mu.Lock()
	r.mu.sight, r.mu.sightErr, r.mu.life = sight, nil, sight.InstanceID
	r.newsLocked()
	switch {
	case sight.State == Held:
		r.mu.freeSince = 0
	case r.mu.freeSince == 0:
		r.mu.freeSince = now
	}
	r.mu.Unlock()
	r.pokeAll()
}

func (r *resource) blind(err error) {
	r.mu.Lock()
	first := r.mu.sightErr == nil
	r.mu.sightErr = err
	r.newsLocked()
	r.mu.Unlock()
	if first {
		r.log.Warn("cannot watch the lease", zap.Error(err))
		r.pokeAll()
	}
}

// readRecord refreshes the record for the candidacies. A failure is logged
// unless the elections end; the check does not need what is read here.
func (r *resource) readRecord() {
	ctx, cancel := context.WithTimeout(r.e.ctx, r.set.callTimeout()+time.Second)
	defer cancel()
	if _, err := r.refresh(ctx); err != nil && !errors.Is(err, context.Canceled) {
		r.log.Warn("cannot read the record", zap.Error(err))
	}
}
