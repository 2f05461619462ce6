package redistest_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAServerKeepsItsDataUnlessItIsToldNotTo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts []redistest.Option
		want any
	}{"by default": {nil, "kept"}, "without persistence": {[]redistest.Option{redistest.WithoutPersistence()}, nil}} {
		s := redistest.Start(t, c.opts...)
		s.Do(t, "SET", "x", "kept")
		s.Kill()
		s.Restart(t)
		if got := s.Do(t, "GET", "x"); got != c.want {
			t.Errorf("%s: after a restart x is %v", name, got)
		}
	}
}

func TestABackupIsRestored(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Do(t, "SET", "x", "before")
	backup := s.Backup(t)
	s.Do(t, "SET", "x", "after")
	s.Restore(t, backup)
	if got := s.Do(t, "GET", "x"); got != "before" {
		t.Errorf("x is %v", got)
	}
}

func TestAReplicaIsPromoted(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.Start(t, redistest.WithReplicaOf(master))
	master.Do(t, "SET", "x", "kept")
	master.AwaitReplicas(t, 1)
	if _, err := replica.Try("SET", "x", "lost"); err == nil || !strings.HasPrefix(err.Error(), "READONLY ") {
		t.Errorf("a replica takes a write: %v", err)
	}
	replica.Promote(t)
	replica.Do(t, "SET", "y", "new")
}

func TestTheClockCanBeSet(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.WithClock())
	s.Do(t, "SET", "x", "here", "EX", "100")
	s.SetClock(t, -time.Hour)
	if left, _ := s.Do(t, "TTL", "x").(int64); left < 3600 {
		t.Errorf("x lasts %d s", left)
	}
	s.SetClock(t, time.Hour)
	if got := s.Do(t, "GET", "x"); got != nil {
		t.Errorf("x is %v", got)
	}
}

func TestStoppedServerLeavesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	dir := s.Dir()
	s.Stop()
	s.Stop() // twice is harmless
	if _, err := os.Stat(dir); err == nil || !strings.HasPrefix(dir, os.TempDir()) {
		t.Errorf("it left %s", dir)
	}
}
