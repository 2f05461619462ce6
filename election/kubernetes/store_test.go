package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/kv"
)

const key = "db/billing"

// read reads the entry, over another connection if one has just been lost.
func read(t *testing.T, s *store) kv.Entry {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		e, err := s.Read(t.Context(), key)
		var lost *unreachable
		if err == nil {
			return e
		}
		if !errors.As(err, &lost) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func begin(t *testing.T, s *store) string {
	t.Helper()
	life, err := s.Begin(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return life.ID
}

func award(t *testing.T, s *store, record string) (life string, version int64) {
	t.Helper()
	life = begin(t, s)
	version, err := s.Swap(t.Context(), key, read(t, s), []byte(record), life)
	if err != nil {
		t.Fatal(err)
	}
	return life, version
}

// swapWritesOnlyWhatItMay is about what package kv rests on, and what no test through it can bring
// about in time: a request that is older than what stands there.
func swapWritesOnlyWhatItMay(t *testing.T, s *store) {
	ctx := t.Context()
	refused := func(what string, want error, old kv.Entry, life string) {
		t.Helper()
		before := read(t, s)
		if version, err := s.Swap(ctx, key, old, []byte("late"), life); !errors.Is(err, want) {
			t.Errorf("%s: version %d, %v; want %v", what, version, err, want)
		}
		if after := read(t, s); after.Life != before.Life || string(after.Record) != string(before.Record) {
			t.Errorf("%s: it wrote %+v over %+v", what, after, before)
		}
	}
	if err := s.Mark(ctx, "first", false); err != nil {
		t.Fatal(err)
	}
	empty, late := read(t, s), begin(t, s)
	if empty.Marker != "first" || empty.Version != 0 {
		t.Fatalf("at first it reads %+v", empty)
	}
	if err := s.End(ctx, late); err != nil {
		t.Fatal(err)
	}
	refused("with a life that is over", election.ErrLost, empty, late)
	if err := errors.Join(s.End(ctx, late), s.End(ctx, "unknown")); err != nil {
		t.Errorf("the second end of a life: %v", err)
	}
	if err := s.Beat(ctx, key, late); !errors.Is(err, election.ErrLost) {
		t.Errorf("the beat of a life that is over: %v", err)
	}
	life, version := award(t, s, "award")
	for range 2 {
		if held := read(t, s); held.Life != life || held.Version != version || string(held.Record) != "award" {
			t.Errorf("version %d by %s is read as %+v", version, life, held)
		}
		if err := s.Beat(ctx, key, life); err != nil {
			t.Errorf("the beat of the holder: %v", err)
		}
	}
	held := read(t, s)
	if err := s.Beat(ctx, key, begin(t, s)); !errors.Is(err, election.ErrLost) {
		t.Errorf("the beat of a life that holds nothing: %v", err)
	}
	refused("after somebody else's award", kv.ErrConflict, empty, begin(t, s))
	refused("a release of another award", kv.ErrConflict, empty, "")
	if err := s.Beat(ctx, key, life); err != nil {
		t.Errorf("the beat of the holder: %v", err)
	}
	refused("a release of an earlier version", kv.ErrConflict, held, "")
	if _, err := s.Swap(ctx, key, read(t, s), []byte("left"), ""); err != nil {
		t.Fatal(err)
	}
	free := read(t, s)
	if free.Life != "" || free.Version <= version || string(free.Record) != "left" {
		t.Errorf("after its release the lease is %+v", free)
	}
	if err := s.Beat(ctx, key, life); !errors.Is(err, election.ErrLost) {
		t.Errorf("the beat after the release: %v", err)
	}
	if err := s.Mark(ctx, "second", true); err != nil {
		t.Fatal(err)
	}
	if version, err := s.Swap(ctx, key, free, []byte("late"), begin(t, s)); !errors.Is(err, kv.ErrConflict) {
		t.Errorf("under a marker that was replaced: version %d, %v", version, err)
	}
	if after := read(t, s); after.Life != "" {
		t.Errorf("an award under a marker that was replaced was not taken back: %+v", after)
	}
	if err := s.Mark(ctx, "third", false); err != nil {
		t.Fatal(err)
	}
	if after := read(t, s); after.Marker != "second" {
		t.Errorf("the marker is %q", after.Marker)
	}
	if err := s.Check(ctx); err != nil {
		t.Errorf("the check ended with %v", err)
	}
	last := read(t, s).Version
	for range 2 {
		marker, at, err := s.Position(ctx)
		if err != nil || marker != "second" || at <= last {
			t.Errorf("the position is %q, %d: %v; want \"second\", above %d", marker, at, err, last)
		}
		last = at
	}
}

func TestSwapWritesOnlyWhatItMay(t *testing.T) {
	t.Parallel()
	swapWritesOnlyWhatItMay(t, newFake(t).store())
}

// hold makes the next award wait. waiting is closed when it does; arrive lets it arrive, although its
// sender has given up.
func (f *fake) hold() (waiting chan struct{}, arrive func()) {
	waiting, goes, arrived := make(chan struct{}), make(chan struct{}), make(chan struct{})
	f.instead(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet {
			return false
		}
		f.instead(nil)
		body, _ := io.ReadAll(r.Body) // while its sender is there
		r.Body = io.NopCloser(bytes.NewReader(body))
		close(waiting)
		<-goes
		f.single(w, r, "")
		close(arrived)
		return true
	})
	return waiting, func() {
		close(goes)
		<-arrived
	}
}

// What was given up writes nothing if it arrives later, whether or not there was an object.
func TestALateAwardWritesNothing(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s := f.store()
	if err := s.Mark(t.Context(), "marker", false); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"a new object", "an object that is there"} {
		old, life := read(t, s), begin(t, s)
		waiting, arrive := f.hold()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-waiting
			cancel()
		}()
		if _, err := s.Swap(ctx, key, old, []byte("late"), life); err == nil || errors.Is(err, kv.ErrConflict) || errors.Is(err, election.ErrLost) {
			t.Errorf("%s: a swap without an answer ended with %v", what, err)
		}
		if err := s.End(t.Context(), life); err != nil {
			t.Fatalf("%s: end: %v", what, err)
		}
		arrive()
		if e := read(t, s); e.Life != "" || string(e.Record) == "late" {
			t.Errorf("%s: the late award has written %+v", what, e)
		}
	}
}

