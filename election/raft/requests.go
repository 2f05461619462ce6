package raft

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// operation is what a node can be asked for. Each is a path of a request over HTTP.
type operation string

const (
	// Only the leader answers these; other nodes pass them on.
	opApply   operation = "apply"   // state.Command to state.Outcome
	opRead    operation = "read"    // readRequest to state.View
	opChanges operation = "changes" // changesRequest to state.Delta
	opAdd     operation = "add"     // Member to joined
	opPromote operation = "promote" // Member to nothing
	opRemove  operation = "remove"  // Member to nothing
	opMembers operation = "members" // nothing to []Member
	// Each node answers this of itself.
	opSelf operation = "self" // nothing to NodeStatus
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
// First is set, it asks for everything.
type changesRequest struct {
	Space string `json:"space"`
	First bool   `json:"first"`
	Since uint64 `json:"since"`
}

// refusal is an answer that does not change when the request is sent again.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

const (
	// attemptTimeout bounds one attempt. A leader that does not answer is replaced meanwhile.
	attemptTimeout = 2 * time.Second
	// giveUp is when a request is no longer repeated. An election takes less.
	giveUp = 5 * time.Second
	// askTimeout bounds the question whether the others are running, within an attempt.
	askTimeout    = time.Second
	retryPause    = 20 * time.Millisecond
	maxRetryPause = 200 * time.Millisecond
)

// persist makes attempts until one is answered, the context ends, or patience is over. Whatever
// is sent may be sent again: see package state.
func persist(ctx context.Context, patience time.Duration, attempt func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pause := retryPause
	var last error
	for {
		one, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := attempt(one)
		cancel()
		var refused *refusal
		if err == nil || errors.As(err, &refused) {
			return err
		}
		if last == nil || ctx.Err() == nil { // the end of the context says nothing of the cause
			last = err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", last, ctx.Err())
		}
		pause = min(2*pause, maxRetryPause)
	}
}
