package system

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

// TestSafetyFrozenLeader freezes a leader until another worker has been granted an
// epoch. Whatever the leader was about to write, by whatever means, nothing of it must
// be done.
func TestSafetyFrozenLeader(t *testing.T) {
	t.Parallel()
	cases := []frozenCase{
		{protocol: "extended", inside: true, left: true},
		{protocol: "extended"},
		{protocol: "simple", inside: true},
		{protocol: "simple", left: true},
	}
	for _, provider := range allProviders {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider)
			one, two := h.proxy(), h.proxy()
			played := cases
			if provider != "postgres" { // it does not matter to the fence who elects
				played = cases[:1]
			}
			for _, c := range played {
				name := fmt.Sprintf("%s protocol, transaction %v, successor left %v", c.protocol, c.inside, c.left)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					c.cluster, c.one, c.two = *h, one, two
					c.t, c.resource = t, "frozen "+name
					c.run()
				})
			}
		})
	}
}

type frozenCase struct {
	cluster
	one, two *process.Server
	resource string
	protocol string
	inside   bool // it is frozen inside a transaction that has written
	left     bool // its successor has left by the time it is thawed
}

func (c *frozenCase) run() {
	leader := c.worker("leader")
	connect := c.dsn(c.one, "leader", "resource", c.resource, "campaign", "wait", "worker_timeout", "2s")
	if r := leader.must("connect", connect); r.Role != "leader" || r.Epoch != "1" {
		c.t.Fatalf("the leader was told role %q, epoch %q", r.Role, r.Epoch)
	}
	leader.must(c.protocol, c.insert("before"))
	if c.inside {
		leader.must(c.protocol, "BEGIN", c.insert("inside, before"))
	}
	leader.Freeze(c.t)
	successor := c.join(c.two, "successor", "resource", c.resource, "campaign", "wait")
	successor.must(c.insert("successor"))
	if c.left {
		successor.leave()
		c.two.Await(c.t, "released", "resource", c.resource, "worker", "successor")
	}

	leader.tell(order{Do: c.protocol, Text: c.insert("stale")})
	leader.Thaw(c.t)
	c.refused(leader.answer())
	if !fencing.Checking {
		if c.inside {
			leader.do("simple", "COMMIT")
		}
		c.wrote("before", "successor")
		return
	}
	c.comesBack(leader)
}

// refused checks what the thawed leader is told.
func (c *frozenCase) refused(r report) {
	c.t.Helper()
	f := r.Failure
	if f == nil || f.Code != fencing.StateSuperseded || f.Severity != "FATAL" {
		c.t.Errorf("the thawed leader's write: %v; want FATAL ZF001", f)
		return
	}
	for _, want := range []string{"leader", "successor", "superseded"} {
		if !strings.Contains(f.Message, want) {
			c.t.Errorf("the message %q does not say %q", f.Message, want)
		}
	}
	if !strings.Contains(f.Detail, `"epoch":1,`) || !strings.Contains(f.Detail, `"current_epoch":2,`) || f.Hint == "" {
		c.t.Errorf("detail %q, hint %q", f.Detail, f.Hint)
	}
}

// comesBack checks that the connection is over, and connects the same worker again. If
// it leads, that must be announced to it before it may write.
func (c *frozenCase) comesBack(leader *worker) {
	c.t.Helper()
	if r := leader.do(c.protocol, c.insert("on the old connection")); r.Failure == nil {
		c.t.Error("the connection is still open after ZF001")
	}
	campaign := "on"
	if c.left { // it leads, however long that takes
		campaign = "wait"
	}
	leader.must("connect", c.dsn(c.one, "leader", "resource", c.resource, "campaign", campaign))
	first := leader.do(c.protocol, c.insert("unknowing"))
	if !c.left {
		if first.Failure == nil || first.Failure.Code != fencing.StateNotLeader {
			c.t.Errorf("a follower's write: %v; want ZF002", first.Failure)
		}
		c.wrote("before", "successor")
		return
	}
	if first.Failure == nil || first.Failure.Code != fencing.StateStartOver {
		c.t.Errorf("the first write after coming back: %v; want ZF003", first.Failure)
	}
	leader.must(c.protocol, c.insert("told"))
	c.wrote("before", "successor", "told")
}

func (c *frozenCase) insert(what string) string {
	return fmt.Sprintf("INSERT INTO work VALUES ('%s: %s')", c.resource, what)
}

// wrote compares the table with its expected contents, in any order: other cases write to it as well,
// and Postgres puts rows of several connections into several pages.
func (c *frozenCase) wrote(want ...string) {
	c.t.Helper()
	var got []string
	for _, what := range c.works() {
		if mine, ok := strings.CutPrefix(what, c.resource+": "); ok {
			got = append(got, mine)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		c.t.Errorf("the table contains %q, want %q", got, want)
	}
}

// TestSafetyZombieInsideAWriteTransaction checks that a worker that froze inside a
// transaction that has written has the grace to end it, loses its backend then, and is
// told why.
func TestSafetyZombieInsideAWriteTransaction(t *testing.T) {
	t.Parallel()
	const grace = 700 * time.Millisecond
	h := newCluster(t, "postgres", with("LEASE_GRACE="+grace.String()))
	h.stamp("work")
	one, two := h.proxy(), h.proxy()
	zombie := h.worker("zombie")
	zombie.must("connect", h.dsn(one, "zombie", "campaign", "wait", "worker_timeout", "2s"))
	backend := zombie.must("simple", "BEGIN", "INSERT INTO work VALUES ('zombie')", "SELECT pg_backend_pid()").Values[0]
	zombie.Freeze(t)
	successor := h.join(two, "successor", "campaign", "wait")
	successor.must("INSERT INTO work VALUES ('successor')")

	one.Await(t, "released", "worker", "zombie", "reason", "silence")
	waited, err := time.ParseDuration(two.Await(t, "takeover", "worker", "successor").Text("grant"))
	if err != nil {
		t.Fatal(err)
	}
	if fencing.Checking && waited < grace {
		t.Errorf("the takeover came after %s: a transaction of the old epoch has the grace %s to end", waited, grace)
	}
	process.Eventually(t, process.Patience, "the zombie's backend to be gone", func() bool { // it gives its locks back a little before
		return ask[int](h, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1::int", backend) == 0
	})
	zombie.tell(order{Do: "simple", Text: "COMMIT"})
	zombie.Thaw(t)
	f := zombie.answer().Failure
	if f == nil || f.Severity != "FATAL" || f.Code != fencing.StateSuperseded || !strings.Contains(f.Message, "superseded") ||
		!strings.Contains(f.Message, "successor") || !strings.Contains(f.Detail, `"current_epoch":2,`) {
		t.Errorf("the zombie got %v, detail %+v", f, f)
	}
	if got := h.works(); !slices.Equal(got, []string{"successor"}) {
		t.Errorf("the table contains %q, want only the successor's row", got)
	}
	h.audit()
}
