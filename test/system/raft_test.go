package system

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/raft"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
)

// raftTTL is the least TTL that Raft grants.
const raftTTL = 3 * time.Second

func init() {
	allProviders = append(allProviders, "raft")
	moreProviders["raft"] = withRaft
	killedBounds["raft"] = raftTTL + time.Second
}

// raftNodes are the nodes of a cluster, whose proxies are none or are the nodes themselves.
type raftNodes struct {
	t     testing.TB
	names []string
	dir   string
	base  raft.Config
}

func newRaftNodes(t testing.TB) *raftNodes {
	t.Helper()
	authority := pgtest.NewAuthority(t)
	pair := authority.Issue(t, pgtest.Subject{Name: "node", Hosts: []string{"127.0.0.1"}})
	n := &raftNodes{
		t: t, names: []string{"one", "two", "three"}, dir: memory(t),
		base: raft.Config{Peers: map[string]string{}, CAFile: authority.File, CertFile: pair.CertFile, KeyFile: pair.KeyFile},
	}
	for _, name := range n.names {
		n.base.Peers[name] = ports.For(t).Address()
	}
	return n
}

// memory returns a directory in memory, if that can be had: every entry is synced to the disk by
// three nodes.
func memory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fencepost-raft-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// settings returns those of a proxy that is no node.
func (n *raftNodes) settings() []string {
	peers := make([]string, len(n.names))
	for i, name := range n.names {
		peers[i] = name + "=" + n.base.Peers[name]
	}
	return prefixed([]string{
		"ELECTION_PROVIDER=raft", "ELECTION_RAFT_PEERS=" + strings.Join(peers, ","),
		"ELECTION_RAFT_CA_FILE=" + n.base.CAFile, "ELECTION_RAFT_CERT_FILE=" + n.base.CertFile, "ELECTION_RAFT_KEY_FILE=" + n.base.KeyFile,
	})
}

// settingsOf returns what the proxy that is the named node has beside these.
func (n *raftNodes) settingsOf(name string) []string {
	return []string{"PROXY_ID=" + name, "ELECTION_RAFT_DIR=" + filepath.Join(n.dir, name)}
}

// withRaft keeps the leases of a cluster in three nodes, of which none is a proxy of the cluster.
func withRaft(h *cluster) {
	h.t.Helper()
	n := newRaftNodes(h.t)
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	for i, name := range n.names {
		cfg := n.base
		cfg.Name, cfg.Dir, cfg.Proxy, cfg.Logger = name, filepath.Join(n.dir, name), name, zaptest.NewLogger(h.t).Named(name)
		begin := raft.Add
		if i == 0 {
			begin = raft.Bootstrap
		}
		process.Eventually(h.t, process.Patience, "the node "+name+" to be made", func() bool { return begin(ctx, cfg) == nil })
		node, err := raft.New(cfg)
		if err != nil {
			h.t.Fatal(err)
		}
		h.t.Cleanup(func() { _ = node.Close() })
	}
	h.settings = append(h.settings, n.settings()...)
	h.take = func() { n.take(h.db) }
}

