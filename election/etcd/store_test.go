package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/etcdtest"
)

// TestSwapWritesOnlyWhatItMay is about what package kv rests on, and what no test through it can
// bring about in time: a request that is older than what stands there.
func TestSwapWritesOnlyWhatItMay(t *testing.T) {
	t.Parallel()
	s, err := open(Config{Endpoints: etcdtest.Shared(t).Endpoints(), Prefix: "swap-" + rand.Text()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const key = "db/billing"
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
		life, err := s.Begin(ctx, time.Minute)
		if err != nil || life.TTL != time.Minute {
			t.Fatalf("a life of %v: %v", life.TTL, err)
		}
		return life.ID
	}
	refused := func(what string, want error, old kv.Entry, life string) {
		t.Helper()
		before := read()
		if version, err := s.Swap(ctx, key, old, []byte("late"), life); !errors.Is(err, want) {
			t.Errorf("%s: version %d, %v; want %v", what, version, err, want)
		}
		if after := read(); after.Version != before.Version || string(after.Record) != string(before.Record) || after.Life != before.Life {
			t.Errorf("%s: it wrote %+v over %+v", what, after, before)
		}
	}

	refused("without a marker", kv.ErrConflict, read(), begin())
	if err := s.Mark(ctx, "first", false); err != nil {
		t.Fatal(err)
	}
	empty, over := read(), begin()
	if empty.Marker != "first" {
		t.Fatalf("the marker is %q", empty.Marker)
	}
	if err := s.End(ctx, over); err != nil {
		t.Fatal(err)
	}
	refused("with a life that is over", election.ErrLost, empty, over)
	if err := s.End(ctx, over); err != nil {
		t.Errorf("the second end of a life: %v", err)
	}
	if err := s.Beat(ctx, key, over); !errors.Is(err, election.ErrLost) {
		t.Errorf("the beat of a life that is over: %v", err)
	}

	life := begin()
	version, err := s.Swap(ctx, key, empty, []byte("award"), life)
	if err != nil {
		t.Fatal(err)
	}
	held := read()
	if held.Life != life || held.Version != version || string(held.Record) != "award" {
		t.Errorf("version %d by %s is read as %+v", version, life, held)
	}
	if err := s.Beat(ctx, key, life); err != nil {
		t.Errorf("the beat of the holder: %v", err)
	}
	if err := s.Beat(ctx, key, begin()); !errors.Is(err, election.ErrLost) {
		t.Errorf("the beat of a life that holds nothing: %v", err)
	}
	refused("after somebody else's award", kv.ErrConflict, empty, begin())
	refused("a release of another award", kv.ErrConflict, empty, "")
	if _, err := s.Swap(ctx, key, held, []byte("left"), ""); err != nil {
		t.Fatal(err)
	}
	free := read()
	if free.Life != "" || free.Version <= version {
		t.Errorf("after its release the lease is %+v", free)
	}
	if err := s.Mark(ctx, "second", true); err != nil {
		t.Fatal(err)
	}
	refused("under a marker that was replaced", kv.ErrConflict, free, begin())
	if err := s.Mark(ctx, "third", false); err != nil {
		t.Fatal(err)
	}
	if marker := read().Marker; marker != "second" {
		t.Errorf("the marker is %q", marker)
	}
}

// A member that has no leader has done nothing. Each other member is asked then, once.
func TestARequestGoesToAMemberWithALeader(t *testing.T) {
	t.Parallel()
	s, err := open(Config{Endpoints: []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		leaderless, asked int
		answer            error
	}{{0, 1, nil}, {2, 3, nil}, {3, 3, rpctypes.ErrNoLeader}} {
		asked := 0
		err := s.do(t.Context(), "read", func() error {
			if asked++; asked <= c.leaderless {
				return rpctypes.ErrGRPCNoLeader
			}
			return nil
		})
		if asked != c.asked || !errors.Is(err, c.answer) {
			t.Errorf("with %d members without a leader, %d are asked, and the answer is %v; want %d, %v", c.leaderless, asked, err, c.asked, c.answer)
		}
	}
}

// TestADeadlineThatGRPCNoticesFirst: a request that has ended at its deadline was not answered, although its context goes on.
func TestADeadlineThatGRPCNoticesFirst(t *testing.T) {
	t.Parallel()
	s := &etcdStore{name: "etcd at test"}
	err := s.failed(t.Context(), "renew", status.Error(codes.DeadlineExceeded, "context deadline exceeded"))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "etcd at test has not answered") {
		t.Errorf("the error is %v", err)
	}
}
