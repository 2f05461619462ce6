package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
)

// watchFor is how long a watch continues before everything is read again: long enough to be cheap,
// and with the sixteenth that Consul may add, short enough not to be cut off.
const watchFor = 4 * time.Second

// consulStore is the kv.Store of one Consul. Its lives are sessions.
type consulStore struct {
	api       *api.Client
	transport *http.Transport
	prefix    string           // of all keys, with the slash at its end
	name      string           // of the service in errors
	hasToken  bool             // requests carry one
	session   api.SessionEntry // what all sessions have in common
}

var _ kv.Store = (*consulStore)(nil)

// basis is what a Swap compares in addition to the version of the record.
type basis struct {
	session string // locks the record, also one that was overwritten
	marker  uint64 // the ModifyIndex of the marker
}

func (s *consulStore) marker() string { return s.prefix + ".generation" }

// entryOf returns what is stored under a key. Each argument may be nil, or have a ModifyIndex of 0,
// if there is nothing.
func entryOf(pair, marker *api.KVPair) kv.Entry {
	var e kv.Entry
	var b basis
	if pair != nil && pair.ModifyIndex > 0 {
		e.Record, e.Version, b.session = pair.Value, int64(pair.ModifyIndex), pair.Session
		if pair.LockIndex > 0 { // the record was written with the lock
			e.Life = pair.Session
		}
	}
	if marker != nil {
		e.Marker, b.marker = string(marker.Value), marker.ModifyIndex
	}
	e.Basis = b
	return e
}

// txn runs a transaction, which reads what a quorum has, and returns its results by key; the
// last one of a key counts.
func (s *consulStore) txn(ctx context.Context, what string, ops ...*api.KVTxnOp) (map[string]*api.KVPair, error) {
	all := make(api.TxnOps, len(ops))
	for i, op := range ops {
		all[i] = &api.TxnOp{KV: op}
	}
	ok, answer, _, err := s.api.Txn().Txn(all, read(ctx))
	if err == nil && !ok {
		err = rolledBack(answer.Errors)
	}
	if err != nil {
		return nil, s.failed(what, err)
	}
	found := make(map[string]*api.KVPair, len(answer.Results))
	for _, r := range answer.Results {
		if r.KV != nil {
			found[r.KV.Key] = r.KV
		}
	}
	return found, nil
}

// Read implements kv.Store. A key that the token may not read counts as missing, and so does its
// marker, which it may not write either.
func (s *consulStore) Read(ctx context.Context, key string) (kv.Entry, error) {
	key = s.prefix + key
	found, err := s.txn(ctx, "read "+key,
		&api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: key}, &api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: s.marker()})
	if err != nil {
		return kv.Entry{}, err
	}
	return entryOf(found[key], found[s.marker()]), nil
}

// Swap implements kv.Store.
func (s *consulStore) Swap(ctx context.Context, key string, old kv.Entry, record []byte, life string) (version int64, err error) {
	key = s.prefix + key
	was, ok := old.Basis.(basis)
	if !ok {
		return 0, fmt.Errorf("write %s: the entry was not read from Consul", key)
	}
	ops := []*api.KVTxnOp{{Verb: api.KVCheckIndex, Key: key, Index: uint64(old.Version)}}
	if old.Version == 0 {
		ops[0] = &api.KVTxnOp{Verb: api.KVCheckNotExists, Key: key}
	}
	if was.session != "" {
		ops = append(ops, &api.KVTxnOp{Verb: api.KVUnlock, Key: key, Session: was.session, Value: record})
	}
	if life != "" {
		ops = append(ops, &api.KVTxnOp{Verb: api.KVCheckIndex, Key: s.marker(), Index: was.marker},
			&api.KVTxnOp{Verb: api.KVLock, Key: key, Session: life, Value: record})
	} else if was.session == "" {
		ops = append(ops, &api.KVTxnOp{Verb: api.KVSet, Key: key, Value: record})
	}
	found, err := s.txn(ctx, "write "+key, ops...)
	switch {
	case errors.Is(err, elector.ErrLost):
		return 0, err
	case err != nil:
		return 0, err
	case found[key] == nil:
		return 0, s.failed("write "+key, errors.New("the token lacks key:read"))
	}
	return int64(found[key].ModifyIndex), nil
}

