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
	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/kv"
)

const key = "db/billing"

// read reads the entry, over another connection if one has just been lost.
func read(t *testing.T, s *store) kv.Entry {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		e, err := s.Read(t.Context(), key)
		var lost *kv.Unreachable
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

func TestStore(t *testing.T) {
	t.Parallel()
	electiontest.RunStore(t, newFake(t).store())
}

// A renewal writes the object, so what was read before releases nothing, and so does each position.
func TestRenewalsAndPositionsAreWrites(t *testing.T) {
	t.Parallel()
	s, ctx := newFake(t).store(), t.Context()
	if err := errors.Join(s.Mark(ctx, "first", false), s.Check(ctx), s.End(ctx, "unknown")); err != nil {
		t.Fatal(err)
	}
	life, version := award(t, s, "award")
	held := read(t, s)
	if err := s.Beat(ctx, key, life); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Swap(ctx, key, held, []byte("late"), ""); !errors.Is(err, kv.ErrConflict) || read(t, s).Life != life {
		t.Errorf("a release of an earlier version ended with %v", err)
	}
	last := version
	for range 2 {
		marker, at, err := s.Position(ctx)
		if err != nil || marker != "first" || at <= last {
			t.Fatalf("the position is %q, %d: %v; want \"first\", above %d", marker, at, err, last)
		}
		last = at
	}
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
