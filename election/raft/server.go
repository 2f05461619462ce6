package raft

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/fencepost/fencepost/election/raft/state"
)

const (
	// pathPrefix precedes the operation in the path of a request.
	pathPrefix = "/v1/"
	// onwardHeader says that a request may be passed on to the leader.
	onwardHeader = "Fencepost-Onward"
	// mostRequest bounds what a request may contain, in bytes.
	mostRequest = 1 << 20
	// mostWait is how long a request for changes is held back if there are none.
	mostWait = 2 * time.Second
	// mostStreams is how many requests one connection may have under way.
	mostStreams = 1000
	// requestTimeout bounds the TLS handshake of a connection, and the time until a request has come whole.
	requestTimeout = 5 * time.Second
	// enqueueTimeout is how long Raft may take to accept an entry.
	enqueueTimeout = time.Second
	// upgradeNodes ends the refusal of what this version does not understand.
	upgradeNodes = ". If it comes from a newer version of Fencepost, upgrade all nodes of raft first"
)

// NodeStatus is what a node says of itself.
type NodeStatus struct {
	Name    string `json:"name"`
	Disk    string `json:"disk"`  // the random part of the identity of its directory
	State   string `json:"state"` // Raft's: Leader, Follower, Candidate or Shutdown; and why it has stopped
	Stopped bool   `json:"stopped,omitempty"`
	Problem string `json:"problem,omitempty"` // why its directory could not be written
	Leader  string `json:"leader,omitempty"`  // the name of the leader that it follows; "" if it knows none
	Applied uint64 `json:"applied"`           // the index of the last entry that it has applied
	Last    uint64 `json:"last"`              // the index of the last entry that it has
}

// fault is the body of an answer that is an error.
type fault struct {
	Error   string `json:"error"`
	Refused bool   `json:"refused,omitempty"` // sending it again changes nothing
}

func (n *node) newServer(raft *stream) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	return &http.Server{
		Handler: http.HandlerFunc(n.handle), ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout, WriteTimeout: 2 * requestTimeout, IdleTimeout: time.Minute,
		BaseContext:  func(net.Listener) context.Context { return n.ctx },
		ErrorLog:     log.New(io.Discard, "", 0), // clients that go away
		Protocols:    protocols,
		HTTP2:        &http.HTTP2Config{MaxConcurrentStreams: mostStreams, SendPingTimeout: 10 * time.Second, PingTimeout: streamTimeout},
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){n.protocol(): raft.take},
	}
}

