package raft

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/raft/state"
	"github.com/fencepost/fencepost/election/standstill"
)

// firstTimeout is a little less than package kv waits for, so that its error says why.
const firstTimeout = 1800 * time.Millisecond

// Watch implements kv.Store. It begins with what the leader has, and goes on with what this proxy's
// replica applies.
func (s *store) Watch(ctx context.Context, see func(kv.Snapshot)) error {
	d, err := s.first(ctx)
	if err != nil {
		return s.failed("watch leases", err)
	}
	v := s.still.View()
	s.take(v, d)
	v.Show(see)
	ctx, cancel := context.WithCancel(ctx)
	deltas, ended := make(chan state.Delta), make(chan error, 1)
	go func() { ended <- s.follow(ctx, d.Upto, deltas) }()
	defer func() {
		cancel()
		<-ended
	}()
	timer := time.NewTimer(v.Next())
	defer timer.Stop()
	for {
		matters := false
		select {
		case d := <-deltas:
			matters = s.take(v, d)
		case <-timer.C:
			matters = v.Lapsed()
			timer.Reset(v.Next())
		case err := <-ended:
			ended <- nil
			return s.failed("watch leases", err)
		}
		if matters {
			v.Show(see)
			timer.Reset(v.Next())
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

// take notes what has changed, and reports whether it matters.
func (s *store) take(v *standstill.View, d state.Delta) bool {
	matters := v.Marker != d.Marker
	v.Marker = d.Marker
	for key, l := range d.Leases {
		s.sighted(key, l)
		matters = v.Put(key, recordOf(key, l)) || matters
	}
	return matters
}
