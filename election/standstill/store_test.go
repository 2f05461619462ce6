package standstill

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
)

func TestStore(t *testing.T) {
	t.Parallel()
	electiontest.RunStore(t, New(newMemory(), "one", 0))
}

func TestNoShorterTTLIsGranted(t *testing.T) {
	t.Parallel()
	life, err := New(newMemory(), "one", time.Minute).Begin(t.Context(), time.Second)
	if err != nil || life.TTL != time.Minute {
		t.Errorf("a life of %v, %v", life.TTL, err)
	}
}

// What another program writes as the TTL keeps others from the lease for a day at most.
func TestATTLIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, m *memory, open func() *Store) {
		holder, other := open(), open()
		for _, ttl := range []time.Duration{1 << 62, -1} {
			life, _ := award(t, holder, `"award"`)
			m.foreign(key, func(r *Record) { r.TTL = ttl })
			read(t, other)
			for range mostTTL / time.Second {
				time.Sleep(time.Second)
				read(t, other)
			}
			if e := read(t, other); e.Life != "" {
				t.Errorf("with a TTL of %v it is read as %+v", ttl, e)
			}
			if err := holder.End(t.Context(), life); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A renewal is a write, so what was read before releases nothing. The award keeps its version.
func TestRenewalsAreWrites(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *memory, open func() *Store) {
		s := open()
		life, version := award(t, s, `"award"`)
		held := read(t, s)
		if err := s.Beat(t.Context(), key, life); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Swap(t.Context(), key, held, []byte(`"late"`), ""); !errors.Is(err, kv.ErrConflict) {
			t.Errorf("a release of an earlier version ended with %v", err)
		}
		if e := read(t, s); e.Life != life || e.Version != version {
			t.Errorf("award %d of %s is read as %+v", version, life, e)
		}
	})
}

// What was given up writes nothing if it arrives later, whether or not there was a record.
func TestALateAwardWritesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, m *memory, open func() *Store) {
		s := open()
		for _, what := range []string{"a new record", "a record that is there"} {
			old, life := read(t, s), begin(t, s)
			m.held, m.arrived = make(chan struct{}), make(chan error, 1)
			arrive := m.held
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := s.Swap(ctx, key, old, []byte(`"late"`), life); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: a swap without an answer ended with %v", what, err)
			}
			cancel()
			if err := s.End(t.Context(), life); err != nil {
				t.Fatalf("%s: end: %v", what, err)
			}
			close(arrive)
			if err := <-m.arrived; !errors.Is(err, kv.ErrConflict) {
				t.Errorf("%s: the late award ended with %v", what, err)
			}
			if e := read(t, s); e.Life != "" || string(e.Record) == `"late"` {
				t.Errorf("%s: the late award has written %+v", what, e)
			}
		}
	})
}

// An award whose answer was lost is confirmed by its first beat, unless a new generation began.
func TestAnAwardWhoseAnswerWasLost(t *testing.T) {
	inBubble(t, func(t *testing.T, m *memory, open func() *Store) {
		s := open()
		for _, bumped := range []bool{false, true} {
			old, life := read(t, s), begin(t, s)
			m.lost = true
			if _, err := s.Swap(t.Context(), key, old, []byte(`"award"`), life); err == nil || errors.Is(err, kv.ErrConflict) {
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
			if bumped != errors.Is(err, elector.ErrLost) || !bumped && err != nil {
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
	})
}

// What others do to a record costs the lease only if it names another holder, or is gone.
func TestOthersWriteTheRecord(t *testing.T) {
	for what, c := range map[string]struct {
		do   func(m *memory)
		lost bool
	}{
		"its text is overwritten":           {func(m *memory) { m.foreign(key, func(r *Record) { r.Text = []byte(`"mine"`) }) }, false},
		"the award's number is overwritten": {func(m *memory) { m.foreign(key, func(r *Record) { r.Award = 1 << 62 }) }, false},
		"the holder is removed":             {func(m *memory) { m.foreign(key, func(r *Record) { r.Life = "" }) }, true},
		"the holder is another":             {func(m *memory) { m.foreign(key, func(r *Record) { r.Life = "another" }) }, true},
		"it is deleted":                     {func(m *memory) { m.change(func() { delete(m.records, key) }) }, true},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *memory, open func() *Store) {
				s := open()
				life, version := award(t, s, `"award"`)
				c.do(m)
				if e := read(t, s); e.Version > m.version {
					t.Errorf("its award is %d, and only %d writes were made", e.Version, m.version)
				}
				err := s.Beat(t.Context(), key, life)
				if c.lost != errors.Is(err, elector.ErrLost) || !c.lost && err != nil {
					t.Fatalf("the beat ended with %v", err)
				}
				e := read(t, s)
				switch {
				case c.lost && e.Life == life:
					t.Errorf("it is read as %+v", e)
				case !c.lost && (e.Life != life || e.Version != version || string(e.Record) != `"award"`):
					t.Errorf("award %d is read as %+v", version, e)
				}
			})
		})
	}
}

