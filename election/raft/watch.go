package raft

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/raft/state"
)

// firstTimeout is a little less than package kv waits for, so that its error says why.
const firstTimeout = 1800 * time.Millisecond

// view is what a watch has shown.
type view struct {
	s      *store
	marker string
	leases map[string]state.Lease
	shown  map[string]kv.Entry
}

// Watch implements kv.Store. It begins with what the leader has, and goes on with what this proxy's
// replica applies.
func (s *store) Watch(ctx context.Context, see func(kv.Snapshot)) error {
	v := &view{s: s, leases: map[string]state.Lease{}}
	d, err := s.first(ctx)
	if err != nil {
		return s.failed("watch leases", err)
	}
	v.take(d)
	v.show(see)
	ctx, cancel := context.WithCancel(ctx)
	deltas, ended := make(chan state.Delta), make(chan error, 1)
	go func() { ended <- s.follow(ctx, d.Upto, deltas) }()
	defer func() {
		cancel()
		<-ended
	}()
	timer := time.NewTimer(v.next())
	defer timer.Stop()
	for {
		matters := false
		select {
		case d := <-deltas:
			matters = v.take(d)
		case <-timer.C:
			matters = v.lapsed()
			timer.Reset(v.next())
		case err := <-ended:
			ended <- nil
			return s.failed("watch leases", err)
		}
		if matters {
			v.show(see)
			timer.Reset(v.next())
		}
	}
}

// first returns everything, confirmed by the leader.
func (s *store) first(ctx context.Context) (state.Delta, error) {
	ctx, cancel := context.WithTimeout(ctx, firstTimeout)
	defer cancel()
	d, err := s.replica.changes(ctx, changesRequest{Space: s.space, First: true})
	if err == nil {
		s.still.Hear()
	}
	return d, err
}

// follow passes on what changes, until the context ends or it fails.
func (s *store) follow(ctx context.Context, since uint64, deltas chan<- state.Delta) error {
	for {
		d, err := s.replica.changes(ctx, changesRequest{Space: s.space, Since: since})
		if err != nil {
			return err
		}
		since = d.Upto
		select {
		case deltas <- d:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take notes what has changed, and reports whether it matters: a renewal does not.
func (v *view) take(d state.Delta) bool {
	matters := v.marker != d.Marker
	v.marker = d.Marker
	for key, l := range d.Leases {
		v.s.sighted(key, l)
		v.leases[key] = l
		matters = matters || v.changed(key)
	}
	return matters
}

// changed reports whether a lease means something else than what was shown.
func (v *view) changed(key string) bool {
	was, known := v.shown[key]
	is := v.s.entry(key, v.leases[key])
	return !known || is.Version != was.Version || is.Life != was.Life
}

// lapsed reports whether a lease that was shown as held is free.
func (v *view) lapsed() bool {
	for key := range v.leases {
		if v.changed(key) {
			return true
		}
	}
	return false
}

// show shows everything.
func (v *view) show(see func(kv.Snapshot)) {
	s := kv.Snapshot{Marker: v.marker, Entries: make(map[string]kv.Entry, len(v.leases))}
	v.shown = make(map[string]kv.Entry, len(v.leases))
	for key, l := range v.leases {
		e := v.s.entry(key, l)
		v.shown[key], s.Entries[key] = e, e
	}
	see(s)
}

// next returns the time until a lease that was shown as held has not been touched for its TTL. A
// renewal makes it later, which shows when this time is over.
func (v *view) next() time.Duration {
	wait, now := time.Minute, v.s.still.Now()
	for key, e := range v.shown {
		if e.Life == "" {
			continue
		}
		l := v.leases[key]
		if until, ok := v.s.still.Until(key, versionOf(l), l.TTL); ok {
			wait = min(wait, until-now)
		}
	}
	return max(wait, time.Millisecond)
}
