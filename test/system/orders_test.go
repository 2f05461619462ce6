package system

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

// operate runs a command of an operator, and returns its exit code and its output.
func (h *cluster) operate(args ...string) (int, string) {
	h.t.Helper()
	return h.command(append(args, "--database", h.db, "--by", "ops", "--reason", "drill")...)
}

// order runs a command of an operator, which must succeed and say want.
func (h *cluster) order(want string, args ...string) {
	h.t.Helper()
	if code, out := h.operate(args...); code != 0 || !strings.Contains(out, want) {
		h.t.Fatalf("fencepost %v: code %d, %q does not say %q", args, code, out, want)
	}
}

// refuses runs a command of an operator, which must fail and say want.
func (h *cluster) refuses(want string, args ...string) {
	h.t.Helper()
	if code, out := h.operate(args...); code != 1 || !strings.Contains(out, want) {
		h.t.Fatalf("fencepost %v: code %d, %q does not say %q", args, code, out, want)
	}
}

// awards returns how often the embedded elector has awarded a lease.
func (h *cluster) awards() int64 {
	h.t.Helper()
	return ask[int64](h, "SELECT last_value FROM fencepost.lease_award")
}

// mustLead waits until a worker leads.
func mustLead(t *testing.T, c *client, who string) {
	t.Helper()
	process.Eventually(t, process.Patience, who+" to lead", func() bool { return c.show("role") == "leader" })
}

// wantFailure compares an error with its SQLSTATE and what it says.
func wantFailure(t *testing.T, what string, err error, state string, says ...string) {
	t.Helper()
	f := failureOf(err)
	if f == nil || f.Code != state {
		t.Errorf("%s: %v; want %s", what, f, state)
		return
	}
	for _, part := range says {
		if !strings.Contains(f.Message+"\n"+f.Hint, part) {
			t.Errorf("%s: %q, hint %q; want it to say %q", what, f.Message, f.Hint, part)
		}
	}
}

// TestAnIdleLeaderIsEvicted moves the lead from an idle worker to one of another proxy.
func TestAnIdleLeaderIsEvicted(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long))
	one, two := h.proxy(), h.proxy()
	a := h.join(one, "a", "campaign", "wait")
	b := h.join(two, "b")
	process.Eventually(t, process.Patience, "b's proxy to follow the orders", func() bool {
		return ask[bool](h, "SELECT EXISTS (SELECT FROM fencepost.candidates WHERE worker = 'b')")
	})
	h.order("worker b does not lead resource billing: nothing changed", "evict", resource, "--worker", "b")
	h.order("worker a does not lead resource billing any more: nobody holds epoch 2", "evict", resource, "--worker", "a")
	one.Await(t, "superseded", "worker", "a") // although it is idle
	mustLead(t, b, "b")
	h.order("worker a does not lead resource billing: nothing changed", "evict", resource, "--worker", "a")
	wantFailure(t, "the evicted leader's write", a.exec("INSERT INTO work VALUES ('a')"), fencing.StateSuperseded)
	b.must("INSERT INTO work VALUES ('b')")
	for _, p := range []*process.Server{one, two} {
		p.Await(t, "an operator gave an order", "kind", "evict", "resource", resource, "worker", "a", "asked_by", "ops", "reason", "drill")
		if n := len(p.Lines("an operator gave an order")); n != 1 {
			t.Errorf("a proxy logged the order %d times", n)
		}
	}
	if got := h.granted(); got != "a b" {
		t.Errorf("granted to %q", got)
	}
}

// TestAnEvictedWorkerMayNotComeBackForAWhile bars a worker, which connects again at once.
func TestAnEvictedWorkerMayNotComeBackForAWhile(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long))
	one, two := h.proxy(), h.proxy()
	h.join(one, "a", "campaign", "wait")
	h.order("worker a may not campaign for resource billing until", "evict", resource, "--for", "10m")
	one.Await(t, "superseded", "worker", "a")
	a := h.join(one, "a")
	one.Await(t, "kept from leading by an operator's order", "worker", "a")
	lift := "run: fencepost resume billing --database " + h.db + " --worker a"
	wantFailure(t, "the barred worker's write", a.refusal("may not campaign until"), fencing.StateNotLeader, "may not campaign until", "drill", lift)
	b := h.join(two, "b", "campaign", "wait")
	b.must("INSERT INTO work VALUES ('b')")
	b.leave()
	two.Await(t, "released", "worker", "b")
	tries := h.awards()
	process.Always(t, 2*time.Second, "nobody else leads", func() bool { return h.granted() == "a b" })
	if again := h.awards(); again > tries+1 { // one when b left
		t.Errorf("the barred worker was awarded the lease %d times in two seconds", again-tries)
	}
	h.order("worker a of resource billing may campaign again", "resume", resource, "--worker", "a")
	h.order("nothing changed", "resume", resource, "--worker", "a")
	mustLead(t, a, "a")
}

