package system

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/rafttest"
)

func init() {
	allProviders = append(allProviders, "raft")
	moreProviders["raft"] = withRaft
}

// withRaft keeps the leases of a cluster in three nodes, of which none is a proxy of the cluster.
func withRaft(h *cluster) {
	h.t.Helper()
	h.settings = append(h.settings, rafttest.Start(h.t).Settings()...)
}

// raftProxies are three proxies that are the nodes themselves.
type raftProxies struct {
	*cluster
	nodes   *rafttest.Nodes
	proxies map[string]*process.Server
}

func newRaftProxies(t testing.TB, opts ...option) *raftProxies {
	t.Helper()
	process.Program(t) // building it is not part of any command
	h := newCluster(t, "none", opts...)
	r := &raftProxies{cluster: h, nodes: rafttest.Plan(t), proxies: map[string]*process.Server{}}
	h.settings = append(h.settings, r.nodes.Settings()...)
	for i, name := range rafttest.Names {
		action := "add"
		if i == 0 {
			action = "bootstrap"
		}
		process.Eventually(t, process.Patience, "fencepost raft "+action, func() bool {
			code, out := r.commandAt(name, "raft", action)
			if code != 0 {
				t.Logf("fencepost raft %s: %s", action, out)
			}
			return code == 0
		})
		r.serve(name)
	}
	process.Eventually(t, process.Patience, "all nodes to vote", func() bool {
		return !slices.ContainsFunc(r.status(), func(n raftStatus) bool { return n.Member != "leader" && n.Member != "voter" })
	})
	return r
}

func (r *raftProxies) serve(name string) {
	r.t.Helper()
	r.proxies[name] = process.Serve(r.t, append(slices.Clone(r.settings), r.nodes.SettingsOf(name)...)...)
}

// commandAt runs a command with the configuration of a node.
func (r *raftProxies) commandAt(name string, args ...string) (int, string) {
	r.t.Helper()
	at := *r.cluster
	at.settings = append(slices.Clone(r.settings), r.nodes.SettingsOf(name)...)
	return at.command(args...)
}

type raftStatus struct{ Name, Member, State, Error string }

// status returns what fencepost raft status says; nothing if it fails.
func (r *raftProxies) status() (nodes []raftStatus) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, process.Program(r.t), "raft", "status", "--json")
	cmd.Env = process.Environment(r.settings...)
	out, _ := cmd.Output() // it fails too if one node is down
	if err := json.Unmarshal(out, &nodes); err != nil {
		r.t.Fatalf("decode %s: %v", out, err)
	}
	return nodes
}

// leader returns the node that leads, once one does.
func (r *raftProxies) leader() (name string) {
	r.t.Helper()
	process.Eventually(r.t, process.Patience, "a node to lead", func() bool {
		for _, n := range r.status() {
			if n.Member == "leader" {
				name = n.Name
			}
		}
		return name != ""
	})
	return name
}

// TestProxiesThatAreTheNodesOfRaft freezes the one that leads, together with its worker's lease. The other
// proxies elect another leader, and a worker of theirs leads. When it is thawed, it believes for a moment
// that it leads, and that its worker does. Then it loses its directory, and does not serve until it was
// removed and added again.
func TestProxiesThatAreTheNodesOfRaft(t *testing.T) {
	t.Parallel()
	r := newRaftProxies(t, with("LEASE_TTL="+rafttest.TTL.String(), "STARTUP_WAIT=60s")) // a lease that has lapsed comes back
	old := r.leader()
	frozen := r.join(r.proxies[old], "frozen", "campaign", "wait")
	frozen.must("INSERT INTO work VALUES ('frozen')")
	r.proxies[old].Freeze(t)
	successor := r.join(r.proxies[r.next(old)], "successor", "campaign", "wait")
	successor.must("INSERT INTO work VALUES ('successor')")
	r.proxies[old].Thaw(t)
	if err := frozen.exec("INSERT INTO work VALUES ('stale')"); stateOf(err) != fencing.StateSuperseded {
		t.Errorf("the write of the frozen proxy's worker ended with %v", err)
	}
	if got := r.works(); !slices.Equal(got, []string{"frozen", "successor"}) {
		t.Errorf("the table contains %q", got)
	}
	r.awaitFollower(old)

	r.proxies[old].Kill(t)
	if err := os.RemoveAll(r.nodes.Dir(old)); err != nil {
		t.Fatal(err)
	}
	if code, out := r.commandAt(old, "serve"); code != 1 || !strings.Contains(out, "fencepost raft remove "+old) {
		t.Errorf("it serves: code %d, %s", code, out)
	}
	if code, out := r.commandAt(old, "raft", "bootstrap"); code != 1 || !strings.Contains(out, "accepts connections at") {
		t.Errorf("a second cluster begins: code %d, %s", code, out)
	}
	if code, out := r.commandAt(old, "raft", "add"); code != 1 || !strings.Contains(out, "a voter already") {
		t.Errorf("it is added: code %d, %s", code, out)
	}
	for _, args := range [][]string{{"raft", "remove", old}, {"raft", "add"}} {
		if code, out := r.commandAt(old, args...); code != 0 {
			t.Fatalf("%v: code %d, %s", args, code, out)
		}
	}
	r.serve(old)
	process.Eventually(t, process.Patience, "the node to vote again", func() bool {
		return slices.ContainsFunc(r.status(), func(n raftStatus) bool { return n.Name == old && n.Member == "voter" })
	})
	r.join(r.proxies[old], "again", "resource", "another", "campaign", "wait").must("INSERT INTO work VALUES ('again')")
}

// next returns another node.
func (r *raftProxies) next(name string) string {
	return rafttest.Names[(slices.Index(rafttest.Names, name)+1)%len(rafttest.Names)]
}

// awaitFollower waits until a node follows.
func (r *raftProxies) awaitFollower(name string) {
	r.t.Helper()
	process.Eventually(r.t, process.Patience, "the node "+name+" to follow", func() bool {
		return slices.ContainsFunc(r.status(), func(n raftStatus) bool { return n.Name == name && n.State == "Follower" })
	})
}
