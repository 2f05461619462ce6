package raft

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	hraft "github.com/hashicorp/raft"
)

// joined is the answer to a node that was added.
type joined struct {
	Cluster string `json:"cluster"`
}

// membership is who the members are.
type membership struct {
	list []Member
	// index is that of the entry that says so. A change that names it is refused if there was another
	// change meanwhile.
	index uint64
}

// members returns the members, confirmed by a quorum.
func (n *node) members(ctx context.Context) (all membership, err error) {
	if err := n.confirm(ctx); err != nil {
		return all, err
	}
	index := n.raft.AppliedIndex()
	f := n.raft.GetConfiguration()
	if err := n.wait(ctx, f); err != nil {
		return all, err
	}
	for _, s := range f.Configuration().Servers {
		m := named(s.ID)
		m.Address, m.Voter, m.Leader = n.cfg.Peers[m.Name], s.Suffrage == hraft.Voter, s.ID == n.self().id()
		if m.Leader {
			m.Index = index
		}
		all.list = append(all.list, m)
	}
	all.index = f.Index()
	return all, nil
}

// named returns the member of a name; nil if there is none.
func (all membership) named(name string) *Member {
	for i := range all.list {
		if all.list[i].Name == name {
			return &all.list[i]
		}
	}
	return nil
}

// add adds a node, which gets the log and does not vote yet. A learner of that name with another
// directory makes room: it counts for nothing, and its directory may never have been made.
func (n *node) add(ctx context.Context, m Member) (joined, error) {
	if m.Name == "" || m.Disk == "" {
		return joined{}, &refusal{"the request names no directory: use the same version of Fencepost as the proxies"}
	}
	all, err := n.members(ctx)
	if err != nil {
		return joined{}, err
	}
	for _, other := range all.list {
		if other.Name != m.Name && other.Address == m.Address {
			return joined{}, &refusal{fmt.Sprintf("the address %s is that of node %s", m.Address, other.Name)}
		}
	}
	found := all.named(m.Name)
	switch {
	case found == nil:
	case found.Voter:
		return joined{}, &refusal{fmt.Sprintf("the node %s is a voter already. If it has lost its disk, run fencepost raft remove %s first", m.Name, m.Name)}
	case found.Disk != m.Disk:
		f := n.raft.RemoveServer(found.id(), all.index, enqueueTimeout)
		if err := n.wait(ctx, f); err != nil {
			return joined{}, n.leading(err)
		}
		all.index = f.Index()
	}
	f := n.raft.AddNonvoter(m.id(), m.recorded(), all.index, enqueueTimeout)
	if err := n.wait(ctx, f); err != nil {
		return joined{}, n.leading(err)
	}
	return joined{n.disk.Identity.Cluster}, nil
}

// promoteMember lets a node vote, if it has caught up.
func (n *node) promoteMember(ctx context.Context, m Member) error {
	all, err := n.members(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all.list, func(other Member) bool { return other.id() == m.id() })
	switch {
	case i < 0:
		return &refusal{fmt.Sprintf("the node %s with this directory is not a member", m.Name)}
	case all.list[i].Voter:
		return nil
	}
	if err := n.takesPart(ctx, m, n.raft.AppliedIndex()); err != nil {
		return err
	}
	all.list[i].Voter = true
	if err := n.canDecide(ctx, all.list, "with the vote of "+m.Name); err != nil {
		return err
	}
	return n.leading(n.wait(ctx, n.raft.AddVoter(m.id(), m.recorded(), all.index, enqueueTimeout)))
}

// remove removes a node, unless it has been removed already, or was added again meanwhile.
func (n *node) remove(ctx context.Context, m Member) error {
	all, err := n.members(ctx)
	if err != nil {
		return err
	}
	found := all.named(m.Name)
	if found == nil || m.Disk != "" && m.Disk != found.Disk {
		return nil
	}
	if found.Voter {
		id := found.id()
		remaining := slices.DeleteFunc(slices.Clone(all.list), func(other Member) bool { return other.id() == id })
		if !slices.ContainsFunc(remaining, func(other Member) bool { return other.Voter }) {
			return &refusal{fmt.Sprintf("the node %s is the only voter: nobody could lead without it", m.Name)}
		}
		if err := n.canDecide(ctx, remaining, "without "+m.Name); err != nil {
			return err
		}
	}
	return n.leading(n.wait(ctx, n.raft.RemoveServer(found.id(), all.index, enqueueTimeout)))
}

// canDecide refuses a change after which the members would be these, unless a majority of their
// voters takes part now: members has just had an entry committed, and each of these has it. A change
// is in force before it is committed: if no majority of the new voters is running, it can be neither
// committed nor taken back, and no one leads any more.
func (n *node) canDecide(ctx context.Context, members []Member, after string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	index := n.raft.AppliedIndex()
	voters := slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return !m.Voter })
	answers := make(chan string, len(voters)) // "", or who does not take part
	for _, m := range voters {
		n.wg.Go(func() {
			if n.takesPart(ctx, m, index) == nil {
				m.Name = ""
			}
			answers <- m.Name
		})
	}
	there := 0
	var silent []string
	for range voters {
		if name := <-answers; name != "" {
			silent = append(silent, name)
		} else if there++; 2*there > len(voters) {
			return nil
		}
	}
	slices.Sort(silent)
	return &refusal{fmt.Sprintf("%s nobody could lead, because too many of the voters do not answer, or do not take entries: %s. Start or repair them first, or remove those that are lost",
		after, strings.Join(silent, ", "))}
}

// takesPart returns nil when a member, with the directory that was made for it, has written every entry
// up to an index. One that only answers could not help to commit anything.
func (n *node) takesPart(ctx context.Context, m Member, index uint64) error {
	if m.id() == n.self().id() {
		return n.disk.Problem()
	}
	for {
		var s NodeStatus
		if err := n.others.ask(ctx, m.Name, request{op: opSelf}, false, &s); err != nil {
			return err
		}
		switch {
		case s.Stopped || s.Disk != m.Disk || s.Problem != "":
			return fmt.Errorf("the node %s does not take part", m.Name)
		case s.Last >= index:
			return nil
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
