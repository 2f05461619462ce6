package raft

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"
	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/raft/state"
	"github.com/fencepost/fencepost/internal/files"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	patience = electiontest.Patience
	// heartbeat is the default. With less, a busy machine elects leaders all the time.
	heartbeat = defaultHeartbeat
	// ttl is the TTL of leases that expire in a test.
	ttl  = leastTTL * heartbeat
	long = time.Minute
)

// What these tests share with those of other providers.
var (
	within     = electiontest.Within
	eventually = electiontest.Eventually
	bid        = electiontest.Bid
	acquire    = electiontest.Acquire
)

// clusters bounds how many clusters there are at once. Their nodes have to hear of each other within a second, which a
// busy machine does not manage for many.
var clusters = make(chan struct{}, 3)

// members are the nodes of a cluster, in this process.
type members struct {
	t     *testing.T
	base  Config // of all
	dir   string // of their directories
	names []string
	nodes map[string]*node // those that run
	all   *cluster
}

// newMembers prepares nodes, and starts none.
func newMembers(t *testing.T, names ...string) *members {
	t.Helper()
	clusters <- struct{}{}
	t.Cleanup(func() { <-clusters })
	stopwatch.AwaitRoom(t)
	authority := pgtest.NewAuthority(t)
	pair := authority.Issue(t, pgtest.Subject{Name: "node", Hosts: []string{"127.0.0.1"}})
	c := &members{
		t: t, dir: directory(t), names: names, nodes: map[string]*node{},
		base: Config{
			Peers: map[string]string{}, TLSClient: files.TLSClient{CAFile: authority.File, CertFile: pair.CertFile, KeyFile: pair.KeyFile},
			Heartbeat: heartbeat, Prefix: "test", patience: patience, // a busy machine may take longer than an election
		},
	}
	for _, name := range names {
		c.base.Peers[name] = ports.For(t).Address()
	}
	c.connect()
	t.Cleanup(func() {
		for name := range c.nodes {
			c.stop(name)
		}
		c.all.close()
	})
	return c
}

// connect connects to the nodes at the addresses that they have now.
func (c *members) connect() {
	c.t.Helper()
	var err error
	if c.all, err = newCluster(c.base.withDefaults()); err != nil {
		c.t.Fatal(err)
	}
}

// apply has a command applied.
func (c *members) apply(ctx context.Context, cmd state.Command) (o state.Outcome, err error) {
	err = c.all.call(ctx, request{op: opApply, in: cmd}, &o)
	return o, err
}

// mark has an entry applied.
func (c *members) mark(ctx context.Context) error {
	_, err := c.apply(ctx, state.Command{Op: state.Mark, Space: "test", Marker: "m"})
	return err
}

// directory returns one that the test alone uses, in memory if that can be had: every entry is
// synced to the disk by three nodes.
func directory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fencepost-raft-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// newTestCluster starts a cluster of three.
func newTestCluster(t *testing.T) *members {
	t.Helper()
	c := newMembers(t, "one", "two", "three")
	c.begin()
	return c
}

// begin bootstraps the first node, adds the others, and waits until all vote.
func (c *members) begin() {
	c.t.Helper()
	if err := Bootstrap(within(c.t, patience), c.config(c.names[0])); err != nil {
		c.t.Fatal(err)
	}
	c.start(c.names[0])
	for _, name := range c.names[1:] {
		c.add(name)
		c.start(name)
	}
	c.allVote()
}

