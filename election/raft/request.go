package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/election/raft/state"
)

// operation is what a node can be asked for. Each is a path of a request over HTTP.
type operation string

const (
	// Only the leader answers these; other nodes pass them on.
	opApply   operation = "apply"   // state.Command to state.Outcome
	opRead    operation = "read"    // readRequest to state.View
	opAdd     operation = "add"     // Member to joined
	opPromote operation = "promote" // Member to nothing
	opRemove  operation = "remove"  // Member to nothing
	opMembers operation = "members" // nothing to []Member
	// Each node answers these of itself.
	opChanges operation = "changes" // changesRequest to state.Delta
	opSelf    operation = "self"    // nothing to NodeStatus
)

type request struct {
	op operation
	in any
}

type readRequest struct {
	Space string `json:"space"`
	Key   string `json:"key"`
}

// changesRequest asks for what has changed in a space. It is answered when there is something. If
// First is set, it asks for everything, confirmed by the leader.
type changesRequest struct {
	Space string `json:"space"`
	First bool   `json:"first"`
	Since uint64 `json:"since"`
}

// replica is what a store works on: this proxy's own node, or a cluster that it is not part of.
type replica interface {
	// call has the leader answer a request, which it may be sent several times.
	call(ctx context.Context, r request, into any) error
	changes(ctx context.Context, r changesRequest) (state.Delta, error)
	// healthy returns what is wrong with this proxy's own node, nil if there is none.
	healthy() error
	close() error
}

var (
	errNoLeader  = errors.New("raft has no leader")
	errNotLeader = errors.New("the node does not lead")
	// errOtherCluster: another address of the peers leads to the right one.
	errOtherCluster = errors.New("the node is of another cluster. Correct its address in election.raft.peers")
)

// refusal is an answer that does not change when the request is sent again.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

// stoppedError says that the node that was asked takes no part any more. It is final for the proxy
// that is this node. Whoever asks from elsewhere asks another node.
type stoppedError struct{ text string }

func (s *stoppedError) Error() string { return s.text }

// final reports whether the same node would answer the same again.
func final(err error) bool {
	var refused *refusal
	var stopped *stoppedError
	return errors.As(err, &refused) || errors.As(err, &stopped)
}

const (
	// attemptTimeout bounds one attempt. A leader that does not answer is replaced meanwhile.
	attemptTimeout = 2 * time.Second
	// giveUp is when a request is no longer repeated. An election takes less.
	giveUp = 5 * time.Second
	// askTimeout bounds the question whether the others are there, within an attempt.
	askTimeout    = time.Second
	retryPause    = 20 * time.Millisecond
	maxRetryPause = 200 * time.Millisecond
)

// persist makes attempts until one is answered, the context ends, or some time has passed: giveUp if it is 0. Whatever
// is sent may be sent again: see package state.
func persist(ctx context.Context, patience time.Duration, attempt func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(patience, giveUp))
	defer cancel()
	pause := retryPause
	var last error
	for {
		one, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := attempt(one)
		cancel()
		if err == nil || final(err) {
			return err
		}
		if last == nil || ctx.Err() == nil { // the end of the context says nothing of the cause
			last = err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			if errors.Is(last, ctx.Err()) {
				return last
			}
			return fmt.Errorf("%w: %w", last, ctx.Err())
		}
		pause = min(2*pause, maxRetryPause)
	}
}
