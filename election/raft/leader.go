package raft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/fencepost/fencepost/election/raft/state"
)

// enqueueTimeout is how long Raft may take to accept an entry.
const enqueueTimeout = time.Second

// Member is a node of the cluster.
type Member struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
	// Voter: the node counts for the quorum. One that was added votes when it has caught up.
	Voter  bool `json:"voter,omitempty"`
	Leader bool `json:"leader,omitempty"`
}

// joined is the answer to a node that was added.
type joined struct {
	Cluster string `json:"cluster"`
}

// lead answers a request as the leader. If this node does not lead, Raft's library says so, and
// the request is not carried out; if it has lost the lead meanwhile, the outcome is unknown.
func (n *node) lead(ctx context.Context, r request, into any) error {
	answer, err := n.answer(ctx, r)
	switch {
	case err != nil:
		return err
	case into == nil:
		return nil
	}
	// What is given is what would be sent, so that nothing is shared with the state.
	text, err := json.Marshal(answer)
	if err != nil {
		return fmt.Errorf("encode an answer: %w", err)
	}
	return json.Unmarshal(text, into)
}

func (n *node) answer(ctx context.Context, r request) (any, error) {
	switch in := r.in.(type) {
	case state.Command:
		return n.apply(ctx, in)
	case readRequest:
		return n.read(ctx, in)
	case Member:
		switch r.op {
		case opAdd:
			return n.add(ctx, in)
		case opPromote:
			return nil, n.promoteMember(ctx, in)
		case opRemove:
			return nil, n.remove(ctx, in)
		}
	case nil:
		if r.op == opMembers {
			return n.members(ctx)
		}
	}
	return nil, &refusal{fmt.Sprintf("unknown request %q", r.op)}
}

// apply makes a command an entry of the log.
func (n *node) apply(ctx context.Context, c state.Command) (state.Outcome, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return state.Outcome{}, fmt.Errorf("encode a command: %w", err)
	}
	f := n.raft.Apply(text, enqueueTimeout)
	if err := n.wait(ctx, f); err != nil {
		return state.Outcome{}, leading(err)
	}
	switch answer := f.Response().(type) {
	case state.Outcome:
		return answer, nil
	case error:
		return state.Outcome{}, answer
	default:
		return state.Outcome{}, fmt.Errorf("the state machine answered %T", answer)
	}
}

// read returns what stands under a key, with everything that was committed before.
func (n *node) read(ctx context.Context, r readRequest) (v state.View, err error) {
	if err := n.confirm(ctx); err != nil {
		return v, err
	}
	_, err = n.machine.look(func(s *state.State) { v = s.View(r.Space, r.Key) })
	return v, err
}

// confirmation is one proof that this node leads, for all who have asked for it before it began.
type confirmation struct {
	done chan struct{}
	err  error // read it after done
}

// confirm returns nil if this node still leads, and has applied everything that was committed before
// the call. Calls that wait at the same time share a proof, because each costs an entry.
func (n *node) confirm(ctx context.Context) error {
	n.mu.Lock()
	c := n.next
	if c == nil {
		c = &confirmation{done: make(chan struct{})}
		n.next = c
		n.wg.Go(func() { n.confirmNext(c) })
	}
	n.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// confirmNext makes a proof when the one before it is there.
func (n *node) confirmNext(c *confirmation) {
	n.confirming.Lock()
	defer n.confirming.Unlock()
	n.mu.Lock()
	n.next = nil
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(n.ctx, attemptTimeout)
	defer cancel()
	c.err = n.prove(ctx)
	close(c.done)
}

func (n *node) prove(ctx context.Context) error {
	if err := n.wait(ctx, n.raft.VerifyLeader()); err != nil {
		return leading(err)
	}
	return leading(n.wait(ctx, n.raft.Barrier(enqueueTimeout)))
}

// leading names errors of Raft's library that mean that this node does not lead.
func leading(err error) error {
	if errors.Is(err, hraft.ErrNotLeader) || errors.Is(err, hraft.ErrLeadershipTransferInProgress) {
		return fmt.Errorf("%w: %w", errNotLeader, err)
	}
	return err
}

// servers returns the members, confirmed by a quorum.
func (n *node) servers(ctx context.Context) ([]hraft.Server, error) {
	if err := n.confirm(ctx); err != nil {
		return nil, err
	}
	f := n.raft.GetConfiguration()
	if err := n.wait(ctx, f); err != nil {
		return nil, err
	}
	return f.Configuration().Servers, nil
}

func (n *node) members(ctx context.Context) (all []Member, err error) {
	servers, err := n.servers(ctx)
	for _, s := range servers {
		all = append(all, Member{Name: string(s.ID), Address: string(s.Address), Voter: s.Suffrage == hraft.Voter, Leader: string(s.ID) == n.cfg.Name})
	}
	return all, err
}

// member returns the member of a name; nil if there is none.
func (n *node) member(ctx context.Context, name string) (found *Member, all []Member, err error) {
	all, err = n.members(ctx)
	for i := range all {
		if all[i].Name == name {
			found = &all[i]
		}
	}
	return found, all, err
}

// add adds a node, which gets the log and does not vote yet.
func (n *node) add(ctx context.Context, m Member) (joined, error) {
	found, all, err := n.member(ctx, m.Name)
	if err != nil {
		return joined{}, err
	}
	if found != nil && found.Voter {
		return joined{}, &refusal{fmt.Sprintf("the node %s is a voter already. If it has lost its disk, run fencepost raft remove %s first", m.Name, m.Name)}
	}
	for _, other := range all {
		if other.Name != m.Name && other.Address == m.Address {
			return joined{}, &refusal{fmt.Sprintf("the address %s is that of node %s", m.Address, other.Name)}
		}
	}
	f := n.raft.AddNonvoter(hraft.ServerID(m.Name), hraft.ServerAddress(m.Address), 0, enqueueTimeout)
	if err := n.wait(ctx, f); err != nil {
		return joined{}, leading(err)
	}
	return joined{n.disk.Identity.Cluster}, nil
}

// promoteMember lets a node vote that has caught up.
func (n *node) promoteMember(ctx context.Context, m Member) error {
	found, _, err := n.member(ctx, m.Name)
	switch {
	case err != nil:
		return err
	case found == nil:
		return &refusal{fmt.Sprintf("the node %s is not a member", m.Name)}
	case found.Voter:
		return nil
	}
	return leading(n.wait(ctx, n.raft.AddVoter(hraft.ServerID(m.Name), hraft.ServerAddress(found.Address), 0, enqueueTimeout)))
}

// remove removes a node, unless it has been removed already. Afterwards the node of this name is
// another one.
func (n *node) remove(ctx context.Context, m Member) error {
	found, all, err := n.member(ctx, m.Name)
	if err != nil || found == nil {
		return err
	}
	others := 0
	for _, other := range all {
		if other.Voter && other.Name != m.Name {
			others++
		}
	}
	if others == 0 {
		return &refusal{fmt.Sprintf("the node %s is the only voter: nobody could lead without it", m.Name)}
	}
	return leading(n.wait(ctx, n.raft.RemoveServer(hraft.ServerID(m.Name), 0, enqueueTimeout)))
}