// TestAnOrderHoldsForASharedToken: a worker that may not campaign does not lead by the token of another one, and who
// leads by another one's token can be evicted by name.
func TestAnOrderHoldsForASharedToken(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(tokens)
	h.mustBear(p, "w", 5).must("INSERT INTO work VALUES ('w')")
	h.order("worker w may not campaign for resource billing until", "evict", resource, "--for", "10m")
	v, shares := h.mustBear(p, "v", 6), h.mustBear(p, "shares", 6)
	v.must("INSERT INTO work VALUES ('v')")
	shares.must("INSERT INTO work VALUES ('shares')")
	barred := h.mustBear(p, "w", 6)
	wantFailure(t, "the barred worker's write", barred.refusal("may not campaign until"), fencing.StateNotLeader, "may not campaign until")
	h.order("worker w of resource billing may campaign again", "resume", resource, "--worker", "w")
	mustLead(t, barred, "w")

	h.order("worker x does not lead resource billing: nothing changed", "evict", resource, "--worker", "x")
	h.order("worker shares does not lead resource billing any more: nobody holds epoch 4\n"+
		"database "+h.db+": worker v led resource billing by the same token, and does not lead it any more either\n"+
		"database "+h.db+": worker w led resource billing by the same token", "evict", resource, "--worker", "shares")
	for name, c := range map[string]*client{"the recorded worker": v, "the evicted one": shares, "the third one": barred} {
		wantFailure(t, "a write of "+name, c.exec("INSERT INTO work VALUES ('late')"), fencing.StateSuperseded)
	}
	h.mustBear(p, "shares", 7).must("SELECT 1")
	h.mustBear(p, "too", 7).must("SELECT 1")
	h.order("worker too led resource billing by the same token, and does not lead it any more either\ndatabase "+h.db+": resource billing is paused", "pause", resource)
	h.order("worker shares does not lead resource billing any more", "evict", resource, "--worker", "shares", "--for", "10m")
	h.order("resource billing is not paused any more", "resume", resource)
	if _, err := h.bears(p, "shares", 7); err == nil {
		t.Error("the token of the evicted worker leads again")
	}
}

// TestNoOneLeadsAPausedResource pauses a resource that has a leader, a follower, and a
// worker that waits to lead.
func TestNoOneLeadsAPausedResource(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long))
	one, two := h.proxy(), h.proxy()
	a := h.join(one, "a", "campaign", "wait")
	follower := h.join(one, "follower")
	waiter := make(chan error, 1)
	go func() {
		_, err := h.tryJoin(process.Patience, two, "waiter", "campaign", "wait")
		waiter <- err
	}()
	h.awaitWorker(two, resource, "waiter")
	h.order("resource billing is paused", "pause", resource)
	h.order("resource billing is paused already: nothing changed", "pause", resource)
	lift := "run: fencepost resume billing --database " + h.db
	wantFailure(t, "the waiting worker", <-waiter, fencing.StateNotLeader, `"ops" paused the resource at`, "drill", lift)
	wantFailure(t, "a later waiting worker", failed(h.tryJoin(process.Patience, two, "late", "campaign", "wait")), fencing.StateNotLeader, `"ops" paused the resource at`, lift)
	wantFailure(t, "the former leader's write", a.exec("INSERT INTO work VALUES ('a')"), fencing.StateSuperseded)
	wantFailure(t, "a follower's write", follower.refusal("paused the resource"), fencing.StateNotLeader, `"ops" paused the resource at`, "drill", lift)
	follower.must("SELECT * FROM work") // reads go on
	one.Await(t, "kept from leading by an operator's order", "worker", "follower")
	h.awaitState("paused", "", one)
	process.Eventually(t, process.Patience, "fencepost status to show the pause", func() bool {
		_, shown := h.command("status", "--admin", one.Admin)
		return strings.Contains(shown, `billing: order: paused by order of "ops"`)
	})

	h.order("resource billing is not paused any more", "resume", resource)
	h.order("nothing changed", "resume", resource)
	mustLead(t, follower, "the follower")
	follower.must("INSERT INTO work VALUES ('follower')")
	if got := h.granted(); got != "a follower" {
		t.Errorf("granted to %q", got)
	}
}

