package raft

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/raft/state"
	"github.com/fencepost/fencepost/election/standstill"
)

// store is the kv.Store of one prefix. Its lives are known to this proxy alone: the cluster knows of
// a life what it holds.
type store struct {
	replica  replica
	space    string
	proxy    string
	service  string // in errors
	leastTTL time.Duration
	still    *standstill.Clock

	mu    sync.Mutex
	lives map[string]*life // that were begun here and have not ended
}

// life is one term, or one request for one.
type life struct {
	ttl   time.Duration
	key   string // "": nothing was asked for with it
	basis uint64 // on which the last request for the key rests
	over  bool   // nothing may be asked for with it any more
}

var _ kv.Store = (*store)(nil)

func newStore(r replica, cfg Config, service string) *store {
	return &store{
		replica: r, space: cfg.Prefix, proxy: cfg.Proxy, service: service, leastTTL: leastTTL * cfg.Heartbeat,
		still: standstill.New(election.Boottime), lives: map[string]*life{},
	}
}

// failed names the service in an error.
func (s *store) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s: %w", what, s.service, err)
}

// apply has a command applied.
func (s *store) apply(ctx context.Context, what string, c state.Command) (o state.Outcome, err error) {
	c.Space = s.space
	err = s.replica.call(ctx, request{op: opApply, in: c}, &o)
	return o, s.failed(what, err)
}

// view reads what stands under a key through the leader.
func (s *store) view(ctx context.Context, key string) (v state.View, err error) {
	err = s.replica.call(ctx, request{op: opRead, in: readRequest{Space: s.space, Key: key}}, &v)
	return v, s.failed("read "+key, err)
}

// recordOf returns what a lease is, without the marker.
func recordOf(key string, l state.Lease) standstill.Record {
	return standstill.Record{
		Lease: key, ID: versionOf(l), TTL: l.TTL, Entry: kv.Entry{Record: l.Record, Version: int64(l.Version), Life: l.Life, Basis: l.Touched},
	}
}

// versionOf identifies what a lease is by its last touch and by its life, since another cluster may count
// as far.
func versionOf(l state.Lease) string { return strconv.FormatUint(l.Touched, 10) + " " + l.Life }

// sighted notes what a lease is now.
func (s *store) sighted(key string, l state.Lease) {
	if l.Life == "" {
		s.still.Hear()
		s.still.Forget(key)
		return
	}
	s.still.See(key, standstill.Version{ID: versionOf(l), Holder: l.Life})
}

// Read implements kv.Store.
func (s *store) Read(ctx context.Context, key string) (kv.Entry, error) {
	v, err := s.view(ctx, key)
	if err != nil {
		return kv.Entry{}, err
	}
	s.sighted(key, v.Lease)
	e := s.still.Entry(key, recordOf(key, v.Lease))
	e.Marker = v.Marker
	return e, nil
}

// Swap implements kv.Store. It rests on the lease as it was last touched, by a renewal too.
func (s *store) Swap(ctx context.Context, key string, old kv.Entry, record []byte, id string) (version int64, err error) {
	basis, _ := old.Basis.(uint64)
	c := state.Command{Op: state.Swap, Key: key, Record: record, Basis: basis, Marker: old.Marker, Life: id}
	if id != "" {
		if c.TTL, err = s.ask(id, key, basis); err != nil {
			return 0, err
		}
	}
	o, err := s.apply(ctx, "write "+key, c)
	switch {
	case err != nil:
		return 0, err
	case o.Verdict == state.Conflict:
		return 0, kv.ErrConflict
	}
	return int64(o.Version), nil
}

// ask notes what is asked for with a life, and returns its TTL.
func (s *store) ask(id, key string, basis uint64) (ttl time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lives[id]
	if l == nil || l.over {
		return 0, fmt.Errorf("%w: the life %s is over", election.ErrLost, id)
	}
	l.key, l.basis = key, basis
	return l.ttl, nil
}

// Begin implements kv.Store. The cluster learns of a life when it asks for a lease.
func (s *store) Begin(_ context.Context, ttl time.Duration) (kv.Life, error) {
	id := s.proxy + "_" + newID()
	ttl = max(ttl, s.leastTTL)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives[id] = &life{ttl: ttl}
	return kv.Life{ID: id, TTL: ttl}, nil
}

// Beat implements kv.Store. That the renewal is committed proves that a quorum has seen the life
// hold the lease.
func (s *store) Beat(ctx context.Context, key, id string) error {
	o, err := s.apply(ctx, "renew "+key, state.Command{Op: state.Beat, Key: key, Life: id})
	if err == nil && o.Verdict == state.Lost {
		err = fmt.Errorf("%w: somebody else has taken it, or it was given back", election.ErrLost)
	}
	return err
}

// End implements kv.Store.
func (s *store) End(ctx context.Context, id string) error {
	c := state.Command{Op: state.End, Life: id}
	s.mu.Lock()
	l := s.lives[id]
	if l != nil {
		l.over = true
		c.Key, c.Basis = l.key, l.basis
	}
	s.mu.Unlock()
	if l == nil || c.Key != "" { // of an earlier run or of another proxy, or it may hold a lease
		if _, err := s.apply(ctx, "end the life "+id, c); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lives, id)
	return nil
}

// Mark implements kv.Store.
func (s *store) Mark(ctx context.Context, marker string, replace bool) error {
	_, err := s.apply(ctx, "write the generation marker", state.Command{Op: state.Mark, Marker: marker, Replace: replace})
	return err
}

// Position implements kv.Store.
func (s *store) Position(ctx context.Context) (marker string, version int64, err error) {
	v, err := s.view(ctx, "")
	return v.Marker, int64(v.Index), err
}

// Close implements kv.Store.
func (s *store) Close() error {
	if err := s.replica.close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close %s: %w", s.service, err)
	}
	return nil
}