// add adds a node when there is a leader.
func (c *members) add(name string) {
	c.t.Helper()
	if err := Add(within(c.t, patience), c.config(name)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *members) config(name string) Config {
	cfg := c.base
	cfg.Name, cfg.Listen, cfg.Dir, cfg.Proxy = name, c.base.Peers[name], filepath.Join(c.dir, name), name
	cfg.Logger = zaptest.NewLogger(c.t).Named(name)
	return cfg
}

func (c *members) start(name string) *node {
	c.t.Helper()
	n, err := start(c.config(name).withDefaults())
	if err != nil {
		c.t.Fatalf("start %s: %v", name, err)
	}
	c.nodes[name] = n
	return n
}

func (c *members) stop(name string) {
	c.t.Helper()
	if err := c.nodes[name].close(); err != nil {
		c.t.Errorf("stop %s: %v", name, err)
	}
	delete(c.nodes, name)
}

// stopAll stops all nodes, and startAll starts them again.
func (c *members) stopAll() {
	for name := range c.nodes {
		c.stop(name)
	}
}

func (c *members) startAll() {
	for _, name := range c.names {
		c.start(name)
	}
	c.allVote()
}

// allVote waits until all nodes that run are voters, as the leader knows.
func (c *members) allVote() {
	c.t.Helper()
	eventually(c.t, "all vote", patience, func() bool {
		all := c.members()
		return len(all) == len(c.nodes) && !slices.ContainsFunc(all, func(m Member) bool { return !m.Voter })
	})
}

// members returns the members; nil if there is no leader.
func (c *members) members() (all []Member) {
	_ = c.all.call(within(c.t, 10*time.Second), request{op: opMembers}, &all)
	return all
}

// trouble returns what is wrong with a node, as raft status says.
func (c *members) trouble(name string) string {
	c.t.Helper()
	s, err := Look(within(c.t, patience), c.base)
	if err := errors.Join(err, s.Err); err != nil {
		return err.Error()
	}
	for _, a := range s.Nodes {
		if a.Name == name {
			problem, _ := s.Trouble(a)
			return problem
		}
	}
	return "there is no node " + name
}

// leader waits for a leader.
func (c *members) leader() (found *node) {
	c.t.Helper()
	eventually(c.t, "there is a leader", patience, func() bool {
		for _, n := range c.nodes {
			if n.raft.State() == hraft.Leader && n.confirm(within(c.t, time.Second)) == nil {
				found = n
				return true
			}
		}
		return false
	})
	return found
}

// transfer lets another node lead.
func (c *members) transfer(t *testing.T) {
	t.Helper()
	eventually(t, "another node leads", patience, func() bool {
		for _, n := range c.nodes {
			if n.raft.State() == hraft.Leader {
				return n.raft.LeadershipTransfer().Error() == nil
			}
		}
		return false
	})
}

// follower returns a node that does not lead.
func (c *members) follower() *node {
	leader := c.leader()
	for _, n := range c.nodes {
		if n != leader {
			return n
		}
	}
	c.t.Fatal("all nodes lead")
	return nil
}

// wipe loses the data of all nodes, and begins a new cluster.
func (c *members) wipe() {
	c.stopAll()
	for _, name := range c.names {
		if err := os.RemoveAll(filepath.Join(c.dir, name)); err != nil {
			c.t.Fatal(err)
		}
	}
	c.begin()
}

// backup copies the directories of all nodes, which stop meanwhile, and returns what puts them back.
func (c *members) backup() (restore func()) {
	c.stopAll()
	copied := directory(c.t)
	if err := os.CopyFS(copied, os.DirFS(c.dir)); err != nil {
		c.t.Fatal(err)
	}
	c.startAll()
	return func() {
		c.stopAll()
		if err := os.RemoveAll(c.dir); err != nil {
			c.t.Fatal(err)
		}
		if err := os.CopyFS(c.dir, os.DirFS(copied)); err != nil {
			c.t.Fatal(err)
		}
		c.startAll()
	}
}

// client returns a client that is no node, for the nodes at these addresses.
func (c *members) client(t *testing.T, proxy, prefix string, addresses ...string) *Client {
	t.Helper()
	cfg := c.base
	cfg.Prefix, cfg.Proxy, cfg.Logger = prefix, proxy, zaptest.NewLogger(t).Named(proxy)
	if len(addresses) > 0 {
		cfg.Peers = map[string]string{}
		for i, a := range addresses {
			cfg.Peers[c.names[i]] = a
		}
	}
	client, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}
