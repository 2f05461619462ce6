package etcdtest_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/internal/etcdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, c *etcdtest.Cluster, key string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	found, err := c.Client(t, "", "").Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range found.Kvs {
		return string(one.Value)
	}
	return ""
}

func put(t *testing.T, c *etcdtest.Cluster, key, value string) (revision int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done, err := c.Client(t, "", "").Put(ctx, key, value)
	if err != nil {
		t.Fatal(err)
	}
	return done.Header.Revision
}

func TestRestoreBringsBackWhatWasThere(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t)
	put(t, c, "x", "before")
	backup := c.Backup(t)
	after := put(t, c, "x", "after")
	c.Kill(0)
	c.Restart(t)
	if got := get(t, c, "x"); got != "after" {
		t.Errorf("after a restart x is %q", got)
	}
	c.Restore(t, backup)
	if got := get(t, c, "x"); got != "before" {
		t.Errorf("x is %q", got)
	}
	if again := put(t, c, "y", ""); again > after {
		t.Errorf("revision %d came after the restore, and %d before it", again, after)
	}
	c.Restore(t, "")
	if got := get(t, c, "x"); got != "" {
		t.Errorf("without data x is %q", got)
	}
}

func TestAClusterOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, etcdtest.WithMembers(3))
	put(t, c, "x", "before")
	old := c.Leader(t)
	c.Kill(old)
	if got := get(t, c, "x"); got != "before" {
		t.Errorf("x is %q", got)
	}
	if next := c.Leader(t); next == old {
		t.Error("the dead member leads")
	}
}

func TestStoppedClusterLeavesNothing(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t)
	dir := c.Dir()
	c.Stop()
	c.Stop() // twice is harmless
	if _, err := os.Stat(dir); err == nil || !strings.HasPrefix(dir, os.TempDir()) {
		t.Errorf("it left %s", dir)
	}
}