func failed(_ *client, err error) error { return err }

// TestSafetyResourceIsRemovedUnderAFrozenLeader removes a resource and makes it anew under
// another leader, while the first one is frozen, alone or together with its proxy.
func TestSafetyResourceIsRemovedUnderAFrozenLeader(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		inside, both bool
	}{
		{"alone", false, false},
		{"with its proxy, inside a transaction", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, "postgres", with(long))
			one, two := h.proxy(), h.proxy()
			stale := h.worker("stale")
			stale.must("connect", h.dsn(one, "stale", "campaign", "wait"))
			if c.inside {
				stale.must("simple", "BEGIN", "INSERT INTO work VALUES ('stale, before')")
			}
			stale.Freeze(t)
			if c.both {
				one.Freeze(t)
			}
			if code, out := h.command("resource", "rm", resource, "--database", h.db); code != 1 || !strings.Contains(out, "was not removed") {
				t.Fatalf("a resource in use: code %d: %s", code, out)
			}
			h.order("resource billing is removed", "resource", "rm", resource, "--force")
			fresh := h.join(two, "fresh", "campaign", "wait")
			fresh.must("INSERT INTO work VALUES ('fresh')")

			stale.tell(order{Do: "simple", Text: "INSERT INTO work VALUES ('stale')"})
			one.Thaw(t)
			stale.Thaw(t)
			if f := stale.answer().Failure; f == nil || f.Code != fencing.StateSuperseded && f.Code != fencing.StateNoFence {
				t.Errorf("the former leader's write: %v; want ZF001 or ZF004", f)
			}
			if c.inside {
				stale.do("simple", "COMMIT")
			}
			if got := h.works(); !slices.Equal(got, []string{"fresh"}) {
				t.Errorf("the table contains %q, want only the row of the new leader", got)
			}
			h.order("there is no resource none", "resource", "rm", "none")
		})
	}
}

// TestWorkersOfARemovedResourceRecreateIt removes a resource that workers of two proxies use.
func TestWorkersOfARemovedResourceRecreateIt(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long))
	one, two := h.proxy(), h.proxy()
	leader, follower := h.join(one, "leader", "campaign", "wait"), h.join(two, "follower")
	h.order("resource billing is removed", "resource", "rm", resource, "--force")
	one.Await(t, "superseded", "worker", "leader")
	two.Await(t, "superseded", "worker", "follower")
	wantFailure(t, "the leader's write", leader.exec("INSERT INTO work VALUES ('old')"), fencing.StateSuperseded, "An operator ended the lead")
	wantFailure(t, "the follower's use", awaitFailure(t, follower, "SELECT 1"), fencing.StateNoFence, "an operator removed resource")
	again := h.join(two, "follower", "campaign", "wait")
	again.must("INSERT INTO work VALUES ('new')")
	if epoch := again.show("epoch"); epoch != "3" {
		t.Errorf("the resource was made anew with epoch %s, want 3", epoch)
	}
}

// TestAnOrderInShadowSaysThatItStopsNoOne.
func TestAnOrderInShadowSaysThatItStopsNoOne(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	path := filepath.Join(t.TempDir(), "fencepost.yml")
	if err := os.WriteFile(path, []byte("resources: {billing: {enforce: shadow}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := h.join(h.proxy("CONFIG="+path), "w")
	const says = "resource billing is in shadow (resources.<name>.enforce), where nothing is refused: its workers go on writing"
	for _, order := range []string{"evict", "pause", "pause"} {
		h.order(says, order, resource, "--config", path)
		w.must("INSERT INTO work VALUES ('" + order + "')")
	}
}
