package zookeeper

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/zookeepertest"
)

// fixture is a store, with the requests that a test makes of it.
type fixture struct {
	*store
	t   *testing.T
	ctx context.Context
}

const key = "db/billing"

func newFixture(t *testing.T, servers []string) *fixture {
	t.Helper()
	s, err := open(Config{Servers: servers, Prefix: "store-" + rand.Text(), TTL: time.Minute, Proxy: "one"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return &fixture{s, t, ctx}
}

func (f *fixture) read() kv.Entry {
	f.t.Helper()
	e, err := f.Read(f.ctx, key)
	if err != nil {
		f.t.Fatal(err)
	}
	return e
}

func (f *fixture) begin() string {
	f.t.Helper()
	life, err := f.Begin(f.ctx, time.Minute)
	if err != nil || life.TTL != time.Minute {
		f.t.Fatalf("a life of %v: %v", life.TTL, err)
	}
	return life.ID
}

func text(s string) []byte {
	record, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return record
}

func (f *fixture) award(record string) string {
	f.t.Helper()
	life := f.begin()
	if _, err := f.Swap(f.ctx, key, f.read(), text(record), life); err != nil {
		f.t.Fatal(err)
	}
	return life
}

func (f *fixture) refused(what string, want error, old kv.Entry, life string) {
	f.t.Helper()
	before := f.read()
	if version, err := f.Swap(f.ctx, key, old, text("late"), life); !errors.Is(err, want) {
		f.t.Errorf("%s: version %d, %v; want %v", what, version, err, want)
	}
	if after := f.read(); after.Version != before.Version || string(after.Record) != string(before.Record) || after.Life != before.Life {
		f.t.Errorf("%s: it wrote %+v over %+v", what, after, before)
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	electiontest.RunStore(t, newFixture(t, zookeepertest.Shared(t).Addrs()).store)
}

// A marker that was deleted and made again has the version that it had before. Its name is another
// one.
func TestAMarkerThatWasMadeAgainIsAnotherOne(t *testing.T) {
	t.Parallel()
	s := newFixture(t, zookeepertest.Shared(t).Addrs())
	if err := s.Mark(s.ctx, "first", false); err != nil {
		t.Fatal(err)
	}
	old := s.read()
	operator := zookeepertest.Shared(t).Client(t, "", "")
	for _, path := range []string{s.marker("first"), s.generation()} {
		if err := operator.Delete(path, anyVersion); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Mark(s.ctx, "second", false); err != nil {
		t.Fatal(err)
	}
	s.refused("under a marker that was deleted", kv.ErrConflict, old, s.begin())
}

// The library keeps a session alive by itself, and with it all its lives.
func TestALifeThatNobodyRenewsEnds(t *testing.T) {
	t.Parallel()
	s := newFixture(t, zookeepertest.Shared(t).Addrs())
	if err := s.Mark(s.ctx, "first", false); err != nil {
		t.Fatal(err)
	}
	const ttl = 4 * time.Second
	free := s.read()
	began := time.Now()
	short, err := s.Begin(s.ctx, ttl)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Swap(s.ctx, key, free, text("award"), short.ID); err != nil {
		t.Fatal(err)
	}
	in := s.begin() // of another session
	for s.read().Life != "" {
		time.Sleep(20 * time.Millisecond)
		if time.Since(began) > 20*ttl {
			t.Fatal("nobody renews the life, and it goes on")
		}
	}
	if took := time.Since(began); took < ttl*8/10 {
		t.Errorf("it ended after %v", took)
	}
	if l, ok := s.known(in); !ok || l.in.isOver() {
		t.Error("the other session is over")
	}
}

// A restore brings back lives of a session that goes on. Nobody would end them.
func TestLivesThatNobodyKnowsAreDeleted(t *testing.T) {
	t.Parallel()
	s := newFixture(t, zookeepertest.Shared(t).Addrs())
	if err := s.Mark(s.ctx, "first", false); err != nil {
		t.Fatal(err)
	}
	life := s.award("award")
	s.drop(life) // as if it had ended
	watching, stop := context.WithCancel(s.ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- s.Watch(watching, func(all kv.Snapshot) {
			if all.Entries[key].Life == "" {
				stop()
			}
		})
	}()
	if err := <-ended; !errors.Is(err, context.Canceled) || s.ctx.Err() != nil {
		t.Fatalf("the watch ended with %v", err)
	}
	if e := s.read(); e.Life != "" {
		t.Errorf("the lease is still held: %+v", e)
	}
}

// What an earlier watch has left is used, and shows what changes.
func TestAWatchShowsEachChange(t *testing.T) {
	t.Parallel()
	s := newFixture(t, zookeepertest.Shared(t).Addrs())
	if err := s.Mark(s.ctx, "first", false); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		watching, stop := context.WithTimeout(s.ctx, 20*time.Second)
		record := fmt.Sprint("award ", i)
		var life string
		err := s.Watch(watching, func(all kv.Snapshot) {
			e := all.Entries[key]
			switch {
			case life == "":
				life = s.award(record)
			case e.Life == life && string(e.Record) == string(text(record)):
				if err := s.End(s.ctx, life); err != nil {
					t.Error(err)
				}
			case e.Life == "" && string(e.Record) == string(text(record)):
				stop()
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("the watch for %q ended with %v", record, err)
		}
	}
	in, err := s.watcher()
	if err != nil {
		t.Fatal(err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if n := len(in.mu.watched); n > 6 {
		t.Errorf("%d paths are watched", n)
	}
}

// When the connection for watches is lost, a new session watches: the library does not set the
// watches of the old one again.
func TestAWatchIsNotSetAgain(t *testing.T) {
	t.Parallel()
	link := electiontest.NewLink(t, zookeepertest.Shared(t).Addr())
	s := newFixture(t, []string{link.Addr()})
	if err := s.Mark(s.ctx, "first", false); err != nil {
		t.Fatal(err)
	}
	watch := func(then func()) *session {
		in, err := s.watcher()
		if err != nil {
			t.Fatal(err)
		}
		seen := false
		err = s.Watch(s.ctx, func(kv.Snapshot) {
			if !seen {
				seen = true
				then()
			}
		})
		if !seen {
			t.Fatalf("nothing was seen: %v", err)
		}
		return in
	}
	old := watch(func() { link.Cut(); link.Mend() })
	select {
	case <-old.over:
	case <-s.ctx.Done():
		t.Fatal("the session is used for another connection")
	}
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	s.ctx = ctx
	if watch(stop) == old {
		t.Error("the old session watches again")
	}
	if main, err := s.main(); err != nil || main.isOver() {
		t.Errorf("the other session is over, too: %v", err)
	}
}
