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
	// maxBlind is the longest pause before the next attempt to watch a lease service
	// that cannot be reached. Nobody leads until it is reachable again.
	maxBlind = 250 * time.Millisecond
)

// sighting is what the watch last showed of a lease.
type sighting struct {
	observation LeaseObservation
	watchErr    error         // why the watch is failing
	news        chan struct{} // closed and replaced with each observation and each failure
	instanceID  string        // of the lease service, as last observed; "" before
	freeSince   time.Duration // since when the lease has had no holder; 0 if it has one
}

// observed records an observation that was made at this time.
func (s *sighting) observed(o LeaseObservation, now time.Duration) {
	s.observation, s.watchErr, s.instanceID = o, nil, o.InstanceID
	switch {
	case o.State == Held:
		s.freeSince = 0
	case s.freeSince == 0:
		s.freeSince = now
	}
	s.announce()
}

// failed records that the watch has failed. It reports whether it had not failed before.
func (s *sighting) failed(err error) (first bool) {
	first = s.watchErr == nil
	s.watchErr = err
	s.announce()
	return first
}

// announce wakes those who wait for an observation.
func (s *sighting) announce() {
	close(s.news)
	s.news = make(chan struct{})
}

// forget forgets what was observed, because it will be out of date when the next
// candidacy starts.
func (s *sighting) forget() {
	s.observation, s.freeSince, s.instanceID = LeaseObservation{}, 0, ""
}

// watch keeps the resource's observation of the lease and its record up to date while
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
		observation, err := r.provider.Watch(ctx, r.key.name, r.lastObservation())
		lookAgain := ctx.Err() != nil
		cancel()
		switch {
		case r.e.ctx.Err() != nil:
			return
		case err == nil:
			failures, look = 0, minPoll
			r.seen(observation)
			r.readRecord()
		case lookAgain && len(r.all()) == 0:
		case lookAgain:
			look = min(2*look, maxPoll)
			r.readRecord()
		default:
			failures++
			r.blind(err)
			if failures%8 == 1 && r.expectsGrant() { // the fence may be reachable although the lease service is not
				r.readRecord()
			}
			r.pause(maxBlind/2 + jitter(maxBlind/2))
		}
	}
}

// idle waits for a candidacy. It returns false when Elections is closed, or when the
// resource is forgotten because none has started for a while.
func (r *resource) idle() bool {
	r.mu.Lock()
	r.mu.forget()
	r.mu.leaderlessSince = 0
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
// look if a grant is expected, and at once when woken.
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

// expectsGrant reports whether an epoch may be granted that this proxy would not learn
// about by itself: another proxy's candidacy holds the lease and is not the recorded
// one, or a candidacy here has an epoch but no confirmed lease.
func (r *resource) expectsGrant() bool {
	r.mu.Lock()
	held := r.mu.holder == nil && r.mu.observation.State == Held && r.mu.observation.Incarnation != r.mu.record.Incarnation
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

func (r *resource) lastObservation() LeaseObservation {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.watchErr != nil {
		return LeaseObservation{} // report whatever is observed next
	}
	return r.mu.observation
}

func (r *resource) seen(observation LeaseObservation) {
	now := r.e.cfg.Now()
	r.mu.Lock()
	r.mu.observed(observation, now)
	r.mu.Unlock()
	r.followLeader()
	r.pokeAll()
}

func (r *resource) blind(err error) {
	r.mu.Lock()
	first := r.mu.failed(err)
	r.mu.Unlock()
	if first {
		r.log.Warn("cannot watch the lease", zap.Error(err))
		r.pokeAll()
	}
}

// readRecord refreshes the record for the candidacies. A failure is logged unless
// Elections is closing; the check does not depend on what is read here.
func (r *resource) readRecord() {
	ctx, cancel := context.WithTimeout(r.e.ctx, r.set.callTimeout()+time.Second)
	defer cancel()
	if _, err := r.refresh(ctx); err != nil && !errors.Is(err, context.Canceled) {
		r.log.Warn("cannot read the record", zap.Error(err))
	}
}
