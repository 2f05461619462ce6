package electiontest

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
)

// RunStore shows what package kv rests on, and what no case through it can bring about in time: a
// request that is older than what is stored there awards nothing. The prefix of the store is empty, and
// no one else uses it.
func RunStore(t *testing.T, s kv.Store) {
	t.Helper()
	const (
		key = "db/billing"
		ttl = time.Minute
	)
	ctx := within(t, patience)
	read := func() kv.Entry {
		t.Helper()
		e, err := s.Read(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	begin := func() string {
		t.Helper()
		life, err := s.Begin(ctx, ttl)
		if err != nil || life.TTL != ttl {
			t.Fatalf("a life of %v: %v", life.TTL, err)
		}
		return life.ID
	}
	mark := func(marker string, replace bool) {
		t.Helper()
		if err := s.Mark(ctx, marker, replace); err != nil {
			t.Fatal(err)
		}
	}
	write := func(old kv.Entry, record, life string) (version int64) {
		t.Helper()
		version, err := s.Swap(ctx, key, old, []byte(record), life)
		if err != nil {
			t.Fatal(err)
		}
		return version
	}
	refused := func(what string, want error, old kv.Entry, life string) {
		t.Helper()
		before := read()
		if version, err := s.Swap(ctx, key, old, []byte(`"late"`), life); !errors.Is(err, want) {
			t.Errorf("%s: version %d, %v; want %v", what, version, err, want)
		}
		if after := read(); after.Version != before.Version || !bytes.Equal(after.Record, before.Record) || after.Life != before.Life {
			t.Errorf("%s: it wrote %+v over %+v", what, after, before)
		}
	}
	lost := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, elector.ErrLost) {
			t.Errorf("the beat of a life that %s: %v", what, err)
		}
	}

	mark("first", false)
	empty, over := read(), begin()
	if !strings.HasPrefix(empty.Marker, "first") || empty.Version != 0 || empty.Life != "" { // Redis adds to the marker
		t.Fatalf("at first it reads %+v", empty)
	}
	if err := s.End(ctx, over); err != nil {
		t.Fatal(err)
	}
	refused("with a life that is over", elector.ErrLost, empty, over)
	if err := s.End(ctx, over); err != nil {
		t.Errorf("the second end of a life: %v", err)
	}
	lost("is over", s.Beat(ctx, key, over))

	life := begin()
	version := write(empty, `"award"`, life)
	for range 2 {
		if held := read(); held.Life != life || held.Version != version || string(held.Record) != `"award"` {
			t.Errorf("version %d by %s is read as %+v", version, life, held)
		}
		if err := s.Beat(ctx, key, life); err != nil {
			t.Errorf("the beat of the holder: %v", err)
		}
	}
	lost("holds nothing", s.Beat(ctx, key, begin()))
	refused("after somebody else's award", kv.ErrConflict, empty, begin())
	refused("a release of another award", kv.ErrConflict, empty, "")

	write(read(), `"left"`, "")
	free := read()
	if free.Life != "" || free.Version <= version || string(free.Record) != `"left"` {
		t.Errorf("after its release the lease is %+v", free)
	}
	lost("has released the lease", s.Beat(ctx, key, life))

	mark("second", true)
	if _, err := s.Swap(ctx, key, free, []byte(`"late"`), begin()); !errors.Is(err, kv.ErrConflict) {
		t.Errorf("under a marker that was replaced: %v", err)
	}
	if after := read(); after.Life != "" { // Kubernetes compares the marker after it has written
		t.Errorf("under a marker that was replaced it awarded %+v", after)
	}
	mark("third", false)
	marker, position, err := s.Position(ctx)
	if err != nil || !strings.HasPrefix(marker, "second") || marker != read().Marker || position < free.Version {
		t.Errorf("the position is %q, %d: %v; the marker is %q, and the record had version %d", marker, position, err, read().Marker, free.Version)
	}
	if next := write(read(), `"next"`, begin()); next <= position {
		t.Errorf("version %d was written after the position %d", next, position)
	}
}
