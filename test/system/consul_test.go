package system

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

// TestTheRecordIsFollowedWithoutConsul: what an operator orders while Consul is away is shown by every proxy,
// also by those that do not lead.
func TestTheRecordIsFollowedWithoutConsul(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	h := newCluster(t, "consul", withConsul(agent))
	one, two, unused := h.proxy(), h.proxy(), h.proxy()
	h.join(unused, "c", "campaign", "off").leave()
	h.join(one, "a", "campaign", "wait").must("INSERT INTO work VALUES ('a')")
	h.join(two, "b")
	for _, p := range []*process.Server{one, two, unused} {
		h.awaitState("led", "a", p)
	}
	agent.Stop()
	for _, p := range []*process.Server{two, unused} {
		h.awaitState("unknown", "", p)
	}
	h.order("", "evict", resource)
	for i, p := range []*process.Server{one, two, unused} {
		process.Eventually(t, process.Patience, fmt.Sprintf("proxy %d to show the new epoch", i), func() bool {
			epoch, _ := h.metric(p, "fencepost_epoch")
			s := h.shown(p)
			return s.Epoch == 2 && epoch == 2 && s.GrantedTo == ""
		})
	}
}

// TestConsulIsAway: the worker stops at the deadline but not before, and goes on under its epoch when Consul answers
// again. Workers and operators are told whose silence it is, and the proxies stay ready. Workers that go meanwhile are
// noticed.
func TestConsulIsAway(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second
	agent := consultest.Start(t)
	h := newCluster(t, "consul", withConsul(agent), with("LEASE_TTL="+ttl.String(), "STARTUP_WAIT=1s"))
	p, q := h.proxy(), h.proxy()
	a := h.join(p, "a", "campaign", "wait")
	b, observer := h.join(p, "b"), h.join(q, "observer", "campaign", "off")
	h.awaitState("led", "a", p, q)
	h.awaitInDatabase("led", "a")

	a.must("INSERT INTO work VALUES ('before')")
	agent.Pause(t)
	t.Cleanup(func() { agent.Continue(t) })
	since := time.Now()
	var last time.Time // of the last success
	var err error
	process.Eventually(t, process.Patience, "the worker to be stopped", func() bool {
		sent := time.Now()
		if err = a.exec("INSERT INTO work VALUES ('in time')"); err == nil {
			last = sent
		}
		return err != nil
	})
	if last.Before(since) || last.Sub(since) > ttl {
		t.Errorf("the last write succeeded %s after Consul was gone; the TTL is %s", last.Sub(since), ttl)
	}
	mustRefuse(t, "the worker's write", a.refusal("has not answered"),
		`the lease of "`+resource+`" is not confirmed: Consul has not answered for \d+s; worker "a" holds epoch 1`, "Retry")
	mustRefuse(t, "a follower's write", b.refusal("has not answered"),
		`worker b does not lead resource `+resource+`: the current epoch 1 is held by worker a; Consul has not answered for \d+s`, "SHOW fencepost.role")
	b.leave() // or it might lead when Consul answers again
	if role := a.show("role"); role != "follower" {
		t.Errorf("the worker's role is %s", role)
	}
	awaitFault(t, p, faults.LeaseService, "election")
	h.awaitState("unknown", "", p, q)
	process.Eventually(t, process.Patience, "/readyz to stay 200 and to tell of Consul", func() bool {
		code, body := p.Get(t, "/readyz")
		return code == http.StatusOK && !strings.Contains(body, `"election": "ok"`)
	})
	for _, args := range [][]string{{"generation", "bump", "--database", h.db}, {"doctor", "--database", h.db}} { // they do not wait for ever
		if code, out := h.command(args...); code == 0 || !strings.Contains(out, "Consul at "+agent.Addr()+" does not answer") || !strings.Contains(out, "Make sure that") {
			t.Errorf("%v: code %d: %s", args, code, out)
		}
	}
	agent.Continue(t)
	process.Eventually(t, process.Patience, "the worker to go on", func() bool { return a.exec("INSERT INTO work VALUES ('again')") == nil })
	awaitNoFault(t, p, faults.LeaseService)
	if epoch := h.epoch(); epoch != 1 {
		t.Errorf("the epoch is %d", epoch)
	}

	agent.Pause(t)
	h.awaitState("unknown", "", p, q)
	for _, c := range []*client{a, observer} {
		c.vanish()
	}
	h.awaitState("unknown", "", p, q)
	agent.Continue(t)
	h.awaitState("absent", "", p, q)
}

// TestConsulIsRebuiltFromAnOldSnapshot: the order of awards has gone back, so nobody is
// granted anything. The error says what an operator has to run, and running it resolves
// the problem.
func TestConsulIsRebuiltFromAnOldSnapshot(t *testing.T) {
	t.Parallel()
	agent, rebuilt := consultest.Start(t), consultest.Start(t)
	h := newCluster(t, "consul", withConsul(agent), with("LEASE_TTL=6s", "STARTUP_WAIT=60s"))
	one := h.proxy()
	h.join(one, "a", "campaign", "wait").leave()
	snapshot := agent.Snapshot(t)
	for i := range 200 { // the order of awards continues
		agent.Request(t, http.MethodPut, "/v1/kv/other", []byte(fmt.Sprint(i)))
	}
	h.join(one, "b", "campaign", "wait").leave()
	rebuilt.Restore(t, snapshot)
	h.settings = append(h.settings, "FENCEPOST_ELECTION_CONSUL_ADDRESS="+rebuilt.Addr())
	two := h.proxy()

	_, err := h.tryJoin(process.Patience, two, "c", "campaign", "wait")
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != fencing.StateNoFence || !strings.Contains(refused.Hint, "fencepost generation bump") {
		t.Fatalf("connecting after the order went back: %v; want ZF004 that says what to run", err)
	}
	if got := h.granted(); got != "a b" {
		t.Errorf("granted %q by the old order", got)
	}
	if code, out := h.command("generation", "bump"); code != 0 {
		t.Fatalf("generation bump: code %d: %s", code, out)
	}
	var d *client
	process.Eventually(t, process.Patience, "d to lead", func() bool {
		d, err = h.tryJoin(process.Patience, two, "d", "campaign", "wait")
		return err == nil
	})
	d.must("INSERT INTO work VALUES ('d')")
	if h.epoch() != 3 || h.granted() != "a b d" {
		t.Errorf("epoch %d, granted %q", h.epoch(), h.granted())
	}
}