// A lease is free when its record has not changed for its TTL, as seen by whoever looks.
func TestALeaseIsFreeWhenItStandsStill(t *testing.T) {
	inBubble(t, func(t *testing.T, m *memory, open func() *Store) {
		holder := open()
		life, _ := award(t, holder, `"award"`)
		time.Sleep(10 * ttl) // it was awarded long before it is first seen
		other := open()
		isHeld := func(want bool) {
			t.Helper()
			if e := read(t, other); (e.Life == life) != want {
				t.Errorf("it is read as %+v", e)
			}
		}
		// wait looks at the record all the time.
		wait := func(d time.Duration) {
			t.Helper()
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
				read(t, other)
			}
		}
		isHeld(true)
		wait(ttl - time.Second)
		isHeld(true)
		if err := holder.Beat(t.Context(), key, life); err != nil {
			t.Fatal(err)
		}
		wait(2 * time.Second)
		isHeld(true)
		for i := range int(ttl/time.Second) - 3 { // what others write is no sign of life
			m.foreign(key, func(r *Record) { r.Text = fmt.Append(nil, i) })
			wait(time.Second)
		}
		isHeld(true)
		wait(2 * time.Second)
		isHeld(false)
		if err := holder.Beat(t.Context(), key, life); err != nil { // no one has taken it
			t.Errorf("the holder renews with %v", err)
		}
		isHeld(true)
		wait(ttl / 2)
		time.Sleep(ttl) // the service is away, and no one can renew
		isHeld(true)
		wait(ttl - time.Second)
		isHeld(true)
		wait(time.Second)
		isHeld(false)
	})
}

// watching is a Watch, and what it shows.
type watching struct {
	t     *testing.T
	shown chan kv.Snapshot
}

func watch(t *testing.T, s *Store) watching {
	ctx, cancel := context.WithCancel(t.Context())
	w, ended := watching{t, make(chan kv.Snapshot, 1000)}, make(chan error, 1)
	go func() { ended <- s.Watch(ctx, func(s kv.Snapshot) { w.shown <- s }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the watch ended with %v", err)
		}
	})
	return w
}

// next returns what is shown next. In a bubble, the time passes until there is something.
func (w watching) next() kv.Snapshot { return <-w.shown }

func TestAWatchShowsWhatMatters(t *testing.T) {
	inBubble(t, func(t *testing.T, m *memory, open func() *Store) {
		s := open()
		w := watch(t, open())
		if first := w.next(); first.Marker != "first" || len(first.Entries) != 0 {
			t.Errorf("at first it shows %+v", first)
		}
		life, version := award(t, s, `"award"`)
		if e := w.next().Entries[key]; e.Life != life || e.Version != version || string(e.Record) != `"award"` {
			t.Errorf("the award is shown as %+v", e)
		}
		for range 3 {
			time.Sleep(ttl * 9 / 10)
			if err := s.Beat(t.Context(), key, life); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(w.shown); n > 0 {
			t.Errorf("%d renewals were shown", n)
		}
		renewed := time.Now()
		if e := w.next().Entries[key]; e.Life != "" || time.Since(renewed) != ttl {
			t.Errorf("%v after its last renewal it is shown as %+v", time.Since(renewed), e)
		}
		if err := s.Beat(t.Context(), key, life); err != nil {
			t.Fatal(err)
		}
		if e := w.next().Entries[key]; e.Life != life {
			t.Errorf("after one more renewal it is shown as %+v", e)
		}
		m.change(func() { delete(m.records, key) })
		if all := w.next(); len(all.Entries) != 0 {
			t.Errorf("after it was deleted, there is %+v", all)
		}
		m.change(func() { m.marker = "second" })
		if all := w.next(); all.Marker != "second" {
			t.Errorf("the marker is shown as %q", all.Marker)
		}
	})
}
