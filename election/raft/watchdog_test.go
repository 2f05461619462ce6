package raft

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/raft/state"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
)

// mark has a node award something.
func mark(t *testing.T, n *node) error {
	t.Helper()
	o, err := apply(within(t, patience), n, state.Command{Op: state.Mark, Space: "test", Marker: "m"})
	if err == nil && o.Verdict != state.Done && o.Verdict != state.Conflict {
		t.Errorf("an entry ends with %+v", o)
	}
	return err
}

// A leader whose disk hangs sends heartbeats, and awards nothing. Another node leads while it does.
func TestALeaderWhoseDiskHangsIsReplaced(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	hung := c.leader()
	name := hung.cfg.Name
	c.stalled[name].Store(true)
	for other, n := range c.nodes {
		if other != name {
			eventually(t, "another node than "+name+" leads", patience, func() bool {
				_, id := n.raft.LeaderWithID()
				return id != "" && named(id).Name != name && mark(t, n) == nil
			})
		}
	}
	c.stalled[name].Store(false)
	eventually(t, "the node takes part again", patience, func() bool { return mark(t, hung) == nil })
}

// A node that cannot be reached, but reaches the others, could lead, and nobody could ask it for anything.
func TestANodeThatCannotBeReachedDoesNotKeepTheLead(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	hidden := c.follower().cfg.Name
	c.stopAll()
	cfg := c.config(hidden).withDefaults()
	cfg.Listen = ports.For(t).Address() // a wrong line at one node
	n, err := start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.nodes[hidden] = n
	eventually(t, "it says so", patience, func() bool {
		var limited *election.LimitedError
		return errors.As(n.healthy(), &limited) && strings.Contains(limited.Error(), "cannot be reached at its address "+c.base.Peers[hidden])
	})
	for _, name := range c.names {
		if name != hidden {
			c.start(name)
		}
	}
	for name, other := range c.nodes {
		if name != hidden {
			eventually(t, "there are awards through "+name, patience, func() bool { return mark(t, other) == nil })
		}
	}
}

// A certificate that was renewed wrongly is noticed although the connections that are kept still work.
func TestAWrongCertificateIsNoticed(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one", "two", "three")
	stranger := pgtest.NewAuthority(t).Issue(t, pgtest.Subject{Name: "node", Hosts: []string{"127.0.0.1"}})
	c.begin()
	n := c.leader()
	replace := func(certificate, key string) {
		t.Helper()
		for from, to := range map[string]string{certificate: c.base.CertFile, key: c.base.KeyFile} {
			text, err := os.ReadFile(from)
			if err := errors.Join(err, os.WriteFile(to, text, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "all is well", patience, func() bool { return n.healthy() == nil && c.trouble(n.cfg.Name) == "" })
	replace(stranger.CertFile, stranger.KeyFile)
	eventually(t, "it is noticed", patience, func() bool {
		err := n.healthy()
		return err != nil && strings.Contains(err.Error(), "certificate")
	})
}

// What accepts connections may be a node, also if it does not say so.
func TestNoClusterBeginsBesideWhatMayBeANode(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one", "two")
	l, err := net.Listen("tcp", c.base.Peers["two"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	err = Bootstrap(within(t, patience), c.config("one"))
	if err == nil || !strings.Contains(err.Error(), "accepts connections at "+c.base.Peers["two"]) {
		t.Errorf("a cluster begins with %v", err)
	}
}

// A node whose directory cannot be made is not added.
func TestANodeWithoutADirectoryIsNotAdded(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one", "two")
	if err := Bootstrap(within(t, patience), c.config("one")); err != nil {
		t.Fatal(err)
	}
	c.start("one")
	c.leader()
	cfg := c.config("two")
	file := filepath.Join(c.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Dir = filepath.Join(file, "two")
	if err := Add(within(t, patience), cfg); err == nil {
		t.Error("it was added")
	}
	if all := c.members(); len(all) != 1 {
		t.Errorf("the members are %+v", all)
	}
}

// A snapshot that cannot be written is a problem of the node, which ends when it can be.
func TestASnapshotThatCannotBeWrittenIsAProblem(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one")
	c.begin()
	n := c.nodes["one"]
	snapshots := filepath.Join(c.dir, "one", "snapshots")
	err := errors.Join(mark(t, n), os.RemoveAll(snapshots), os.WriteFile(snapshots, nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.raft.Snapshot().Error(); err == nil {
		t.Fatal("a snapshot was written into a file")
	}
	var limited *election.LimitedError
	if err := n.healthy(); !errors.As(err, &limited) || !strings.Contains(err.Error(), "cannot write a snapshot") {
		t.Errorf("healthy: %v", err)
	}
	eventually(t, "its trouble is told", patience, func() bool { return strings.Contains(c.trouble("one"), "cannot write a snapshot") })
	if err := errors.Join(os.Remove(snapshots), os.Mkdir(snapshots, 0o700)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the snapshot is taken again", patience, func() bool { return n.healthy() == nil && c.trouble("one") == "" })
}
