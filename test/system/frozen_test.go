package system

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

// TestSafetyFrozenLeader freezes a leader until another worker has been granted an
// epoch. Whatever the leader was about to write, by whatever means, nothing of it must
// be done.
func TestSafetyFrozenLeader(t *testing.T) {
	t.Parallel()
	for _, provider := range allProviders {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider)
			one, two := h.proxy(), h.proxy()
			for _, protocol := range []string{"simple", "extended"} {
				for _, inside := range []bool{false, true} {
					for _, left := range []bool{false, true} {
						c := &frozenCase{cluster: *h, one: one, two: two, protocol: protocol, inside: inside, left: left}
						name := fmt.Sprintf("%s protocol, transaction %v, successor left %v", protocol, inside, left)
						t.Run(name, func(t *testing.T) {
							t.Parallel()
							c.t, c.resource = t, "frozen "+name
							c.run()
						})
					}
				}
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
	connect := c.dsn(c.one, "leader", "resource", c.resource, "campaign", "wait", "worker_timeout", "300ms")
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
	leader.must("connect", c.dsn(c.one, "leader", "resource", c.resource))
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

// wrote compares the table with its expected contents.
func (c *frozenCase) wrote(want ...string) {
	c.t.Helper()
	var got []string
	for _, what := range c.works() {
		if mine, ok := strings.CutPrefix(what, c.resource+": "); ok {
			got = append(got, mine)
		}
	}
	if !slices.Equal(got, want) {
		c.t.Errorf("the table contains %q, want %q", got, want)
	}
}