// take takes the lease of the resource from its holder, and gives it back.
func (n *raftNodes) take(db string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	cfg := n.base
	cfg.Proxy = "operator " + rand.Text()
	client, err := raft.New(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	defer client.Close()
	provider := client.Database(db)
	held, err := provider.Watch(ctx, resource, election.LeaseObservation{})
	if err != nil || held.State != election.Held {
		return
	}
	lease, err := provider.Acquire(ctx, election.AcquireRequest{Resource: resource, Worker: "operator", Incarnation: rand.Text(), TTL: raftTTL, From: held.Incarnation})
	if err != nil {
		return // it was released meanwhile
	}
	if err := provider.Release(ctx, lease, election.ReasonLeft, 0); err != nil {
		n.t.Fatalf("give the lease back: %v", err)
	}
}

// raftProxies are three proxies that are the nodes themselves.
type raftProxies struct {
	*cluster
	nodes   *raftNodes
	proxies map[string]*process.Server
}

func newRaftProxies(t *testing.T, opts ...option) *raftProxies {
	t.Helper()
	process.Program(t) // building it is not part of any command
	h := newCluster(t, "none", opts...)
	r := &raftProxies{cluster: h, nodes: newRaftNodes(t), proxies: map[string]*process.Server{}}
	h.settings = append(h.settings, r.nodes.settings()...)
	for i, name := range r.nodes.names {
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
	r.proxies[name] = r.proxy(r.nodes.settingsOf(name)...)
}

// commandAt runs a command with the configuration of a node.
func (r *raftProxies) commandAt(name string, args ...string) (int, string) {
	r.t.Helper()
	at := *r.cluster
	at.settings = append(slices.Clone(r.settings), prefixed(r.nodes.settingsOf(name))...)
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

// TestTheProxyThatLeadsRaftIsFrozen, together with its worker's lease. The other proxies elect another
// leader, and a worker of theirs leads. When it is thawed, it believes for a moment that it leads, and
// that its worker does.
func TestTheProxyThatLeadsRaftIsFrozen(t *testing.T) {
	t.Parallel()
	r := newRaftProxies(t, with("LEASE_TTL="+raftTTL.String()))
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
}

// TestAProxyThatIsANodeIsKilled and comes back: two of three are enough, and a worker of another proxy
// goes on.
func TestAProxyThatIsANodeIsKilled(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second
	r := newRaftProxies(t, with("LEASE_TTL="+ttl.String()))
	old := r.leader()
	stays := r.join(r.proxies[r.next(old)], "stays", "campaign", "wait")
	epoch := stays.show("epoch")
	r.proxies[old].Kill(t)
	process.Always(t, ttl+ttl/2, "the worker writes", func() bool { return stays.exec("INSERT INTO work VALUES ('stays')") == nil })
	if now := stays.show("epoch"); now != epoch {
		t.Errorf("the epoch went from %s to %s", epoch, now)
	}
	r.serve(old)
	r.awaitFollower(old)
}

// next returns another node.
func (r *raftProxies) next(name string) string {
	return r.nodes.names[(slices.Index(r.nodes.names, name)+1)%len(r.nodes.names)]
}

// awaitFollower waits until a node follows.
func (r *raftProxies) awaitFollower(name string) {
	r.t.Helper()
	process.Eventually(r.t, process.Patience, "the node "+name+" to follow", func() bool {
		return slices.ContainsFunc(r.status(), func(n raftStatus) bool { return n.Name == name && n.State == "Follower" })
	})
}

// TestAProxyThatLostItsDirectoryDoesNotServe until it was removed and added again.
func TestAProxyThatLostItsDirectoryDoesNotServe(t *testing.T) {
	t.Parallel()
	r := newRaftProxies(t)
	lost := "three"
	r.proxies[lost].Kill(t)
	if err := os.RemoveAll(filepath.Join(r.nodes.dir, lost)); err != nil {
		t.Fatal(err)
	}
	if code, out := r.commandAt(lost, "serve"); code != 1 || !strings.Contains(out, "fencepost raft remove three") {
		t.Errorf("it serves: code %d, %s", code, out)
	}
	if code, out := r.commandAt(lost, "raft", "bootstrap"); code != 1 || !strings.Contains(out, "runs already") {
		t.Errorf("a second cluster begins: code %d, %s", code, out)
	}
	if code, out := r.commandAt(lost, "raft", "add"); code != 1 || !strings.Contains(out, "a voter already") {
		t.Errorf("it is added: code %d, %s", code, out)
	}
	for _, args := range [][]string{{"raft", "remove", lost}, {"raft", "add"}} {
		if code, out := r.commandAt(lost, args...); code != 0 {
			t.Fatalf("%v: code %d, %s", args, code, out)
		}
	}
	r.serve(lost)
	process.Eventually(t, process.Patience, "the node to vote again", func() bool {
		return slices.ContainsFunc(r.status(), func(n raftStatus) bool { return n.Name == lost && n.Member == "voter" })
	})
	r.join(r.proxies[lost], "a", "campaign", "wait").must("INSERT INTO work VALUES ('a')")
}
