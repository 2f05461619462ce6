package raft

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/raft/disk"
	"github.com/fencepost/fencepost/internal/ports"
)

// voter reports whether the leader counts the node.
func (c *members) voter(name string) bool {
	return slices.ContainsFunc(c.members(), func(m Member) bool { return m.Name == name && m.Voter })
}

// A process whose directory was removed under it continues with deleted files. It is no member, whoever
// is added under its name, and what was added becomes a voter when it starts.
func TestOnlyTheDirectoryThatWasAddedBecomesAVoter(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	old := c.follower()
	name := old.cfg.Name
	if err := Remove(within(t, patience), c.base, name); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.dir, name)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := Add(within(t, patience), c.config(name)); err == nil || !strings.Contains(err.Error(), "stop its proxy first") {
		t.Fatalf("it is added, while its process runs, with %v", err)
	}
	// Its process could not be reached when the node was added.
	id := disk.Identity{Node: name, Disk: newID()}
	var to joined
	if err := c.all.call(within(t, patience), request{op: opAdd, in: Member{Name: name, Disk: id.Disk, Address: c.base.Peers[name]}}, &to); err != nil {
		t.Fatal(err)
	}
	id.Cluster = to.Cluster
	if err := disk.Create(dir, id, nil); err != nil {
		t.Fatal(err)
	}
	var refused *refusal
	if err := c.all.call(within(t, patience), request{op: opPromote, in: old.self()}, nil); !errors.As(err, &refused) || c.voter(name) {
		t.Fatalf("the old process is given a vote with %v", err)
	}
	c.stop(name)
	c.start(name)
	c.allVote()
}

// A learner whose directory was never made, or was lost, makes room for the next one of its name.
func TestALearnerIsAddedAgain(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one", "two")
	if err := Bootstrap(within(t, patience), c.config("one")); err != nil {
		t.Fatal(err)
	}
	c.start("one")
	if err := c.all.call(within(t, patience), request{op: opAdd, in: Member{Name: "two", Disk: "lost", Address: c.base.Peers["two"]}}, nil); err != nil {
		t.Fatal(err)
	}
	c.add("two")
	if all := c.members(); len(all) != 2 {
		t.Errorf("the members are %+v", all)
	}
	c.start("two")
	c.allVote()
}

// The members know a node by its new address when it has started there, and its former address may be
// that of another node.
func TestANodeHasAnotherAddress(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one", "two")
	c.begin()
	c.stopAll()
	former, now := c.base.Peers["two"], ports.For(t).Address()
	c.base.Peers["two"], c.base.Peers["three"] = now, former
	c.connect()
	c.startAll()
	eventually(t, "the members know the new address", patience, func() bool {
		return slices.ContainsFunc(c.members(), func(m Member) bool { return m.Name == "two" && m.Address == now && m.Voter })
	})
	c.add("three")
	c.start("three")
	c.allVote()
}

// With one of three nodes gone, no change is made that the other two could neither commit nor take
// back.
func TestAChangeThatCouldNotBeCommittedIsRefused(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	gone := c.follower().cfg.Name
	c.stop(gone)
	leader := c.leader()
	for name := range c.nodes {
		if err := Remove(within(t, patience), c.base, name); err == nil || !strings.Contains(err.Error(), "without "+name+" nobody could lead") || !strings.Contains(err.Error(), gone) {
			t.Fatalf("%s is removed with %v", name, err)
		}
	}
	lost := Member{Name: "four", Disk: "lost", Address: "127.0.0.1:1"}
	if err := c.all.call(within(t, patience), request{op: opAdd, in: lost}, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.all.ask(within(t, patience), leader.cfg.Name, request{op: opPromote, in: lost}, false, nil); err == nil || !strings.Contains(err.Error(), "four") {
		t.Errorf("a node that does not answer is promoted with %v", err)
	}
	if err := Remove(within(t, patience), c.base, "four"); err != nil {
		t.Errorf("a learner that does not answer is removed with %v", err)
	}
	if err := c.mark(within(t, patience)); err != nil {
		t.Errorf("an entry ends with %v", err)
	}
	if err := Remove(within(t, patience), c.base, gone); err != nil {
		t.Errorf("the node that is gone is removed with %v", err)
	}
	c.stop(leader.cfg.Name)
	err := Remove(within(t, 3*time.Second), c.base, gone)
	if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "may have been carried out") {
		t.Errorf("without a leader the question for the members ends with %v", err)
	}
	err = administer(within(t, 3*time.Second), c.base, request{op: opRemove, in: Member{Name: gone}}, nil)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "may have been carried out all the same: run fencepost raft status") {
		t.Errorf("a change whose outcome is unknown ends with %v", err)
	}
}

// A node that was removed and still runs keeps no one from the others.
func TestARemovedNodeKeepsNoOneFromTheOthers(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	p := c.client(t, "p", "test")
	if err := Remove(within(t, patience), c.base, "one"); err != nil { // which is asked first, because of its name
		t.Fatal(err)
	}
	if err := Remove(within(t, patience), c.base, "one"); err == nil || !strings.Contains(err.Error(), "not a member") {
		t.Errorf("it is removed again with %v", err)
	}
	lease := acquire(t, p.Database("db"), bid("a", long))
	q := c.client(t, "q", "test") // has not asked anyone yet
	eventually(t, "another worker is told that the lease is held", patience, func() bool {
		lease, err := q.Database("db").Acquire(within(t, patience), bid("b", long))
		if err == nil {
			t.Fatalf("another worker gets %+v", lease)
		}
		return errors.Is(err, elector.ErrHeld) // it may not know the leases in time
	})
	if err := p.Database("db").Renew(within(t, patience), lease); err != nil {
		t.Errorf("the holder renews with %v", err)
	}
	eventually(t, "the removed node is no member, and that is said", patience, func() bool { return strings.Contains(c.trouble("one"), "runs and is no member") })
	if err := p.Database("db").Release(within(t, patience), lease, elector.ReasonLeft, 0); err != nil {
		t.Fatal(err)
	}
}
