// Package rafttest runs the nodes of package election/raft for tests.
//
// A cluster has three nodes, which keep their data in a directory that is removed with the test.
// They run in the test's own process, or the test starts proxies that are the nodes.
package rafttest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election/raft"
	"github.com/fencepost/fencepost/internal/files"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
)

// TTL is the least TTL that Raft grants.
const TTL = 3 * time.Second

// Names are the names of the nodes.
var Names = []string{"one", "two", "three"}

// Nodes are the nodes of a cluster.
type Nodes struct {
	dir  string
	base raft.Config
}

// Plan gives the nodes of a cluster their addresses, certificates and directories. It starts none.
func Plan(t testing.TB) *Nodes {
	t.Helper()
	authority := pgtest.NewAuthority(t)
	pair := authority.Issue(t, pgtest.Subject{Name: "node", Hosts: []string{"127.0.0.1"}})
	n := &Nodes{
		dir:  memory(t),
		base: raft.Config{Peers: map[string]string{}, TLSClient: files.TLSClient{CAFile: authority.File, CertFile: pair.CertFile, KeyFile: pair.KeyFile}},
	}
	for _, name := range Names {
		n.base.Peers[name] = ports.For(t).Address()
	}
	return n
}

// Start runs a cluster in this process until the test ends.
func Start(t testing.TB) *Nodes {
	t.Helper()
	n := Plan(t)
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	for i, name := range Names {
		cfg := n.base
		cfg.Name, cfg.Dir, cfg.Proxy, cfg.Logger = name, n.Dir(name), name, zaptest.NewLogger(t).Named(name)
		begin := raft.Add
		if i == 0 {
			begin = raft.Bootstrap
		}
		process.Eventually(t, process.Patience, "the node "+name+" to be made", func() bool { return begin(ctx, cfg) == nil })
		node, err := raft.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = node.Close() })
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

// Dir returns the directory of a node.
func (n *Nodes) Dir(name string) string { return filepath.Join(n.dir, name) }

// Settings are the environment variables with which Fencepost keeps its leases there, as a proxy
// that is no node.
func (n *Nodes) Settings() []string {
	peers := make([]string, len(Names))
	for i, name := range Names {
		peers[i] = name + "=" + n.base.Peers[name]
	}
	return []string{
		"FENCEPOST_ELECTION_PROVIDER=raft", "FENCEPOST_ELECTION_RAFT_PEERS=" + strings.Join(peers, ","),
		"FENCEPOST_ELECTION_RAFT_CA_FILE=" + n.base.CAFile, "FENCEPOST_ELECTION_RAFT_CERT_FILE=" + n.base.CertFile, "FENCEPOST_ELECTION_RAFT_KEY_FILE=" + n.base.KeyFile,
	}
}

// SettingsOf returns what a proxy that is the named node has in addition to these.
func (n *Nodes) SettingsOf(name string) []string {
	return []string{"FENCEPOST_PROXY_ID=" + name, "FENCEPOST_ELECTION_RAFT_DIR=" + n.Dir(name)}
}
