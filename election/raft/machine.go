package raft

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	hraft "github.com/hashicorp/raft"

	"github.com/fencepost/fencepost/election/raft/state"
)

// machine applies the log to the state. It is this node's replica.
type machine struct {
	stop func(error) // is called once, if the replica cannot continue

	mu      sync.Mutex
	state   *state.State
	changed chan struct{} // closed and replaced with each change
	broken  error         // why the replica cannot continue
}

var _ hraft.FSM = (*machine)(nil)

func newMachine(stop func(error)) *machine {
	return &machine{stop: stop, state: &state.State{}, changed: make(chan struct{})}
}

// Apply implements raft.FSM. It returns a state.Outcome, or an error.
func (m *machine) Apply(entry *hraft.Log) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return m.broken
	}
	c, err := state.Parse(entry.Data)
	var outcome state.Outcome
	if err == nil {
		outcome = m.state.Apply(entry.Index, c)
	}
	switch {
	case errors.Is(err, state.ErrUnknown):
		err = fmt.Errorf("%w: a newer version of Fencepost has written it, so upgrade this proxy", err)
	case err != nil:
		err = fmt.Errorf("%w: if other nodes go on, it is damaged here, so remove this node and add it again", err)
	}
	if err != nil {
		m.broken = fmt.Errorf("entry %d of the log: %w", entry.Index, err)
		m.stop(m.broken)
		m.announce()
		return m.broken
	}
	m.announce()
	return outcome
}

// announce wakes those who wait. m.mu is held.
func (m *machine) announce() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Snapshot implements raft.FSM.
func (m *machine) Snapshot() (hraft.FSMSnapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return nil, m.broken
	}
	return snapshot{m.state.Clone()}, nil
}

// Restore implements raft.FSM.
func (m *machine) Restore(from io.ReadCloser) error {
	text, err := io.ReadAll(from)
	if err = errors.Join(err, from.Close()); err != nil {
		return fmt.Errorf("read a snapshot: %w", err)
	}
	s, err := state.Decode(text)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = s
	m.announce()
	return nil
}

// look shows the state, and returns a channel that is closed when it changes. see keeps nothing
// of it.
func (m *machine) look(see func(*state.State)) (changed <-chan struct{}, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return nil, m.broken
	}
	see(m.state)
	return m.changed, nil
}

// await returns when the state is as asked for.
func (m *machine) await(ctx context.Context, is func(*state.State) bool) error {
	for {
		var ok bool
		changed, err := m.look(func(s *state.State) { ok = is(s) })
		if err != nil || ok {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// snapshot is a state that does not change any more.
type snapshot struct{ state *state.State }

// Persist implements raft.FSMSnapshot.
func (s snapshot) Persist(sink hraft.SnapshotSink) error {
	text, err := s.state.Encode()
	if err == nil {
		_, err = sink.Write(text)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write a snapshot: %w", err), sink.Cancel())
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (snapshot) Release() {}
