package system

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

// TestAnUpgradePassesALeaderOn: a worker whose connections write without a pause notices nothing of two upgrades, one
// after the other. Its epoch and its award stay, and a worker that waits at another proxy is granted nothing.
func TestAnUpgradePassesALeaderOn(t *testing.T) {
	t.Parallel()
	for _, provider := range append(slices.Clone(providers), "etcd", "redis") { // whose leases another process can renew
		t.Run(provider, func(t *testing.T) { t.Parallel(); testAnUpgradePassesALeaderOn(t, provider) })
	}
}

func testAnUpgradePassesALeaderOn(t *testing.T, provider string) {
	h := newCluster(t, provider, with("DRAIN_TIMEOUT=10m", "LEASE_TTL=20s"))
	p, elsewhere := h.proxy(), h.proxy()
	idle := h.join(p, "leader", "campaign", "wait")
	standby := h.join(elsewhere, "standby")
	idle.must("CREATE TEMP TABLE kept AS SELECT 7 AS n", "PREPARE one AS SELECT n FROM kept", "LISTEN news")
	award := func() string {
		return ask[string](h, "SELECT f.epoch || ' ' || f.source_index || ' ' || f.incarnation FROM fencepost.fence f WHERE f.resource = $1", resource)
	}
	before := award()
	w := h.workMany(19, h.dsn(p, "leader"), pgx.QueryExecModeCacheStatement)
	open := h.join(p, "leader")
	for n := 1; n <= 2; n++ {
		open.must("BEGIN", "INSERT INTO work VALUES ('in a transaction')")
		w.more(t)
		p.Upgrade(t)
		w.more(t)
		open.must("INSERT INTO work VALUES ('in a transaction')", "COMMIT")
		process.Eventually(t, process.Patience, oldHasEnded, func() bool { return len(p.Lines(oldHasEnded)) == n })
		w.more(t)
		idle.must("EXECUTE one", "NOTIFY news")
		ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
		if _, err := idle.WaitForNotification(ctx); err != nil {
			t.Errorf("the listener: %v", err)
		}
		cancel()
		if now := award(); now != before {
			t.Errorf("after upgrade %d the award is %s, and was %s", n, now, before)
		}
		for name, want := range map[string]string{"role": "leader", "epoch": "1", "worker": "leader"} {
			if got := idle.show(name); got != want {
				t.Errorf("after upgrade %d, %s is %s", n, name, got)
			}
		}
		late := h.join(p, "leader")
		late.must("INSERT INTO work VALUES ('late')")
		late.leave()
	}
	w.stop()
	if passed := p.Lines(passedOn); len(passed) != 2 || passed[0].Number("sessions") != 21 || passed[1].Number("sessions") != 21 {
		t.Errorf("the log says %v", passed)
	}
	if standby.show("role") != "follower" || h.granted() != "leader" {
		t.Errorf("the standby is a %s, and the grants: %s", standby.show("role"), h.granted())
	}
	if n := ask[int64](h, "SELECT count(DISTINCT what) FROM work WHERE what ~ '[0-9]$'"); n != w.rows.Load() {
		t.Errorf("%d rows of the workers, want %d", n, w.rows.Load())
	}
	idle.leave()
	open.leave()
	mustLead(t, standby, "the standby")
	if h.granted() != "leader standby" {
		t.Errorf("the grants: %s", h.granted())
	}
}

