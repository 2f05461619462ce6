package kv

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fencepost/fencepost/election/elector"
)

// memory is a Store in memory, whose lives continue until they are ended.
type memory struct {
	most time.Duration // the longest TTL that it grants; 0: any

	mu      sync.Mutex
	changed chan struct{} // closed and replaced with each change
	version int64
	marker  string
	entries map[string]Entry
	lives   map[string]bool
	begun   int
	beats   int
	before  func() // runs before the next Swap
	lost    bool   // the answer of the next Swap is lost
	blocked bool   // whatever is free cannot be acquired yet
	silent  bool   // Watch shows nothing
}

func newMemory() *memory {
	return &memory{changed: make(chan struct{}), entries: map[string]Entry{}, lives: map[string]bool{}}
}

// NewMemory is for tests outside of the package.
func NewMemory() Store { return newMemory() }

// change changes what there is, and wakes the watches.
func (m *memory) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.changed)
	m.changed = make(chan struct{})
}

// look returns an entry, whose life is "" if it is over.
func (m *memory) look(key string) Entry {
	e := m.entries[key]
	if !m.lives[e.Life] {
		e.Life = ""
	}
	return e
}

func (m *memory) Read(_ context.Context, key string) (Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.look(key)
	e.Marker = m.marker
	return e, nil
}

func (m *memory) Swap(_ context.Context, key string, old Entry, record []byte, life string) (version int64, err error) {
	m.mu.Lock()
	before := m.before
	m.before = nil
	m.mu.Unlock()
	if before != nil {
		before()
	}
	m.change(func() {
		switch {
		case life != "" && m.blocked:
			err = elector.ErrHeld
		case life != "" && !m.lives[life]:
			err = elector.ErrLost
		case m.entries[key].Version != old.Version, life != "" && m.marker != old.Marker:
			err = ErrConflict
		default:
			m.version++
			version = m.version
			m.entries[key] = Entry{Record: record, Version: version, Life: life}
			if m.lost {
				m.lost, err = false, context.DeadlineExceeded
			}
		}
	})
	return version, err
}

func (m *memory) Begin(_ context.Context, ttl time.Duration) (life Life, err error) {
	m.change(func() {
		m.begun++
		life = Life{fmt.Sprint("life-", m.begun), ttl}
		if m.most > 0 {
			life.TTL = min(ttl, m.most)
		}
		m.lives[life.ID] = true
	})
	return life, nil
}

func (m *memory) Beat(_ context.Context, key, life string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.look(key).Life != life {
		return elector.ErrLost
	}
	m.beats++
	return nil
}

func (m *memory) End(_ context.Context, life string) error {
	m.change(func() { delete(m.lives, life) })
	return nil
}

func (m *memory) Mark(_ context.Context, marker string, replace bool) error {
	m.change(func() {
		if m.marker == "" || replace {
			m.marker = marker
		}
	})
	return nil
}

func (m *memory) Position(context.Context) (marker string, version int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.marker, m.version, nil
}

func (m *memory) Watch(ctx context.Context, see func(Snapshot)) error {
	for {
		m.mu.Lock()
		s, changed, silent := Snapshot{Marker: m.marker, Entries: map[string]Entry{}}, m.changed, m.silent
		for key := range m.entries {
			s.Entries[key] = m.look(key)
		}
		m.mu.Unlock()
		if !silent {
			see(s)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *memory) Close() error { return nil }
