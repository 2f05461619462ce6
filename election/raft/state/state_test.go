package state_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/raft/state"
)

// Commands for one lease.
func take(life string, basis uint64, marker string) state.Command {
	return state.Command{Op: state.Swap, Space: "s", Key: "k", Record: []byte(life), Life: life, TTL: time.Second, Basis: basis, Marker: marker}
}

func leave(basis uint64) state.Command {
	return state.Command{Op: state.Swap, Space: "s", Key: "k", Record: []byte("left"), Basis: basis}
}

func beat(life string) state.Command {
	return state.Command{Op: state.Beat, Space: "s", Key: "k", Life: life}
}

func end(life, key string, basis uint64) state.Command {
	return state.Command{Op: state.End, Space: "s", Key: key, Life: life, Basis: basis}
}

func mark(marker string, replace bool) state.Command {
	return state.Command{Op: state.Mark, Space: "s", Marker: marker, Replace: replace}
}

// step is a command and what it must come to.
type step struct {
	do   state.Command
	want state.Verdict
	life string // that holds the lease then
	// version and touched are of the lease then.
	version, touched uint64
}

const (
	done     = state.Done
	conflict = state.Conflict
	lost     = state.Lost
)

func TestCommands(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][]step{
		"a lease is taken, renewed and left": {
			{mark("m", false), done, "", 0, 0},
			{take("a", 0, "m"), done, "a", 2, 2},
			{beat("a"), done, "a", 2, 3},
			{leave(3), done, "", 4, 4},
			{beat("a"), lost, "", 4, 4},
		},
		"one of two takes it": {
			{mark("m", false), done, "", 0, 0},
			{take("a", 0, "m"), done, "a", 2, 2},
			{take("b", 0, "m"), conflict, "a", 2, 2},
			{beat("b"), lost, "a", 2, 2},
		},
		"a renewal refuses whoever saw it stand still before": {
			{mark("m", false), done, "", 0, 0},
			{take("a", 0, "m"), done, "a", 2, 2},
			{beat("a"), done, "a", 2, 3},
			{take("b", 2, "m"), conflict, "a", 2, 3},
			{take("b", 3, "m"), done, "b", 5, 5},
			{beat("a"), lost, "b", 5, 5},
			{end("a", "k", 0), done, "b", 5, 5},
		},
		"a repeated award is the same": {
			{mark("m", false), done, "", 0, 0},
			{take("a", 0, "m"), done, "a", 2, 2},
			{take("a", 0, "m"), done, "a", 2, 2},
			{beat("a"), done, "a", 2, 4},
			{take("a", 0, "m"), done, "a", 2, 4},
		},
		"an award that arrives after its life has ended is refused": {
			{mark("m", false), done, "", 0, 0},
			{end("a", "k", 0), done, "", 0, 2},
			{take("a", 0, "m"), conflict, "", 0, 2},
			{take("b", 2, "m"), done, "b", 4, 4},
			{leave(4), done, "", 5, 5},
			{end("c", "k", 5), done, "", 5, 6},
			{take("c", 5, "m"), conflict, "", 5, 6},
		},
		"an award that was made and has ended does not come back": {
			{mark("m", false), done, "", 0, 0},
			{take("a", 0, "m"), done, "a", 2, 2},
			{end("a", "k", 0), done, "", 2, 3},
			{take("a", 0, "m"), conflict, "", 2, 3},
		},
		"the leases of a life that is known by name alone": {
			{mark("m", false), done, "", 0, 0},
			{take("a", 0, "m"), done, "a", 2, 2},
			{end("other", "", 0), done, "a", 2, 2},
			{end("a", "", 0), done, "", 2, 4},
			{end("", "", 0), done, "", 2, 4},
		},
		"an award needs the marker that is in force": {
			{take("a", 0, "m"), conflict, "", 0, 0},
			{mark("m", false), done, "", 0, 0},
			{mark("n", false), done, "", 0, 0},
			{take("a", 0, "n"), conflict, "", 0, 0},
			{mark("n", true), done, "", 0, 0},
			{take("a", 0, "m"), conflict, "", 0, 0},
			{take("a", 0, "n"), done, "a", 7, 7},
			{mark("o", true), done, "a", 7, 7},
			{beat("a"), done, "a", 7, 9},
			{leave(9), done, "", 10, 10},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s state.State
			for i, c := range steps {
				got, err := s.Apply(uint64(i+1), c.do)
				l := s.View("s", "k").Lease
				if err != nil || got.Verdict != c.want || l.Life != c.life || l.Version != c.version || l.Touched != c.touched {
					t.Fatalf("entry %d: %+v, %v, and then %+v; want %+v", i+1, got, err, l, c)
				}
				if got.Verdict == done && c.do.Op == state.Swap && got.Version != l.Version {
					t.Errorf("entry %d: the answer has version %d, the lease %d", i+1, got.Version, l.Version)
				}
			}
		})
	}
}