// lose carries out the next write and loses its answer.
func (f *fake) lose() {
	f.instead(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet {
			return false
		}
		f.instead(nil)
		f.single(new(nowhere), r, "")
		panic(http.ErrAbortHandler)
	})
}

// nowhere is where a lost answer goes.
type nowhere struct{}

func (*nowhere) Header() http.Header         { return http.Header{} }
func (*nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (*nowhere) WriteHeader(int)             {}

// An award whose answer was lost is confirmed by its first beat, unless a new generation began.
func TestAnAwardWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s := f.store()
	if err := s.Mark(t.Context(), "first", false); err != nil {
		t.Fatal(err)
	}
	for _, bumped := range []bool{false, true} {
		old, life := read(t, s), begin(t, s)
		f.lose()
		if _, err := s.Swap(t.Context(), key, old, []byte("award"), life); err == nil || errors.Is(err, kv.ErrConflict) {
			t.Fatalf("a swap whose answer was lost ended with %v", err)
		}
		e := read(t, s)
		if e.Life != life {
			t.Fatalf("it is read as %+v", e)
		}
		if bumped {
			if err := s.Mark(t.Context(), "second", true); err != nil {
				t.Fatal(err)
			}
		}
		err := s.Beat(t.Context(), key, life)
		if bumped != errors.Is(err, election.ErrLost) || !bumped && err != nil {
			t.Errorf("bumped %v: the beat ended with %v", bumped, err)
		}
		after := read(t, s)
		if bumped && after.Life != "" || !bumped && (after.Life != life || after.Version != e.Version) {
			t.Errorf("bumped %v: it is read as %+v, and was %+v", bumped, after, e)
		}
		if err := s.End(t.Context(), life); err != nil {
			t.Error(err)
		}
	}
}
