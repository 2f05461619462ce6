package raft

import (
	"errors"
	"strings"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"
)

// A node that was away for long, and hears heartbeats again, takes entries at once: Raft's library itself
// would wait for up to ten seconds by then.
func TestANodeThatComesBackTakesEntriesAtOnce(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	leader, back := c.leader(), c.follower()
	name := back.cfg.Name
	c.deaf[name].Store(true)
	for begun := time.Now(); time.Since(begun) < 12*time.Second; { // after which the library has doubled its pause ten times
		if err := mark(t, leader); err != nil {
			t.Fatal(err)
		}
		time.Sleep(heartbeat)
	}
	if back.raft.LastIndex() >= leader.raft.AppliedIndex() {
		t.Fatal("the node has got entries")
	}
	c.deaf[name].Store(false)
	want, begun := leader.raft.AppliedIndex(), time.Now()
	eventually(t, "it has all entries", patience, func() bool { return back.raft.LastIndex() >= want })
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// What is sent to a node is not repeated for ever: not to one that was removed, nor in an earlier term.
func TestEntriesAreNotSentWithoutUse(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	leader, deaf := c.leader(), c.follower().self()
	s := newSteady(leader.ctx, leader.transport, leader.cfg)
	s.lost = func(string) bool { return true }
	send := func(to hraft.ServerID, term uint64) error {
		ended := make(chan error, 1)
		go func() {
			args := &hraft.AppendEntriesRequest{Term: term, Entries: []*hraft.Log{{Index: 1}}}
			ended <- s.AppendEntries(to, "", args, &hraft.AppendEntriesResponse{})
		}()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("it goes on")
		}
	}
	if err := send(deaf.id(), leader.raft.CurrentTerm()); !errors.Is(err, errCut) {
		t.Errorf("before Raft has started: %v", err)
	}
	s.raft.Store(leader.raft)
	if err := send(deaf.id(), leader.raft.CurrentTerm()-1); !errors.Is(err, errCut) {
		t.Errorf("in an earlier term: %v", err)
	}
	if err := send(Member{Name: "removed", Disk: "d"}.id(), leader.raft.CurrentTerm()); !errors.Is(err, errCut) {
		t.Errorf("to a node that was removed: %v", err)
	}
}

// A voter that hears heartbeats and has not got what was committed is not fine: with another node lost,
// nothing could be awarded. So it does not count for a change, although it answers requests.
func TestAVoterThatIsBehindIsNotFine(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	leader, behind := c.leader(), c.follower().cfg.Name
	eventually(t, "it is fine", patience, func() bool { return c.trouble(behind) == "" })
	c.deaf[behind].Store(true)
	if err := mark(t, leader); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is behind", patience, func() bool {
		return strings.Contains(c.trouble(behind), "it is behind: it has not applied ")
	})
	for name := range c.nodes {
		if name == behind {
			continue
		}
		if err := Remove(within(t, patience), c.base, name); err == nil || !strings.Contains(err.Error(), "without "+name+" nobody could lead") || !strings.Contains(err.Error(), behind) {
			t.Errorf("%s is removed with %v", name, err)
		}
	}
	c.deaf[behind].Store(false)
	eventually(t, "it has caught up", patience, func() bool { return c.trouble(behind) == "" })
	c.deaf[behind].Store(true)
	eventually(t, "an entry is committed without it", patience, func() bool { return mark(t, c.leader()) == nil })
	if err := Remove(within(t, patience), c.base, behind); err != nil {
		t.Errorf("the node that takes no entries is removed with %v", err)
	}
}
