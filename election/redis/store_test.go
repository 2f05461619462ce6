package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/files"
	"github.com/fencepost/fencepost/internal/redistest"
)

func opened(t *testing.T, cfg Config) *store {
	t.Helper()
	s, err := open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	electiontest.RunStore(t, opened(t, Config{Address: redistest.Shared(t).Addr(), Prefix: "swap-" + rand.Text()}))
}

// A request that is sent twice awards the lease once, and nothing after its release.
func TestTheSameRequestAgain(t *testing.T) {
	t.Parallel()
	s := opened(t, Config{Address: redistest.Shared(t).Addr(), Prefix: "again-" + rand.Text()})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const key = "db/billing"
	marked := s.Mark(ctx, "first", false)
	empty, read := s.Read(ctx, key)
	life, begun := s.Begin(ctx, time.Minute)
	if err := errors.Join(marked, read, begun); err != nil {
		t.Fatal(err)
	}
	if marker, replid, _ := strings.Cut(empty.Marker, "."); marker != "first" || len(replid) != 32 {
		t.Errorf("the marker is %q", empty.Marker)
	}
	request := func() (int64, error) { return s.Swap(ctx, key, empty, []byte("award"), life.ID) }
	version, err := request()
	if again, repeated := request(); errors.Join(err, repeated) != nil || again != version {
		t.Errorf("it is awarded version %d, %v, and then %d, %v", version, err, again, repeated)
	}
	held, err := s.Read(ctx, key)
	if err != nil || held.Life != life.ID {
		t.Fatalf("it is read as %+v, %v", held, err)
	}
	if _, err := s.Swap(ctx, key, held, []byte("left"), ""); err != nil {
		t.Fatal(err)
	}
	if version, err := request(); !errors.Is(err, kv.ErrConflict) {
		t.Errorf("after its release it is awarded version %d, %v", version, err)
	}
}

// A life that does not end by itself, or is not Fencepost's, holds nothing: otherwise the lease of a
// holder that died would be held for ever.
func TestALifeThatHoldsNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for name, c := range map[string][]any{ // a command, without the key
		"without an end":           {"PERSIST"},
		"overwritten":              {"SET", "mine"},
		"overwritten, with an end": {"SET", "mine", "PX", "100000"},
		"expired":                  {"PEXPIRE", "0"},
		"deleted":                  {"DEL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := opened(t, Config{Address: server.Addr(), Prefix: "life-" + rand.Text()})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			const key = "db/billing"
			award := func(old kv.Entry) string {
				t.Helper()
				life, err := s.Begin(ctx, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Swap(ctx, key, old, []byte("award"), life.ID); err != nil {
					t.Fatal(err)
				}
				return life.ID
			}
			if err := s.Mark(ctx, "first", false); err != nil {
				t.Fatal(err)
			}
			empty, err := s.Read(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			life := award(empty)
			server.Do(t, append([]any{c[0], s.keys[2] + life}, c[1:]...)...)
			old, err := s.Read(ctx, key)
			if err != nil || old.Life != "" || string(old.Record) != "award" {
				t.Errorf("the lease is read as %+v, %v", old, err)
			}
			if err := s.Beat(ctx, key, life); !errors.Is(err, elector.ErrLost) {
				t.Errorf("its beat ends with %v", err)
			}
			if version, err := s.Swap(ctx, key, empty, []byte("award"), life); !errors.Is(err, kv.ErrConflict) {
				t.Errorf("the request that was awarded it, sent again, ends with %d, %v", version, err)
			}
			if next := award(old); next == life {
				t.Errorf("the lease is still of %s", next)
			}
		})
	}
}

// A marker that was damaged is none, or is refused until a bump; and the counter never begins
// again next to a marker that it has counted for.
func TestDamagedMarkers(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for name, c := range map[string]struct {
		damage []any // a command, without the key
		want   string
	}{
		"deleted":           {[]any{"DEL"}, ""},
		"without its text":  {[]any{"HDEL", "marker"}, ""},
		"empty":             {[]any{"HSET", "marker", ""}, ""},
		"without a counter": {[]any{"HDEL", "count"}, ""},
		"a counter of text": {[]any{"HSET", "count", "x"}, ""},
		"a counter below 0": {[]any{"HSET", "count", "-5"}, ""},
		"another notation":  {[]any{"HSET", "count", "1e3"}, ""},
		"a counter too big": {[]any{"HSET", "count", "9223372036854775807"}, ""},
		"a string":          {[]any{"SET", "mine"}, "a string"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := opened(t, Config{Address: server.Addr(), Prefix: "mark-" + rand.Text()})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := s.Mark(ctx, "first", false); err != nil {
				t.Fatal(err)
			}
			server.Do(t, append([]any{c.damage[0], s.keys[0]}, c.damage[1:]...)...)
			marker, version, err := s.Position(ctx)
			if err != nil || marker != c.want || version != 0 {
				t.Errorf("it is read as %q, %d, %v", marker, version, err)
			}
			if err := s.Mark(ctx, "second", c.want != ""); err != nil {
				t.Fatal(err)
			}
			if marker, _, err := s.Position(ctx); err != nil || !strings.HasPrefix(marker, "second.") {
				t.Errorf("after a new one it is %q, %v", marker, err)
			}
		})
	}
}

