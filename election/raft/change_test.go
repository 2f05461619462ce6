package raft

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/raft/disk"
	"github.com/fencepost/fencepost/election/raft/state"
	"github.com/fencepost/fencepost/internal/ports"
)

// voter reports whether the leader counts the node.
func (c *members) voter(name string) bool {
	return slices.ContainsFunc(c.members(), func(m Member) bool { return m.Name == name && m.Voter })
}

// A process whose directory was removed under it goes on with deleted files. It is no member, whoever
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
	if err := disk.Empty(dir); err != nil {
		t.Errorf("the refused command has left something: %v", err)
	}
	// Its process could not be reached when the node was added.
	id := disk.Identity{Node: name, Disk: newID()}
	var to joined
	if err := c.leader().call(within(t, patience), request{op: opAdd, in: Member{Name: name, Disk: id.Disk, Address: c.base.Peers[name]}}, &to); err != nil {
		t.Fatal(err)
	}
	id.Cluster = to.Cluster
	if err := disk.Create(dir, id, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the old process knows that it is no member", patience, func() bool { return c.voter(name) || old.removed.Load() })
	if c.voter(name) {
		t.Fatal("the old process is a voter")
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
	if err := c.start("one").call(within(t, patience), request{op: opAdd, in: Member{Name: "two", Disk: "lost", Address: c.base.Peers["two"]}}, nil); err != nil {
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
	if err := leader.call(within(t, patience), request{op: opAdd, in: lost}, nil); err != nil {
		t.Fatal(err)
	}
	var refused *refusal
	if err := leader.call(within(t, patience), request{op: opPromote, in: lost}, nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), "four") {
		t.Errorf("a node that does not answer is promoted with %v", err)
	}
	if err := Remove(within(t, patience), c.base, "four"); err != nil {
		t.Errorf("a learner that does not answer is removed with %v", err)
	}
	if o, err := apply(within(t, patience), leader, state.Command{Op: state.Mark, Space: "test", Marker: "m"}); err != nil || o.Verdict != state.Done {
		t.Errorf("an entry ends with %+v, %v", o, err)
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

// An address of the peers that leads to a node of another cluster, with a certificate of the same authority,
// leads nobody astray: no award is made there, and nobody believes what it says of the members.
func TestANodeOfAnotherClusterIsNotBelieved(t *testing.T) {
	t.Parallel()
	c, other := newTestCluster(t), newMembers(t, "one")
	other.base.CAFile, other.base.CertFile, other.base.KeyFile = c.base.CAFile, c.base.CertFile, c.base.KeyFile
	other.begin()
	lost := c.follower().cfg.Name
	leader := c.leader().cfg.Name
	c.stop(lost)
	cfg := c.config(lost).withDefaults()
	cfg.Peers = maps.Clone(cfg.Peers)
	cfg.Peers[leader] = other.base.Peers["one"]
	cfg.giveUp = 0 // nothing else ends what goes astray
	n, err := start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.nodes[lost] = n
	eventually(t, "the node knows its leader", patience, func() bool { _, id := n.raft.LeaderWithID(); return id != "" })
	if _, id := n.raft.LeaderWithID(); named(id).Name == leader {
		if _, err := apply(within(t, patience), n, state.Command{Op: state.Mark, Space: "test", Marker: "m"}); err == nil || !strings.Contains(err.Error(), errOtherCluster.Error()) {
			t.Errorf("an entry through the wrong address ends with %v", err)
		}
	}
	for name := range c.nodes {
		if name != lost {
			c.stop(name)
		}
	}
	if n.isRemoved() {
		t.Error("a voter believes another cluster that it is no member")
	}
}

// A node that was removed and still runs keeps nobody from the others.
func TestARemovedNodeKeepsNobodyFromTheOthers(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	p := c.client(t, "p", "test")
	first := c.nodes["one"] // which is asked first, because of its name
	if err := Remove(within(t, patience), c.base, "one"); err != nil {
		t.Fatal(err)
	}
	if err := Remove(within(t, patience), c.base, "one"); err == nil || !strings.Contains(err.Error(), "not a member") {
		t.Errorf("it is removed again with %v", err)
	}
	eventually(t, "the node knows that it was removed", patience, func() bool { return first.removed.Load() })
	if err := mark(t, first); err == nil || !strings.Contains(err.Error(), "was removed from the cluster") {
		t.Errorf("an entry through the removed node ends with %v", err)
	}
	lease := acquire(t, p.Database("db"), bid("a", long))
	q := c.client(t, "q", "test") // has not asked anybody yet
	eventually(t, "another worker is told that the lease is held", patience, func() bool {
		lease, err := q.Database("db").Acquire(within(t, patience), bid("b", long))
		if err == nil {
			t.Fatalf("another worker gets %+v", lease)
		}
		return errors.Is(err, election.ErrHeld) // it may not know the leases in time
	})
	if err := p.Database("db").Renew(within(t, patience), lease); err != nil {
		t.Errorf("the holder renews with %v", err)
	}
	eventually(t, "the removed node alone says that it has stopped", patience, func() bool { // each answers within 2 s, or not at all
		status, err := Look(within(t, patience), c.base)
		if err != nil {
			t.Fatal(err)
		}
		return status.Err == nil && len(status.Members) == 2 && !slices.ContainsFunc(status.Nodes, func(n NodeAnswer) bool {
			return n.Status.Stopped != (n.Name == "one")
		})
	})
	if err := p.Database("db").Release(within(t, patience), lease, election.ReasonLeft, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := first.changes(within(t, patience), changesRequest{Space: "test"}); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("whoever waits for changes at the removed node gets %v", err)
	}
}

// A node that is cut off from the leader alone has its proxy's requests answered through another node.
func TestANodeThatIsCutOffFromTheLeaderAsksAnother(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	leader, cut := c.leader().cfg.Name, c.follower().cfg.Name
	for name, other := range map[string]string{leader: cut, cut: leader} {
		c.stop(name)
		cfg := c.config(name).withDefaults()
		cfg.Peers = maps.Clone(cfg.Peers)
		cfg.Peers[other] = "127.0.0.1:1" // as if nothing arrived there
		n, err := start(cfg)
		if err != nil {
			t.Fatal(err)
		}
		c.nodes[name] = n
	}
	n, lead := c.nodes[cut], c.nodes[leader]
	eventually(t, "the leader leads again, and the other node knows of none", patience, func() bool {
		if l := c.leader(); l != lead {
			to := lead
			for name, other := range c.nodes {
				if l == n && name != leader && name != cut { // n cannot hand over to a node that it does not reach
					to = other
				}
			}
			_ = l.raft.LeadershipTransferToServer(to.self().id(), to.self().recorded()).Error()
			return false
		}
		_, known := n.raft.LeaderWithID()
		return known == ""
	})
	s := newStore(n, c.config(cut).withDefaults(), "raft")
	ctx, cancel := context.WithCancel(within(t, patience))
	shown := make(chan kv.Snapshot, 100)
	watched := make(chan struct{})
	var unwatched error // of the last watch
	go func() {
		defer close(watched)
		for ctx.Err() == nil {
			unwatched = s.Watch(ctx, func(v kv.Snapshot) { shown <- v })
		}
	}()
	// A request and a watch have time limits of their own, within which a busy machine may not reach the other node.
	var err error
	eventually(t, "a request of the node is answered", patience, func() bool {
		err = s.Mark(ctx, "m", false)
		return err == nil || ctx.Err() != nil
	})
	if err != nil {
		t.Fatalf("the request ends with %v", err)
	}
	for marker := ""; marker != "m"; {
		select {
		case v := <-shown:
			marker = v.Marker
		case <-watched:
			t.Fatalf("the last watch ended with %v", unwatched)
		}
	}
	cancel()
	<-watched
}
