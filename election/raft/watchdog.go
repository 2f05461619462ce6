package raft

import (
	"context"
	"fmt"
	"time"

	hraft "github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election"
)

// retrySnapshotAfter is after how many heartbeats a snapshot that could not be written is taken again.
const retrySnapshotAfter = 5

// hiddenAfter is after how many failures in a row a node counts as unreachable at its own address.
const hiddenAfter = 3

// every does something again and again, until the node closes.
func (n *node) every(pause time.Duration, do func()) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			do()
		case <-n.ctx.Done():
			return
		}
	}
}

// watchDisk cuts the node's connections to the others while nothing can be written. Raft's library goes on
// to send heartbeats meanwhile, so that a leader would be followed which can award nothing. It returns when
// the node closes.
func (n *node) watchDisk() {
	n.every(n.cfg.Heartbeat/2, func() {
		if cut := n.disk.Stalled() || n.cfg.stalls != nil && n.cfg.stalls(); n.port.cut.Swap(cut) != cut {
			n.log.Warn("the other nodes of raft hear nothing of this one while its directory cannot be written", zap.Bool("stalled", cut), zap.Error(n.disk.Problem()))
		}
	})
}

// watchAddress asks this node for its status at its own address, as the others do. While nobody is there,
// the node does not keep the lead: everybody's requests go to the leader's address. It returns when the node
// closes.
func (n *node) watchAddress() {
	itself := n.others.apart()
	failures := 0
	n.every(n.cfg.Heartbeat, func() {
		err := n.askSelf(itself)
		if err == nil {
			failures = 0
			n.hidden.Store(nil)
			return
		}
		if failures++; failures < hiddenAfter {
			return
		}
		n.hidden.Store(&err)
		if n.raft.State() == hraft.Leader {
			n.log.Warn("this node of raft leads, and cannot be reached: another one is to lead", zap.Error(err))
			n.handOver()
		}
	})
}

// retrySnapshots takes a snapshot again that could not be written: Raft's library would do so after some
// minutes, and the problem would be told for so long. It returns when the node closes.
func (n *node) retrySnapshots() {
	n.every(retrySnapshotAfter*n.cfg.Heartbeat, func() {
		if own, err := n.disk.SnapshotProblem(); err == nil || !own {
			return
		}
		if err := n.wait(n.ctx, n.raft.Snapshot()); err != nil {
			n.log.Debug("there is no snapshot yet", zap.Error(err))
		}
	})
}

// askSelf returns nil if this node answers at its own address, on a new connection: one that is kept shows
// neither that the listener is gone nor that others no longer accept the node's certificate.
func (n *node) askSelf(itself *cluster) error {
	ctx, cancel := context.WithTimeout(n.ctx, askTimeout)
	defer cancel()
	defer itself.client.CloseIdleConnections()
	var s NodeStatus
	if err := itself.ask(ctx, n.cfg.Name, request{op: opSelf}, anywhere, &s); err != nil {
		return err
	}
	if s.Disk != n.disk.Identity.Disk {
		return fmt.Errorf("the node %s answers there", s.Name)
	}
	return nil
}

// healthy implements replica. A node that cannot write acknowledges nothing, and the cluster is one
// node closer to standing still.
func (n *node) healthy() error {
	if err := n.disk.Problem(); err != nil {
		return &election.LimitedError{Err: fmt.Errorf("the node %s of Raft cannot write its directory: %w", n.cfg.Name, err), Remedy: DirectoryRemedy}
	}
	if _, err := n.disk.SnapshotProblem(); err != nil {
		return &election.LimitedError{Err: fmt.Errorf("the node %s of Raft cannot write a snapshot: %w", n.cfg.Name, err), Remedy: DirectoryRemedy}
	}
	if err := n.hidden.Load(); err != nil {
		return &election.LimitedError{
			Err:    fmt.Errorf("the node %s of Raft cannot be reached at its address %s: %w", n.cfg.Name, n.cfg.Peers[n.cfg.Name], *err),
			Remedy: "Correct election.raft.listen, or the address of this node in election.raft.peers, here and everywhere, or let connections pass.",
		}
	}
	return nil
}

// DirectoryRemedy is what an operator can do about a node that cannot write its directory.
const DirectoryRemedy = "Make room on its disk, or remove the node and add it again with another one."
