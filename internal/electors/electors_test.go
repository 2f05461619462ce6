package electors

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/raft"
)

// denying is a service that denies everything.
type denying struct{ client }

func (denying) BumpGeneration(context.Context) (string, error) {
	return "", &elector.DeniedError{Err: errors.New("permission denied"), Remedy: "Grant it."}
}

func TestABumpThatIsDeniedSaysWhatToDo(t *testing.T) {
	t.Parallel()
	n := network{client: denying{}, name: "etcd", title: "etcd"}
	_, err := n.BumpGeneration(t.Context(), "", nil)
	if err == nil || !strings.HasPrefix(err.Error(), "permission denied. Grant it.") {
		t.Errorf("it ended with %v", err)
	}
}

func TestRaftWithoutASpareNodeIsARisk(t *testing.T) {
	t.Parallel()
	voters := func(n int) (all []raft.Member) {
		for i := range n {
			all = append(all, raft.Member{Name: fmt.Sprint(i), Voter: true})
		}
		return append(all, raft.Member{Name: "learner"})
	}
	silent := []raft.NodeAnswer{{Name: "0", Status: raft.NodeStatus{Name: "0", Leader: "0"}}, {Name: "two", Err: errors.New("refused")}}
	for _, c := range []struct {
		status raft.Status
		want   []string
	}{
		{raft.Status{Members: voters(3), Nodes: silent[:1]}, nil},
		{raft.Status{Members: voters(2), Nodes: silent[:1]}, []string{"2 of the three nodes"}},
		{raft.Status{Members: voters(3), Nodes: silent}, []string{"node two of Raft: it does not answer: refused"}},
		{raft.Status{Members: voters(1), Nodes: silent}, []string{"1 of the three nodes", "node two"}},
	} {
		found := raftRisks(c.status)
		if len(found) != len(c.want) {
			t.Errorf("%+v has the risks %+v", c.status, found)
			continue
		}
		for i, r := range found {
			if r.Kind != elector.RiskNotRedundant || !strings.Contains(r.Seen, c.want[i]) || r.Remedy == "" {
				t.Errorf("%+v has the risk %+v, not %q", c.status, r, c.want[i])
			}
		}
	}
}
