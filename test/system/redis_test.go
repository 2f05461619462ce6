package system

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/redistest"
)

// TestSafetyAFailoverOfRedisForgets: a replica takes the place of the master, and does not know the
// newest award. The old master goes on for the proxy of the old leader. The leader of the new master
// writes, and the old one never again, whatever the old master awards it.
func TestSafetyAFailoverOfRedisForgets(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.Start(t, redistest.WithReplicaOf(master))
	h := newCluster(t, "redis")
	at := func(s *redistest.Server) *process.Server { return h.proxy("ELECTION_REDIS_ADDRESS=" + s.Addr()) }
	one := at(master)
	seed := h.join(one, "seed", "campaign", "wait")
	seed.leave()
	master.AwaitReplicas(t, 1)
	replica.Promote(t)
	old := h.join(one, "old", "campaign", "wait") // an award that the new master does not know
	old.must("INSERT INTO work VALUES ('old')")

	two := at(replica)
	next := h.join(two, "next", "campaign", "wait")
	if epoch := next.show("epoch"); epoch != "3" {
		t.Errorf("the leader at the new master has epoch %s", epoch)
	}
	next.must("INSERT INTO work VALUES ('next')")
	if err := old.exec("INSERT INTO work VALUES ('late')"); stateOf(err) != fencing.StateSuperseded {
		t.Errorf("the old leader's write ended with %v", err)
	}
	again := h.join(one, "again") // the old master awards it the lease, and the fence refuses the award
	if err := again.exec("INSERT INTO work VALUES ('again')"); err == nil {
		t.Error("a worker at the old master has written")
	}
	next.must("INSERT INTO work VALUES ('next')")
	if got := strings.Join(h.works(), " "); got != "old next next" {
		t.Errorf("the table holds %q", got)
	}
	if got := h.granted(); got != "seed old next" {
		t.Errorf("epochs were granted to %q", got)
	}
}
