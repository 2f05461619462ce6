package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/election/raft"
)

// What raft status says of a node beside the table, which makes it exit with 1.
func TestRaftStatusSaysWhatIsWrongWithANode(t *testing.T) {
	t.Parallel()
	member := []raft.Member{{Name: "a", Disk: "1", Voter: true}}
	for what, c := range map[string]struct {
		members []raft.Member
		node    raft.NodeAnswer
		want    string
	}{
		"all is well":                   {member, raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Disk: "1"}}, ""},
		"it does not answer":            {member, raft.NodeAnswer{Name: "a", Err: errors.New("refused")}, "node a: refused"},
		"it has stopped":                {member, raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Disk: "1", Stopped: true, State: "Shutdown (upgrade)"}}, "takes no part: Shutdown (upgrade)"},
		"it goes on with deleted files": {member, raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Disk: "0"}}, "restart its proxy"},
		"it is of another cluster":      {nil, raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Disk: "1"}}, "it runs and is no member"},
		"it was removed":                {nil, raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Disk: "1", Stopped: true}}, ""},
		"the peers do not name it":      {append(member, raft.Member{Name: "b"}), raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Disk: "1"}}, "node b: election.raft.peers does not name it"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			err := showRaft(io.Discard, raft.Status{Members: c.members, Nodes: []raft.NodeAnswer{c.node}}, false)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("it ends with %v, want %q", err, c.want)
			}
		})
	}
}
