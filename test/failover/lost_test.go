package failover

import (
	"context"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestALostEpochIsNoticed: the standby has not received the newest grant when it is promoted.
// The proxy that has seen the grant refuses to grant it a second time, until an operator has
// raised the epochs.
func TestALostEpochIsNoticed(t *testing.T) {
	t.Parallel()
	h := newPair(t)
	p := h.proxy()
	first := h.join(p, "first")
	h.must(first, "INSERT INTO work VALUES ('first')")
	if err := first.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	process.Eventually(t, process.Patience, "the standby to catch up", func() bool { return h.works() == "first" })
	h.b.Exec(t, pgtest.Superuser, "postgres", "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
	process.Eventually(t, process.Patience, "the replication to end", func() bool {
		return ask[int](h, h.a, "SELECT count(*) FROM pg_stat_replication") == 0
	})
	lost := h.join(p, "lost")
	h.must(lost, "INSERT INTO work VALUES ('lost')")
	p.Await(t, "several upstream hosts, and synchronous_standby_names is empty: a failover can lose commits of workers and the newest grants. "+
		"Set synchronous_standby_names, or run fencepost generation bump --restored after each failover")

	h.fail(h.a.Crash)
	if got := ask[int](h, h.b, "SELECT max(epoch) FROM fencepost.grants"); got != 1 {
		t.Fatalf("the promoted standby has epoch %d, so the test proves nothing", got)
	}
	for _, worker := range []string{"lost", "next"} {
		process.Eventually(t, process.Patience, "an error that says what to run", func() bool {
			conn, err := h.tryJoin(p, worker)
			if err == nil {
				t.Fatalf("%s leads: %v", worker, exec(conn, "INSERT INTO work VALUES ('wrong')"))
			}
			e := errorOf(err)
			return e.Code == fencing.StateNoFence && strings.Contains(e.Message, "restored") && strings.Contains(e.Hint, "fencepost generation bump")
		})
	}
	if code, out := h.command("generation", "bump", "--database", h.db, "--above", "2", "--at", h.b.Addr()); code != 0 || !strings.Contains(out, "epoch 3") {
		t.Fatalf("generation bump: code %d: %s", code, out)
	}
	h.must(h.join(p, "next"), "INSERT INTO work VALUES ('next')")
	if got := h.works(); got != "first next" {
		t.Errorf("the table contains %q", got)
	}
}
