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
			all, err := n.members(ctx)
			return all.list, err
		}
	}
	return nil, &refusal{fmt.Sprintf("unknown request %q", r.op)}
}

// upgradeNodes ends the refusal of what this version does not understand.
const upgradeNodes = ". If it comes from a newer version of Fencepost, upgrade all nodes of raft first"

// apply makes a command an entry of the log. Every node applies the same entries, and ends when it cannot:
// what this version does not know must therefore never be one.
func (n *node) apply(ctx context.Context, c state.Command) (state.Outcome, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return state.Outcome{}, fmt.Errorf("encode a command: %w", err)
	}
	if _, err := state.Parse(text); err != nil {
		return state.Outcome{}, &refusal{"the command cannot be carried out: " + err.Error() + upgradeNodes}
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

// prove makes an entry that says nothing. That a quorum has it proves that this node leads. VerifyLeader
// would prove no more, and in 1.8.0 a Raft that is ending may never answer it.
func (n *node) prove(ctx context.Context) error {
	return leading(n.wait(ctx, n.raft.Barrier(enqueueTimeout)))
}

// leading names errors of Raft's library that mean that this node does not lead.
func leading(err error) error {
	if errors.Is(err, hraft.ErrNotLeader) || errors.Is(err, hraft.ErrLeadershipTransferInProgress) {
		return fmt.Errorf("%w: %w", errNotLeader, err)
	}
	return err
}
