package standstill

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/election/kv"
)

// memory is a Service in memory.
type memory struct {
	mu      sync.Mutex
	version int64
	marker  string
	records map[string]*Stored
	changed chan struct{} // closed and replaced with each change
	lost    bool          // the answer of the next Put is lost
	held    chan struct{} // not nil while the next Put waits for it to be closed, although its sender gives up
	arrived chan error    // what became of that Put
}

func newMemory() *memory {
	return &memory{records: map[string]*Stored{}, changed: make(chan struct{})}
}

func (m *memory) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *memory) Get(_ context.Context, key string) (*Stored, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[key], m.marker, nil
}

func (m *memory) Put(ctx context.Context, old *Stored, r Record) (s *Stored, err error) {
	m.mu.Lock()
	held := m.held
	m.held = nil
	m.mu.Unlock()
	if held != nil {
		go func() {
			<-held
			_, err := m.put(old, r)
			m.arrived <- err
		}()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return m.put(old, r)
}

func (m *memory) put(old *Stored, r Record) (s *Stored, err error) {
	m.change(func() {
		if m.records[r.Key] != old {
			err = kv.ErrConflict
			return
		}
		m.version++
		s = &Stored{Record: r, Version: m.version}
		m.records[r.Key] = s
		if m.lost {
			m.lost, s, err = false, nil, context.DeadlineExceeded
		}
	})
	return s, err
}

// foreign lets another program write a record.
func (m *memory) foreign(key string, change func(r *Record)) {
	m.change(func() {
		m.version++
		s := *m.records[key]
		s.Version = m.version
		change(&s.Record)
		m.records[key] = &s
	})
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

func (m *memory) Watch(ctx context.Context, tell func(Change)) error {
	for {
		m.mu.Lock()
		c, changed := Change{All: true, Marker: m.marker}, m.changed
		for _, r := range m.records {
			c.Records = append(c.Records, r)
		}
		m.mu.Unlock()
		tell(c)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *memory) Close() error { return nil }

const (
	key = "db/billing"
	ttl = time.Minute
)

// inBubble runs a test whose stores use the fake clock of a bubble.
func inBubble(t *testing.T, test func(t *testing.T, m *memory, open func() *Store)) {
	synctest.Test(t, func(t *testing.T) {
		m, began := newMemory(), time.Now()
		if err := m.Mark(t.Context(), "first", false); err != nil {
			t.Fatal(err)
		}
		test(t, m, func() *Store {
			s := New(m, "one", 0)
			s.clock = newClock(func() time.Duration { return time.Since(began) })
			return s
		})
	})
}

func read(t *testing.T, s *Store) kv.Entry {
	t.Helper()
	e, err := s.Read(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func begin(t *testing.T, s *Store) string {
	t.Helper()
	life, err := s.Begin(t.Context(), ttl)
	if err != nil {
		t.Fatal(err)
	}
	return life.ID
}

func award(t *testing.T, s *Store, record string) (life string, version int64) {
	t.Helper()
	life = begin(t, s)
	version, err := s.Swap(t.Context(), key, read(t, s), []byte(record), life)
	if err != nil {
		t.Fatal(err)
	}
	return life, version
}