// Begin implements kv.Store. Consul grants the TTL that it is asked for, or none.
func (s *consulStore) Begin(ctx context.Context, ttl time.Duration) (kv.Life, error) {
	session := s.session
	session.TTL = ttl.String()
	id, _, err := s.api.Session().CreateNoChecks(&session, write(ctx))
	if err != nil {
		return kv.Life{}, s.failed(fmt.Sprintf("create a session with a TTL of %s", ttl), err)
	}
	return kv.Life{ID: id, TTL: ttl}, nil
}

// Beat implements kv.Store. A session that is renewed proves nothing about the key, which may
// have been taken from it. One that were renewed and not confirmed would serve no one, so the key is read first.
func (s *consulStore) Beat(ctx context.Context, key, life string) error {
	key = s.prefix + key
	pair, _, err := s.api.KV().Get(key, read(ctx))
	switch {
	case err != nil:
		return s.failed("read "+key, err)
	case entryOf(pair, nil).Life != life:
		return fmt.Errorf("%w: its session has expired or was ended, or somebody has deleted, written or unlocked its record", elector.ErrLost)
	}
	return s.renew(ctx, life)
}

// renew extends a session. The library's own call does not return Consul's status.
func (s *consulStore) renew(ctx context.Context, life string) error {
	var sessions []*api.SessionEntry
	_, err := s.api.Raw().Write("/v1/session/renew/"+url.PathEscape(life), nil, &sessions, write(ctx))
	var status api.StatusError
	if errors.As(err, &status) && status.Code == http.StatusNotFound {
		return fmt.Errorf("%w: consul no longer knows the session", elector.ErrLost)
	}
	return s.failed("renew the session", err)
}

// End implements kv.Store. Consul says nothing of a session that it does not know.
func (s *consulStore) End(ctx context.Context, life string) error {
	_, err := s.api.Session().Destroy(life, write(ctx))
	return s.failed("destroy a session", err)
}

// Mark implements kv.Store.
func (s *consulStore) Mark(ctx context.Context, marker string, replace bool) (err error) {
	pair := &api.KVPair{Key: s.marker(), Value: []byte(marker)}
	if replace {
		_, err = s.api.KV().Put(pair, write(ctx))
	} else {
		_, _, err = s.api.KV().CAS(pair, write(ctx)) // writes nothing if there is one
	}
	return s.failed("write "+pair.Key, err)
}

// Position implements kv.Store. For a key that does not exist, Consul answers with the index of
// its last write to any key.
func (s *consulStore) Position(ctx context.Context) (marker string, version int64, err error) {
	pair, _, err := s.api.KV().Get(s.marker(), read(ctx))
	if err != nil {
		return "", 0, s.failed("read "+s.marker(), err)
	}
	if pair != nil {
		marker = string(pair.Value)
	}
	none := s.prefix + ".none" // no lease has this key
	_, meta, err := s.api.KV().Get(none, read(ctx))
	if err != nil {
		return "", 0, s.failed("read "+none, err)
	}
	return marker, int64(meta.LastIndex), nil
}

// Watch implements kv.Store, by requests that Consul answers when something has changed.
func (s *consulStore) Watch(ctx context.Context, see func(kv.Snapshot)) error {
	end := time.Now().Add(watchFor)
	for index, left := uint64(0), watchFor; left > 0; left = time.Until(end) {
		opts := read(ctx)
		opts.WaitIndex, opts.WaitTime = index, left
		pairs, meta, err := s.api.KV().List(s.prefix, opts)
		if err != nil {
			return s.failed("watch "+s.prefix, err)
		}
		see(s.snapshot(pairs))
		if meta.LastIndex < index { // as after a restore
			return nil
		}
		index = max(meta.LastIndex, 1) // Consul would not wait for 0
	}
	return nil
}

func (s *consulStore) snapshot(pairs api.KVPairs) kv.Snapshot {
	snapshot := kv.Snapshot{Entries: make(map[string]kv.Entry, len(pairs))}
	for _, pair := range pairs {
		if pair.Key == s.marker() {
			snapshot.Marker = string(pair.Value)
			continue
		}
		snapshot.Entries[strings.TrimPrefix(pair.Key, s.prefix)] = entryOf(pair, nil)
	}
	return snapshot
}

// Close implements kv.Store.
func (s *consulStore) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// read requests a consistent read, confirmed by a quorum.
func read(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

func write(ctx context.Context) *api.WriteOptions { return (&api.WriteOptions{}).WithContext(ctx) }
