package raft

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/raft/state"
	"github.com/fencepost/fencepost/election/standstill"
)

// service is one prefix.
type service struct {
	nodes *cluster
	space string
	name  string // in errors
}

var _ standstill.Service = (*service)(nil)

// failed names the service in an error.
func (s *service) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s: %w", what, s.name, err)
}

// apply has a command applied.
func (s *service) apply(ctx context.Context, what string, c state.Command) (o state.Outcome, err error) {
	c.Space = s.space
	err = s.nodes.call(ctx, request{op: opApply, in: c}, &o)
	return o, s.failed(what, err)
}

// view reads what is stored under a key through the leader.
func (s *service) view(ctx context.Context, key string) (v state.View, err error) {
	err = s.nodes.call(ctx, request{op: opRead, in: readRequest{Space: s.space, Key: key}}, &v)
	return v, s.failed("read "+key, err)
}

// storedOf returns what is stored under a key; nil if there is nothing.
func storedOf(key string, r state.Record) (*standstill.Stored, error) {
	if r.Version == 0 {
		return nil, nil
	}
	s := &standstill.Stored{Version: int64(r.Version)}
	if err := json.Unmarshal(r.Text, &s.Record); err != nil {
		return nil, fmt.Errorf("decode the record %s: %w", key, err)
	}
	s.Key = key
	return s, nil
}

// Get implements standstill.Service.
func (s *service) Get(ctx context.Context, key string) (*standstill.Stored, string, error) {
	v, err := s.view(ctx, key)
	if err != nil {
		return nil, "", err
	}
	r, err := storedOf(key, v.Record)
	return r, v.Marker, err
}

// Put implements standstill.Service.
func (s *service) Put(ctx context.Context, old *standstill.Stored, r standstill.Record) (*standstill.Stored, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode a record: %w", err)
	}
	c := state.Command{Op: state.Put, Key: r.Key, Text: text}
	if old != nil {
		c.Basis = uint64(old.Version)
	}
	o, err := s.apply(ctx, "write "+r.Key, c)
	switch {
	case err != nil:
		return nil, err
	case o.Version == 0:
		return nil, kv.ErrConflict
	}
	return storedOf(r.Key, state.Record{Text: text, Version: o.Version})
}

// Mark implements standstill.Service.
func (s *service) Mark(ctx context.Context, marker string, replace bool) error {
	_, err := s.apply(ctx, "write the generation marker", state.Command{Op: state.Mark, Marker: marker, Replace: replace})
	return err
}

// Position implements standstill.Service.
func (s *service) Position(ctx context.Context) (marker string, version int64, err error) {
	v, err := s.view(ctx, "")
	return v.Marker, int64(v.Index), err
}

// Close implements standstill.Service.
func (s *service) Close() error {
	s.nodes.close()
	return nil
}