// TestALeaderThatWasPassedOnIsSuperseded as any other: its worker falls silent, and the new process ends its sessions for
// the grant, which would wait longer than the test; or its proxy is frozen until its lease has expired. The write that
// it sends then is refused.
func TestALeaderThatWasPassedOnIsSuperseded(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		for _, frozen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/frozen_%t", provider, frozen), func(t *testing.T) {
				t.Parallel()
				options, timeout := []option{patient, with(long, "LEASE_GRACE=10m", "DRAIN_TIMEOUT=10m")}, "5s"
				if frozen {
					options, timeout = []option{with("LEASE_TTL=9s", "DRAIN_TIMEOUT=10m")}, "0"
				}
				h := newCluster(t, provider, options...)
				p, elsewhere := h.proxy(), h.proxy()
				leader := h.join(p, "leader", "campaign", "wait", "worker_timeout", timeout)
				standby := h.join(elsewhere, "standby")
				pid := p.Upgrade(t)
				p.Await(t, oldHasEnded)
				leader.must("INSERT INTO work VALUES ('before')")
				if h.granted() != "leader" {
					t.Errorf("the grants: %s", h.granted())
				}
				thaw := func() {}
				if frozen {
					thaw = freeze(t, pid)
					defer thaw()
				}
				mustLead(t, standby, "the standby")
				standby.must("INSERT INTO work VALUES ('standby')")
				thaw()
				if err := leader.exec("INSERT INTO work VALUES ('stale')"); stateOf(err) != fencing.StateSuperseded {
					t.Errorf("the stale write ends with %v", err)
				}
				if got := strings.Join(h.works(), " "); got != "before standby" || h.granted() != "leader standby" {
					t.Errorf("the table has %s, and the grants: %s", got, h.granted())
				}
			})
		}
	}
}

// TestALeaderThatWasPassedOnKeepsItsLease from the same worker at another proxy, as long as the new process is there: its
// incarnation names the old one, which is gone.
func TestALeaderThatWasPassedOnKeepsItsLease(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider, with(long))
			p, elsewhere := h.proxy(), h.proxy()
			leader := h.join(p, "leader", "campaign", "wait")
			pid := p.Upgrade(t)
			p.Await(t, oldHasEnded)
			rival := h.join(elsewhere, "leader")
			elsewhere.Await(t, "another live proxy holds the lease under the same worker id: the worker has just left it, or two processes have one id", "worker", "leader")
			leader.must("INSERT INTO work VALUES ('kept')")
			if rival.show("role") != "follower" || h.granted() != "leader" {
				t.Errorf("the rival is a %s, and the grants: %s", rival.show("role"), h.granted())
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			mustLead(t, rival, "the same worker")
			elsewhere.Await(t, "took over the lease of a proxy that is gone", "worker", "leader")
		})
	}
}

// TestTheNewProcessDoesNotTakeALeader: it is frozen before the old one can pass the leader on, which then ends as in a
// restart. Its lease is released, and another worker leads.
func TestTheNewProcessDoesNotTakeALeader(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "consul", with(long, "DRAIN_TIMEOUT=10m"))
	p, elsewhere := h.proxy(), h.proxy()
	idle, open := h.join(p, "leader", "campaign", "wait"), h.join(p, "leader")
	standby := h.join(elsewhere, "standby")
	open.must("BEGIN", "INSERT INTO work VALUES ('in a transaction')")
	pid := p.Upgrade(t)
	p.Await(t, "draining")
	defer freeze(t, pid)()
	idle.must("INSERT INTO work VALUES ('still here')")
	open.must("COMMIT")
	for _, c := range []*client{idle, open} {
		process.Eventually(t, process.Patience, "the sessions to end", func() bool { return stateOf(c.exec("SELECT 1")) == "57P01" || c.IsClosed() })
	}
	mustLead(t, standby, "the standby")
	if code := awaitEnd(t, p); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := strings.Join(h.works(), "; "); got != "in a transaction; still here" && got != "still here; in a transaction" || h.granted() != "leader standby" {
		t.Errorf("the table has %s, and the grants: %s", got, h.granted())
	}
}

// TestTheNewProcessDiesWithALeader: its connections end with it, and its lease when it expires.
func TestTheNewProcessDiesWithALeader(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "consul", with("LEASE_TTL=9s", "DRAIN_TIMEOUT=10m"))
	p, elsewhere := h.proxy(), h.proxy()
	leader := h.join(p, "leader", "campaign", "wait")
	other := h.mustPlain(p) // which keeps the old process
	other.must("BEGIN")
	standby := h.join(elsewhere, "standby")
	pid := p.Upgrade(t)
	p.Await(t, "leads in place of the process before this one")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := leader.exec("INSERT INTO work VALUES ('stale')"); err == nil || stateOf(err) != "" {
		t.Errorf("the connection ends with %v", err)
	}
	mustLead(t, standby, "the standby")
	if h.granted() != "leader standby" {
		t.Errorf("the grants: %s", h.granted())
	}
}
