// Package state is the state machine of Raft among the proxies: texts by key, which are compared and swapped by
// version, and a marker. It is pure. It has no clock, makes no random numbers, and does no input or output, so
// that every node that applies the same commands has the same state.
//
// # Repeats
//
// A command that was sent again because its first answer was lost does no harm, in whatever order
// the copies arrive. No two writes have the same text, so a Put finds out that it was applied before.
// A Mark may be applied any number of times.
package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
)

// ErrUnknown means that a command cannot be applied because a newer version of the program made
// it. A leader refuses to make it an entry. A node that finds it in the log must not skip it: it is
// there because a leader has known it, so others apply it, and states that differ award differently.
var ErrUnknown = errors.New("unknown command")

// Op is what a command does.
type Op string

// The operations.
const (
	// Put writes a text, provided that the key has the version Basis.
	Put Op = "put"
	// Mark writes the marker, if there is none or if Replace is set.
	Mark Op = "mark"
)

// Command is one entry of the log.
type Command struct {
	Op      Op              `json:"op"`
	Space   string          `json:"space"` // commands in two spaces never affect each other
	Key     string          `json:"key,omitempty"`
	Text    json.RawMessage `json:"text,omitempty"`
	Basis   uint64          `json:"basis,omitempty"`
	Marker  string          `json:"marker,omitempty"`
	Replace bool            `json:"replace,omitempty"`
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
	if c.Op != Put && c.Op != Mark {
		return Command{}, fmt.Errorf("%w: %q", ErrUnknown, c.Op)
	}
	return c, nil
}

// Outcome is the answer to a command.
type Outcome struct {
	// Version is that of the text after a Put; 0 if it has written nothing, because the key had another version.
	Version uint64 `json:"version,omitempty"`
}

// Record is what is stored under a key.
type Record struct {
	Text    json.RawMessage `json:"text,omitempty"`
	Version uint64          `json:"version"` // the index of the entry that wrote it; 0 if there is none
}

// Space is everything under one prefix.
type Space struct {
	Marker  string            `json:"marker,omitempty"`
	Records map[string]Record `json:"records,omitempty"`
	// Touched is the index of the last entry that changed anything in the space.
	Touched uint64 `json:"touched"`
}

// State is the state after the entry with the index Index. The zero State is that of a new
// cluster. It is not safe for concurrent use.
type State struct {
	Index  uint64            `json:"index"`
	Spaces map[string]*Space `json:"spaces,omitempty"`
}

// Apply applies the command that is the entry with this index. Indexes grow with each call.
func (s *State) Apply(index uint64, c Command) Outcome {
	if s.Spaces == nil {
		s.Spaces = map[string]*Space{}
	}
	space := s.Spaces[c.Space]
	if space == nil {
		space = &Space{Records: map[string]Record{}}
		s.Spaces[c.Space] = space
	}
	s.Index = index
	if c.Op == Mark {
		if space.Marker == "" || c.Replace && space.Marker != c.Marker {
			space.Marker, space.Touched = c.Marker, index
		}
		return Outcome{}
	}
	r := space.Records[c.Key]
	switch {
	case r.Version != 0 && bytes.Equal(r.Text, c.Text): // the command was repeated
	case r.Version != c.Basis:
		return Outcome{}
	default:
		r = Record{c.Text, index}
		space.Records[c.Key], space.Touched = r, index
	}
	return Outcome{r.Version}
}

// View is what is stored under a key and what is around it, of one moment.
type View struct {
	Record Record `json:"record"`
	Marker string `json:"marker,omitempty"`
	Index  uint64 `json:"index"` // of the last entry that was applied
}

// View returns what is stored under a key.
func (s *State) View(space, key string) View {
	v := View{Index: s.Index}
	if in := s.Spaces[space]; in != nil {
		v.Record, v.Marker = in.Records[key], in.Marker
	}
	return v
}

// Delta is what has changed in a space.
type Delta struct {
	Marker  string            `json:"marker,omitempty"` // whether it has changed or not
	Records map[string]Record `json:"records,omitempty"`
	Upto    uint64            `json:"upto"` // what was touched later is in the next delta
}

// Since returns the records that were written after the entry with this index. Records never vanish.
func (s *State) Since(space string, index uint64) Delta {
	d := Delta{Records: map[string]Record{}}
	in := s.Spaces[space]
	if in == nil {
		return d
	}
	d.Marker, d.Upto = in.Marker, in.Touched
	for key, r := range in.Records {
		if r.Version > index {
			d.Records[key] = r
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

// Clone returns a copy that later commands do not change. Texts are shared, because no command
// changes the bytes of one.
func (s *State) Clone() *State {
	c := &State{Index: s.Index, Spaces: make(map[string]*Space, len(s.Spaces))}
	for name, in := range s.Spaces {
		c.Spaces[name] = &Space{Marker: in.Marker, Records: maps.Clone(in.Records), Touched: in.Touched}
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
		if in.Records == nil {
			in.Records = map[string]Record{}
		}
	}
	return &s, nil
}
