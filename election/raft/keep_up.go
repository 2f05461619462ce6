package raft

import (
	"context"
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/raft/state"
)

// silentAfter is for how many heartbeats a node has no leader before it asks the others whether it
// is a member.
const silentAfter = 5

// keepUp asks for this node's vote when it has caught up, if it has none yet, and finds out whether it
// was removed. It returns when the node closes, or is no member any more.
func (n *node) keepUp() {
	ticker := time.NewTicker(n.cfg.Heartbeat)
	defer ticker.Stop()
	silent := 0 // for how many heartbeats there was no leader
	for {
		select {
		case <-ticker.C:
		case <-n.ctx.Done():
			return
		}
		if _, leader := n.raft.LeaderWithID(); leader != "" {
			silent = 0
			n.vote()
			continue
		}
		if silent++; silent%silentAfter == 0 && n.isRemoved() {
			n.removed.Store(true)
			err := n.stopped()
			n.machine.end(err)
			n.halt(err)
			return
		}
	}
}

// vote asks for this node's vote, if it has none yet.
func (n *node) vote() {
	f := n.raft.GetConfiguration()
	if n.wait(n.ctx, f) != nil {
		return // it has stopped, which is said elsewhere
	}
	for _, s := range f.Configuration().Servers {
		if s.ID == n.self().id() && s.Suffrage != hraft.Voter {
			if err := n.askToVote(); err != nil {
				n.log.Debug("this node does not vote yet", zap.Error(err))
			}
		}
	}
}

// isRemoved asks the others, because Raft no longer tells a node anything once it was removed.
func (n *node) isRemoved() bool {
	var all []Member
	if err := n.others.call(n.ctx, request{op: opMembers}, &all); err != nil {
		return false
	}
	return !slices.ContainsFunc(all, func(m Member) bool { return m.id() == n.self().id() })
}

// askToVote returns nil when this node votes.
func (n *node) askToVote() error {
	ctx, cancel := context.WithTimeout(n.ctx, giveUp)
	defer cancel()
	var v state.View
	if err := n.call(ctx, request{op: opRead, in: readRequest{}}, &v); err != nil {
		return err
	}
	if err := n.machine.await(ctx, func(s *state.State) bool { return s.Index >= v.Index }); err != nil {
		return err
	}
	return n.call(ctx, request{op: opPromote, in: n.self()}, nil)
}
