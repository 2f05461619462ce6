// Package state is the state machine of Raft among the proxies: records of leases by key, which
// are compared and swapped by version, and a marker. It is pure. It has no clock, makes no random
// numbers, and does no input or output, so that every node that applies the same commands has the
// same state.
//
// # Repeats
//
// A command that was sent again because its first answer was lost does no harm, in whatever order
// the copies arrive. A Swap with a life names the same award each time, unless it was released in
// between, and then it rests on a lease that has been touched since. Beat, End and Mark may be
// applied any number of times.
package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"
)

// ErrUnknown means that a command cannot be applied because a newer version of the program made
// it. A leader refuses to make it an entry. A node that finds it in the log must not skip it: it is
// there because a leader has known it, so others apply it, and states that differ award differently.
var ErrUnknown = errors.New("unknown command")

// Op is what a command does.
type Op string

// The operations.
const (
	// Swap writes a record, and ties it to Life, provided that nothing has touched the lease since
	// Basis, and that Marker is in force if Life is not "".
	Swap Op = "swap"
	// Beat touches a lease, provided that Life holds it.
	Beat Op = "beat"
	// End takes a lease from Life. If Life does not hold Key, but nothing has touched it since
	// Basis, it is touched, so that a Swap with this life that arrives later is refused. Without a
	// Key, End takes every lease in the space from Life.
	End Op = "end"
	// Mark writes the marker, if there is none or if Replace is set.
	Mark Op = "mark"
)

// Command is one entry of the log.
type Command struct {
	Op      Op            `json:"op"`
	Space   string        `json:"space"` // commands in two spaces never affect each other
	Key     string        `json:"key,omitempty"`
	Record  []byte        `json:"record,omitempty"`
	Life    string        `json:"life,omitempty"`
	TTL     time.Duration `json:"ttl,omitempty"` // of Life
	Basis   uint64        `json:"basis,omitempty"`
	Marker  string        `json:"marker,omitempty"`
	Replace bool          `json:"replace,omitempty"`
}