// Renewals have connections of their own, so nothing else that is asked holds one up.
func TestNothingHoldsUpARenewal(t *testing.T) {
	t.Parallel()
	s := opened(t, Config{Address: redistest.Shared(t).Addr(), Prefix: "slots-" + rand.Text()})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range others { // as many requests are under way
		s.slots <- struct{}{}
	}
	if err := s.Beat(ctx, "db/none", "none"); !errors.Is(err, elector.ErrLost) {
		t.Errorf("the renewal of a lease that is not there ended with %v", err)
	}
	short, end := context.WithTimeout(ctx, 50*time.Millisecond)
	defer end()
	if _, err := s.Read(short, "db/none"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a read beside them ended with %v", err)
	}
	for range others {
		<-s.slots
	}
	if _, err := s.Read(ctx, "db/none"); err != nil {
		t.Errorf("a read afterwards: %v", err)
	}
}

// What docs/redis.md says is enough, and nothing of it can be left out.
func TestRights(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/redis.md")
	if err != nil || !strings.Contains(string(page), "~fencepost/* "+rights) {
		t.Errorf("docs/redis.md does not have the rights %q: %v", rights, err)
	}
	server := redistest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	user := func(name, rights string) *store {
		server.Do(t, words("ACL SETUSER "+name+" reset on >secret ~fencepost/* "+rights)...)
		return opened(t, Config{Address: server.Addr(), Login: files.Login{User: name, Password: "secret"}})
	}
	full := user("full", rights)
	use := func(s *store, key string) error {
		life, begun := s.Begin(ctx, time.Minute)
		old, read := s.Read(ctx, key)
		_, swapped := s.Swap(ctx, key, old, []byte("award"), life.ID)
		_, _, position := s.Position(ctx)
		seen, stop := context.WithCancel(ctx)
		watched := s.Watch(seen, func(kv.Snapshot) { stop() })
		if errors.Is(watched, context.Canceled) {
			watched = nil
		}
		return errors.Join(s.Check(ctx), s.Mark(ctx, "first", false), begun, read, swapped, s.Beat(ctx, key, life.ID), position, watched, s.End(ctx, life.ID))
	}
	if err := full.Mark(ctx, "first", false); err != nil {
		t.Fatal(err)
	}
	if err := use(full, "db/full"); err != nil {
		t.Errorf("with all rights: %v", err)
	}
	for _, right := range strings.Fields(rights) {
		s := user("without"+right, strings.Replace(rights+" ", right+" ", "", 1))
		var denied *elector.DeniedError
		if err := s.Check(ctx); !errors.As(err, &denied) || errors.Is(err, elector.ErrLost) || !strings.Contains(denied.Remedy, right) {
			t.Errorf("without %s the check ends with %v", right, err)
		}
		if err := s.Beat(ctx, "db/full", "x"); needed(right) && errors.Is(err, elector.ErrLost) {
			t.Errorf("without %s a renewal ends with %v", right, err)
		}
	}
	elsewhere := opened(t, Config{Address: server.Addr(), Login: files.Login{User: "full", Password: "secret"}, Prefix: "other"})
	var denied *elector.DeniedError
	if err := elsewhere.Check(ctx); !errors.As(err, &denied) || !strings.Contains(denied.Remedy, "~other/*") {
		t.Errorf("under another prefix the check ends with %v", err)
	}
}

// needed reports whether every script needs a right.
func needed(right string) bool { return right == "+eval" || right == "+info" || right == "+type" }

func words(command string) (all []any) {
	for _, word := range strings.Fields(command) {
		all = append(all, word)
	}
	return all
}

func TestRisks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		replication, persistence map[string]string
		want                     []elector.RiskKind
	}{
		"an append-only file":    {nil, map[string]string{"aof_enabled": "1"}, nil},
		"none":                   {map[string]string{"connected_slaves": "0"}, map[string]string{"aof_enabled": "0"}, []elector.RiskKind{elector.RiskNotSaved}},
		"replicas":               {map[string]string{"connected_slaves": "2"}, nil, []elector.RiskKind{elector.RiskNotReplicated}},
		"replicas that it needs": {map[string]string{"connected_slaves": "2", "min_slaves_good_slaves": "2"}, nil, nil},
	} {
		var got []elector.RiskKind
		for _, r := range risks(c.replication, c.persistence) {
			got = append(got, r.Kind)
			if r.Seen == "" || r.Remedy == "" {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if len(got) != len(c.want) || len(got) > 0 && got[0] != c.want[0] {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