// handle answers a request of a proxy or of a command.
func (n *node) handle(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostRequest))
	var answer any
	if err == nil {
		// A little less than the client waits, so that it gets the cause.
		ctx, cancel := context.WithTimeout(r.Context(), attemptTimeout*4/5)
		defer cancel()
		op := operation(r.URL.Path[min(len(pathPrefix), len(r.URL.Path)):])
		if leader := n.leader(); op != opSelf && leader != "" && leader != n.cfg.Name && r.Header.Get(onwardHeader) != "" {
			var passed json.RawMessage
			err = n.others.ask(ctx, leader, request{op, json.RawMessage(text)}, false, &passed)
			answer = passed
		} else {
			answer, err = n.answer(ctx, op, text)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		var refused *refusal
		answer = fault{err.Error(), errors.As(err, &refused)}
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(answer) // a client that is gone needs no answer
}

// answer answers a request. If this node does not lead, Raft's library says so, and
// the request is not carried out; if it has lost the lead meanwhile, the outcome is unknown.
func (n *node) answer(ctx context.Context, op operation, text []byte) (any, error) {
	if op == opSelf {
		return n.status(), nil
	}
	if n.raft.State() != hraft.Leader {
		return nil, n.notLeader()
	}
	switch op {
	case opApply:
		return n.apply(ctx, text)
	case opRead:
		in, err := decode[readRequest](text)
		if err != nil {
			return nil, err
		}
		return n.read(ctx, in)
	case opChanges:
		in, err := decode[changesRequest](text)
		if err != nil {
			return nil, err
		}
		return n.changes(ctx, in)
	case opMembers:
		all, err := n.members(ctx)
		return all.list, err
	}
	m, err := decode[Member](text)
	if err != nil {
		return nil, err
	}
	switch op {
	case opAdd:
		return n.add(ctx, m)
	case opPromote:
		return nil, n.promoteMember(ctx, m)
	case opRemove:
		return nil, n.remove(ctx, m)
	}
	return nil, &refusal{fmt.Sprintf("unknown request %q", op) + upgradeNodes}
}

// apply makes a command an entry of the log. Every node applies the same entries, and ends when it cannot:
// what this version does not know must therefore never be one.
func (n *node) apply(ctx context.Context, text []byte) (state.Outcome, error) {
	if _, err := state.Parse(text); err != nil {
		return state.Outcome{}, &refusal{"the command cannot be carried out: " + err.Error() + upgradeNodes}
	}
	f := n.raft.Apply(text, enqueueTimeout)
	if err := n.wait(ctx, f); err != nil {
		return state.Outcome{}, n.leading(err)
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

// read returns what is stored under a key, with everything that was committed before.
func (n *node) read(ctx context.Context, r readRequest) (v state.View, err error) {
	if err := n.confirm(ctx); err != nil {
		return v, err
	}
	_, err = n.machine.look(func(s *state.State) { v = s.View(r.Space, r.Key) })
	return v, err
}

// changes returns what has changed, or nothing after a while.
func (n *node) changes(ctx context.Context, r changesRequest) (d state.Delta, err error) {
	if r.First {
		if err := n.confirm(ctx); err != nil {
			return d, err
		}
		_, err = n.machine.look(func(s *state.State) { d = s.Since(r.Space, 0) })
		return d, err
	}
	err = n.machine.await(ctx, func(s *state.State) bool {
		d = s.Since(r.Space, r.Since)
		return d.Upto > r.Since
	})
	if errors.Is(err, context.DeadlineExceeded) && n.raft.State() == hraft.Leader {
		return state.Delta{Upto: r.Since}, nil
	}
	return d, err
}

// confirm returns nil if this node still leads, and has applied everything that was committed before the call. It
// makes an entry that says nothing: that a quorum has it proves that. VerifyLeader would prove no more, and in 1.8.0
// a Raft that is ending may never answer it.
func (n *node) confirm(ctx context.Context) error {
	return n.leading(n.wait(ctx, n.raft.Barrier(enqueueTimeout)))
}

// leading names errors of Raft's library that mean that this node does not lead.
func (n *node) leading(err error) error {
	if errors.Is(err, hraft.ErrNotLeader) || errors.Is(err, hraft.ErrLeadershipTransferInProgress) {
		return n.notLeader()
	}
	return err
}

// leader returns the name of the leader; "" if this node knows none.
func (n *node) leader() string {
	_, id := n.raft.LeaderWithID()
	return named(id).Name
}

// notLeader says why this node does not answer what only the leader answers.
func (n *node) notLeader() error {
	if err := n.stopped(); err != nil {
		return err
	}
	if leader := n.leader(); leader != "" {
		return fmt.Errorf("it does not lead, and follows %s", leader)
	}
	if err := n.disk.Problem(); err != nil {
		return fmt.Errorf("it cannot write its directory: %w", err)
	}
	return errors.New("raft has no leader, as far as this node knows")
}

func (n *node) status() NodeStatus {
	s := NodeStatus{Name: n.cfg.Name, Disk: n.disk.Identity.Disk, State: n.raft.State().String(), Leader: n.leader(), Applied: n.raft.AppliedIndex(), Last: n.raft.LastIndex()}
	if err := n.disk.Problem(); err != nil {
		s.Problem = err.Error()
	}
	if err := n.stopped(); err != nil {
		s.Stopped = true
		s.State += " (" + err.Error() + ")"
	}
	return s
}

func decode[T any](text []byte) (in T, err error) {
	if err := json.Unmarshal(text, &in); err != nil {
		return in, &refusal{"the request cannot be read: " + err.Error()}
	}
	return in, nil
}