// Parse returns the command that a text is. The error wraps ErrUnknown if it says more than this version
// understands.
func Parse(text []byte) (c Command, err error) {
	if err := json.Unmarshal(text, &c); err != nil {
		return Command{}, fmt.Errorf("decode a command: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Command{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if operations[c.Op] == nil {
		return Command{}, fmt.Errorf("%w: %q", ErrUnknown, c.Op)
	}
	return c, nil
}

// Verdict says whether a command has done what it was to do.
type Verdict string

// The verdicts.
const (
	Done     Verdict = "done"
	Conflict Verdict = "conflict" // what it rests on is out of date; nothing was written
	Lost     Verdict = "lost"     // the life does not hold the lease
)

// Outcome is the answer to a command.
type Outcome struct {
	Verdict Verdict `json:"verdict"`
	Version uint64  `json:"version,omitempty"` // of the lease that a Swap has written
}

// Lease is what stands under a key.
type Lease struct {
	Record []byte `json:"record,omitempty"` // nil if it was never written
	// Version is the index of the entry that wrote the record; 0 without one.
	Version uint64 `json:"version"`
	// Touched is the index of the last entry that changed anything here or renewed the lease.
	Touched uint64        `json:"touched"`
	Life    string        `json:"life,omitempty"` // with which the record was written; "" when nobody holds it
	TTL     time.Duration `json:"ttl,omitempty"`  // of Life
}

// Space is everything under one prefix.
type Space struct {
	Marker string           `json:"marker,omitempty"`
	Leases map[string]Lease `json:"leases,omitempty"`
	// Touched is the index of the last entry that changed anything in the space.
	Touched uint64 `json:"touched"`
}

// State is the state after the entry with the index Index. The zero State is that of a new
// cluster. It is not safe for concurrent use.
type State struct {
	Index  uint64            `json:"index"`
	Spaces map[string]*Space `json:"spaces,omitempty"`
}

var operations = map[Op]func(*Space, uint64, Command) Outcome{Swap: swap, Beat: beat, End: end, Mark: mark}

// Apply applies the command that is the entry with this index. Indexes grow with each call. The
// only error is ErrUnknown; the state is then as it was.
func (s *State) Apply(index uint64, c Command) (Outcome, error) {
	do := operations[c.Op]
	if do == nil {
		return Outcome{}, fmt.Errorf("%w: %q", ErrUnknown, c.Op)
	}
	if s.Spaces == nil {
		s.Spaces = map[string]*Space{}
	}
	space := s.Spaces[c.Space]
	if space == nil {
		space = &Space{Leases: map[string]Lease{}}
		s.Spaces[c.Space] = space
	}
	s.Index = index
	return do(space, index, c), nil
}

// put changes a lease.
func (s *Space) put(index uint64, key string, l Lease) {
	l.Touched, s.Touched = index, index
	s.Leases[key] = l
}

func swap(s *Space, index uint64, c Command) Outcome {
	l := s.Leases[c.Key]
	switch {
	case c.Life != "" && l.Life == c.Life: // the command was repeated
		return Outcome{Verdict: Done, Version: l.Version}
	case l.Touched != c.Basis, c.Life != "" && s.Marker != c.Marker:
		return Outcome{Verdict: Conflict}
	}
	next := Lease{Record: c.Record, Version: index, Life: c.Life}
	if c.Life != "" {
		next.TTL = c.TTL
	}
	s.put(index, c.Key, next)
	return Outcome{Verdict: Done, Version: index}
}

func beat(s *Space, index uint64, c Command) Outcome {
	l := s.Leases[c.Key]
	if c.Life == "" || l.Life != c.Life {
		return Outcome{Verdict: Lost}
	}
	s.put(index, c.Key, l)
	return Outcome{Verdict: Done, Version: l.Version}
}

func end(s *Space, index uint64, c Command) Outcome {
	clearLease := func(key string, l Lease) {
		l.Life, l.TTL = "", 0
		s.put(index, key, l)
	}
	switch l := s.Leases[c.Key]; {
	case c.Life == "":
	case c.Key == "":
		for key, l := range s.Leases {
			if l.Life == c.Life {
				clearLease(key, l)
			}
		}
	case l.Life == c.Life:
		clearLease(c.Key, l)
	case l.Touched == c.Basis:
		s.put(index, c.Key, l)
	}
	return Outcome{Verdict: Done}
}

func mark(s *Space, index uint64, c Command) Outcome {
	if s.Marker == "" || c.Replace && s.Marker != c.Marker {
		s.Marker, s.Touched = c.Marker, index
	}
	return Outcome{Verdict: Done}
}

// View is one lease and what is around it, of one moment.
type View struct {
	Lease  Lease  `json:"lease"`
	Marker string `json:"marker,omitempty"`
	Index  uint64 `json:"index"` // of the last entry that was applied
}

// View returns what stands under a key.
func (s *State) View(space, key string) View {
	v := View{Index: s.Index}
	if in := s.Spaces[space]; in != nil {
		v.Lease, v.Marker = in.Leases[key], in.Marker
	}
	return v
}

// Delta is what has changed in a space.
type Delta struct {
	Marker string           `json:"marker,omitempty"` // whether it has changed or not
	Leases map[string]Lease `json:"leases,omitempty"`
	Upto   uint64           `json:"upto"` // what was touched later is in the next delta
}

// Since returns the leases that were touched after the entry with this index. Leases never vanish.
func (s *State) Since(space string, index uint64) Delta {
	d := Delta{Leases: map[string]Lease{}}
	in := s.Spaces[space]
	if in == nil {
		return d
	}
	d.Marker, d.Upto = in.Marker, in.Touched
	for key, l := range in.Leases {
		if l.Touched > index {
			d.Leases[key] = l
		}
	}
	return d
}

// Touched returns the index of the last entry that changed anything in the space.
func (s *State) Touched(space string) uint64 {
	if in := s.Spaces[space]; in != nil {
		return in.Touched
	}
	return 0
}

// Clone returns a copy that later commands do not change. Records are shared, because no command
// changes the bytes of one.
func (s *State) Clone() *State {
	c := &State{Index: s.Index, Spaces: make(map[string]*Space, len(s.Spaces))}
	for name, in := range s.Spaces {
		c.Spaces[name] = &Space{Marker: in.Marker, Leases: maps.Clone(in.Leases), Touched: in.Touched}
	}
	return c
}

// Encode returns the state as it is kept in a snapshot. Equal states have equal texts.
func (s *State) Encode() ([]byte, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the state: %w", err)
	}
	return text, nil
}

// Decode returns the state of a snapshot.
func Decode(text []byte) (*State, error) {
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("decode the state: %w", err)
	}
	for _, in := range s.Spaces {
		if in.Leases == nil {
			in.Leases = map[string]Lease{}
		}
	}
	return &s, nil
}
