package zookeeper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/standstill"
	"github.com/fencepost/fencepost/internal/zookeepertest"
)

func newService(t *testing.T, servers []string) *service {
	t.Helper()
	s, err := open(Config{Servers: servers, Prefix: "service-" + rand.Text(), Proxy: "one"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	electiontest.RunStore(t, standstill.New(newService(t, zookeepertest.Shared(t).Addrs()), "one", 0))
}

// seen watches until a first change is reported, calls do, and returns the connection.
func seen(t *testing.T, s *service, then func(stop context.CancelFunc, c standstill.Change)) (*connection, error) {
	t.Helper()
	c, err := s.connection(true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	return c, s.Watch(ctx, func(c standstill.Change) { then(stop, c) })
}

// What an earlier watch has left is used, and shows what changes.
func TestAWatchShowsEachChange(t *testing.T) {
	t.Parallel()
	s := newService(t, zookeepertest.Shared(t).Addrs())
	if err := s.Mark(t.Context(), "first", false); err != nil {
		t.Fatal(err)
	}
	var old *standstill.Stored
	var last *connection
	for i := range 5 {
		text, written := fmt.Sprint(i), false
		c, err := seen(t, s, func(stop context.CancelFunc, c standstill.Change) {
			if !written {
				var err error
				if old, err = s.Put(t.Context(), old, standstill.Record{Key: "db/billing", Text: []byte(text)}); err != nil {
					t.Error(err)
				}
				written = true
			} else if len(c.Records) == 1 && string(c.Records[0].Text) == text {
				stop()
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("the watch for %s ended with %v", text, err)
		}
		last = c
	}
	last.mu.Lock()
	defer last.mu.Unlock()
	if n := len(last.mu.watched); n > 6 {
		t.Errorf("%d paths are watched", n)
	}
}

// When the connection for watching is lost, another one watches: the library does not set the watches of the
// old one again.
func TestAWatchIsNotSetAgain(t *testing.T) {
	t.Parallel()
	link := electiontest.NewLink(t, zookeepertest.Shared(t).Addr())
	s := newService(t, []string{link.Addr()})
	if err := s.Mark(t.Context(), "first", false); err != nil {
		t.Fatal(err)
	}
	cut := false
	old, err := seen(t, s, func(context.CancelFunc, standstill.Change) {
		if !cut {
			cut = true
			link.Cut()
			link.Mend()
		}
	})
	if err == nil || !old.isOver() {
		t.Fatalf("the connection is used again: %v", err)
	}
	if next, err := seen(t, s, func(stop context.CancelFunc, _ standstill.Change) { stop() }); next == old || !errors.Is(err, context.Canceled) {
		t.Errorf("the next watch ended with %v", err)
	}
}