func TestAnUnknownCommandChangesNothing(t *testing.T) {
	t.Parallel()
	var s state.State
	if _, err := s.Apply(5, state.Command{Op: "merge", Space: "s", Key: "k"}); !errors.Is(err, state.ErrUnknown) {
		t.Errorf("it ended with %v", err)
	}
	if !reflect.DeepEqual(s, state.State{}) {
		t.Errorf("the state is %+v", s)
	}
}

func TestSpacesAreApart(t *testing.T) {
	t.Parallel()
	var s state.State
	for i, c := range []state.Command{mark("m", false), take("a", 0, "m"), {Op: state.End, Space: "other", Life: "a"}, {Op: state.Mark, Space: "other", Marker: "n"}} {
		if _, err := s.Apply(uint64(i+1), c); err != nil {
			t.Fatal(err)
		}
	}
	if v := s.View("s", "k"); v.Lease.Life != "a" || v.Marker != "m" || v.Index != 4 {
		t.Errorf("the lease is %+v", v)
	}
	if v := s.View("other", "k"); v.Lease.Version != 0 || v.Marker != "n" {
		t.Errorf("in the other space it is %+v", v)
	}
}

func TestADeltaHasWhatWasTouched(t *testing.T) {
	t.Parallel()
	var s state.State
	apply := func(c state.Command) {
		if _, err := s.Apply(s.Index+1, c); err != nil {
			t.Fatal(err)
		}
	}
	apply(mark("m", false))
	apply(take("a", 0, "m"))
	other := take("b", 0, "m")
	other.Key = "l"
	apply(other)
	all := s.Since("s", 0)
	if all.Marker != "m" || all.Upto != 3 || len(all.Leases) != 2 {
		t.Errorf("everything is %+v", all)
	}
	apply(beat("a"))
	next := s.Since("s", all.Upto)
	if len(next.Leases) != 1 || next.Leases["k"].Touched != 4 || next.Upto != 4 {
		t.Errorf("after a renewal the delta is %+v", next)
	}
	if none := s.Since("none", 0); none.Upto != 0 || len(none.Leases) != 0 {
		t.Errorf("an unknown space has %+v", none)
	}
}

// random returns a command that may meet others.
func random(r *rand.Rand, s *state.State) state.Command {
	c := state.Command{
		Op:    []state.Op{state.Swap, state.Swap, state.Swap, state.Beat, state.Beat, state.End, state.Mark}[r.IntN(7)],
		Space: fmt.Sprint("s", r.IntN(2)), Key: fmt.Sprint("k", r.IntN(3)), Life: fmt.Sprint("life", r.IntN(6)),
		TTL: time.Duration(r.IntN(5)) * time.Second, Replace: r.IntN(20) == 0,
	}
	v := s.View(c.Space, c.Key)
	c.Basis, c.Marker, c.Record = v.Lease.Touched, v.Marker, []byte(fmt.Sprint("record ", r.Int()))
	switch r.IntN(8) {
	case 0:
		c.Basis = uint64(r.IntN(50))
	case 1:
		c.Life = ""
	case 2:
		c.Key = ""
	}
	if c.Op == state.Mark {
		c.Marker = fmt.Sprint("m", r.IntN(3))
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
			outcome, err := s.Apply(uint64(i+1), c)
			if err != nil {
				t.Fatal(err)
			}
			log, outcomes = append(log, c), append(outcomes, outcome)
		}
		if text, err := copied.Encode(); err != nil || !bytes.Equal(text, snapshot) {
			t.Fatalf("seed %d: later commands have changed the copy, %v", seed, err)
		}
		restored, err := state.Decode(snapshot)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range log[at:] {
			if got, err := restored.Apply(uint64(at+i+1), c); err != nil || got != outcomes[at+i] {
				t.Fatalf("seed %d, entry %d: the replay answers %+v, %v, want %+v", seed, at+i+1, got, err, outcomes[at+i])
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
