package state_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/fencepost/fencepost/election/raft/state"
)

// Commands for one key.
func put(text string, basis uint64) state.Command {
	return state.Command{Op: state.Put, Space: "s", Key: "k", Text: json.RawMessage(text), Basis: basis}
}

func mark(marker string, replace bool) state.Command {
	return state.Command{Op: state.Mark, Space: "s", Marker: marker, Replace: replace}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	var s state.State
	for i, c := range []struct {
		do     state.Command
		answer uint64 // the version
		text   string // there is then
		marker string
	}{
		{mark("m", false), 0, "", "m"},
		{put("1", 7), 0, "", "m"}, // there is nothing
		{put("1", 0), 3, "1", "m"},
		{put("1", 0), 3, "1", "m"}, // repeated
		{put("2", 0), 0, "1", "m"}, // too late
		{put("2", 3), 6, "2", "m"},
		{put("1", 0), 0, "2", "m"}, // repeated, and overwritten meanwhile
		{mark("n", false), 0, "2", "m"},
		{mark("n", true), 0, "2", "n"},
		{state.Command{Op: state.Mark, Space: "other", Marker: "o"}, 0, "2", "n"},
	} {
		answer := s.Apply(uint64(i+1), c.do).Version
		v := s.View("s", "k")
		if answer != c.answer || string(v.Record.Text) != c.text || v.Marker != c.marker || v.Index != uint64(i+1) {
			t.Errorf("entry %d: %d, and then %+v; want %+v", i+1, answer, v, c)
		}
	}
}

func TestAnUnknownCommandIsNotParsed(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"op":"merge"}`, `{"op":"put","newer":1}`} {
		if _, err := state.Parse([]byte(text)); !errors.Is(err, state.ErrUnknown) {
			t.Errorf("%s is parsed with %v", text, err)
		}
	}
	if _, err := state.Parse([]byte("{")); err == nil || errors.Is(err, state.ErrUnknown) {
		t.Errorf("what is no command is parsed with %v", err)
	}
}

func TestADeltaHasWhatWasWritten(t *testing.T) {
	t.Parallel()
	var s state.State
	s.Apply(1, mark("m", false))
	s.Apply(2, put("1", 0))
	other := put("2", 0)
	other.Key = "l"
	s.Apply(3, other)
	all := s.Since("s", 0)
	if all.Marker != "m" || all.Upto != 3 || len(all.Records) != 2 {
		t.Errorf("everything is %+v", all)
	}
	s.Apply(4, put("3", 2))
	next := s.Since("s", all.Upto)
	if len(next.Records) != 1 || next.Records["k"].Version != 4 || next.Upto != 4 {
		t.Errorf("after a write the delta is %+v", next)
	}
	if none := s.Since("none", 0); none.Upto != 0 || len(none.Records) != 0 {
		t.Errorf("an unknown space has %+v", none)
	}
}

// random returns a command that may meet others.
func random(r *rand.Rand, s *state.State) state.Command {
	c := state.Command{Op: state.Put, Space: fmt.Sprint("s", r.IntN(2)), Key: fmt.Sprint("k", r.IntN(3)), Text: fmt.Append(nil, r.IntN(50))}
	c.Basis = s.View(c.Space, c.Key).Record.Version
	switch r.IntN(8) {
	case 0:
		c.Basis = uint64(r.IntN(50))
	case 1:
		c = state.Command{Op: state.Mark, Space: c.Space, Marker: fmt.Sprint("m", r.IntN(3)), Replace: r.IntN(3) == 0}
	}
	return c
}

// Whoever begins with a snapshot taken anywhere, and replays the rest, has the same state and gives
// the same answers. A copy that was taken before stays as it was.
func TestASnapshotAndAReplayGiveTheSame(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var s state.State
		var log []state.Command
		var outcomes []state.Outcome
		at := r.IntN(200)
		var snapshot []byte
		var copied *state.State
		for i := range 200 {
			if i == at {
				var err error
				if snapshot, err = s.Encode(); err != nil {
					t.Fatal(err)
				}
				copied = s.Clone()
			}
			c := random(r, &s)
			log, outcomes = append(log, c), append(outcomes, s.Apply(uint64(i+1), c))
		}
		if text, err := copied.Encode(); err != nil || !bytes.Equal(text, snapshot) {
			t.Fatalf("seed %d: later commands have changed the copy, %v", seed, err)
		}
		restored, err := state.Decode(snapshot)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range log[at:] {
			if got := restored.Apply(uint64(at+i+1), c); got != outcomes[at+i] {
				t.Fatalf("seed %d, entry %d: the replay answers %+v, want %+v", seed, at+i+1, got, outcomes[at+i])
			}
		}
		want, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := restored.Encode(); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("seed %d: the replay gives\n%s, %v, want\n%s", seed, got, err, want)
		}
	}
}
