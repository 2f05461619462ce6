package raft

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/election/raft/state"
	"github.com/fencepost/fencepost/election/standstill"
)

// firstTimeout is a little less than package kv waits for, so that its error says why.
const firstTimeout = 1800 * time.Millisecond

// Watch implements standstill.Service. The leader sends what it applies.
func (s *service) Watch(ctx context.Context, tell func(standstill.Change)) error {
	d, err := s.first(ctx)
	if err != nil {
		return s.failed("watch leases", err)
	}
	for {
		c, err := changeOf(d)
		if err != nil {
			return err
		}
		tell(c)
		if d, err = s.nodes.changes(ctx, changesRequest{Space: s.space, Since: d.Upto}); err != nil {
			return s.failed("watch leases", err)
		}
	}
}

// first returns everything, confirmed by the leader.
func (s *service) first(ctx context.Context) (state.Delta, error) {
	ctx, cancel := context.WithTimeout(ctx, firstTimeout)
	defer cancel()
	var d state.Delta
	err := s.nodes.call(ctx, request{op: opChanges, in: changesRequest{Space: s.space, First: true}}, &d)
	return d, err
}

func changeOf(d state.Delta) (standstill.Change, error) {
	c := standstill.Change{Marker: d.Marker}
	for key, r := range d.Records {
		stored, err := storedOf(key, r)
		if err != nil {
			return c, err
		}
		c.Records = append(c.Records, stored)
	}
	return c, nil
}
