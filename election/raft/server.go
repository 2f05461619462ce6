package raft

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/fencepost/fencepost/election/raft/state"
)

const (
	// pathPrefix precedes the operation in the path of a request.
	pathPrefix = "/v1/"
	// scopeHeader has the scope of a request.
	scopeHeader = "Fencepost-Scope"
	// clusterHeader has the identity of the cluster: in a request that of the cluster that is meant, if the
	// client knows it, and in each answer that of the node.
	clusterHeader = "Fencepost-Cluster"
	// mostRequest bounds what a request may contain, in bytes.
	mostRequest = 1 << 20
	// mostWait is how long a request for changes is held back if there are none.
	mostWait = 2 * time.Second
	// mostStreams is how many requests one connection may have under way.
	mostStreams = 1000
)

// NodeStatus is what a node says of itself.
type NodeStatus struct {
	Name    string `json:"name"`
	Disk    string `json:"disk"`  // the random part of the identity of its directory
	State   string `json:"state"` // Raft's: Leader, Follower, Candidate or Shutdown; and why it has stopped
	Stopped bool   `json:"stopped,omitempty"`
	Problem string `json:"problem,omitempty"` // why its directory could not be written
	// Snapshot is why its last snapshot could not be written.
	Snapshot string `json:"snapshot,omitempty"`
	Leader   string `json:"leader,omitempty"` // the name of the leader that it follows; "" if it knows none
	Term     string `json:"term"`
	Applied  uint64 `json:"applied"` // the index of the last entry that it has applied
	Last     uint64 `json:"last"`    // the index of the last entry that it has
}

// fault is the body of an answer that is an error.
type fault struct {
	Error   string `json:"error"`
	Refused bool   `json:"refused,omitempty"` // sending it again changes nothing
}

func (n *node) newServer() *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(n.handle), ReadHeaderTimeout: handshakeTimeout, ReadTimeout: handshakeTimeout, WriteTimeout: 2 * handshakeTimeout, IdleTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return n.ctx },
		ErrorLog:    log.New(io.Discard, "", 0), // clients that go away
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: mostStreams, SendPingTimeout: 10 * time.Second, PingTimeout: streamTimeout},
		ConnState: func(c net.Conn, s http.ConnState) {
			if conn, ok := c.(*tls.Conn); ok && s == http.StateClosed {
				n.port.forget(conn.NetConn())
			}
		},
	}
}

// handle answers a request of another proxy or of a command.
func (n *node) handle(w http.ResponseWriter, r *http.Request) {
	cluster := n.disk.Identity.Cluster
	w.Header().Set(clusterHeader, cluster)
	if !n.enter() {
		http.Error(w, "the node is closing", http.StatusServiceUnavailable)
		return
	}
	defer n.handling.Done()
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostRequest))
	var answer any
	if meant := r.Header.Get(clusterHeader); meant != "" && meant != cluster {
		err = errOtherCluster
	}
	if err == nil {
		answer, err = n.serve(r.Context(), operation(r.URL.Path[min(len(pathPrefix), len(r.URL.Path)):]), text, scope(r.Header.Get(scopeHeader)))
	}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		var refused *refusal
		answer = fault{err.Error(), errors.As(err, &refused)}
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(answer) // a client that is gone needs no answer
}

// enter reports whether a request may be handled; it is then counted in n.handling.
func (n *node) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.handling.Add(1)
	}
	return !n.closed
}

// serve answers a request.
func (n *node) serve(ctx context.Context, op operation, text []byte, far scope) (any, error) {
	switch op {
	case opSelf:
		return n.status(), nil
	case opChanges:
		var in changesRequest
		if err := decode(text, &in); err != nil {
			return nil, err
		}
		return n.held(ctx, in, far)
	}
	r := request{op: op}
	var err error
	switch op {
	case opApply:
		r.in, err = parsed(text)
	case opRead:
		r.in, err = decoded[readRequest](text)
	case opAdd, opPromote, opRemove:
		r.in, err = decoded[Member](text)
	}
	if err != nil {
		return nil, err
	}
	// A little less than the client waits, so that it hears the cause.
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout*4/5)
	defer cancel()
	var answer json.RawMessage
	switch far {
	case anywhere:
		err = n.call(ctx, r, &answer)
	case onward:
		err = n.once(ctx, r, &answer)
	default:
		err = n.lead(ctx, r, &answer)
	}
	return answer, err
}

// held answers a request for changes when there are any, or after a while.
func (n *node) held(ctx context.Context, r changesRequest, far scope) (state.Delta, error) {
	wait := mostWait
	if r.First {
		wait = attemptTimeout * 4 / 5
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	d, err := n.changesWithin(ctx, r, far)
	if !r.First && errors.Is(err, context.DeadlineExceeded) {
		return state.Delta{Upto: r.Since}, nil
	}
	return d, err
}

func (n *node) status() NodeStatus {
	s := NodeStatus{Name: n.cfg.Name, Disk: n.disk.Identity.Disk, State: n.raft.State().String(), Term: n.raft.Stats()["term"], Applied: n.raft.AppliedIndex(), Last: n.raft.LastIndex()}
	_, leader := n.raft.LeaderWithID()
	s.Leader = named(leader).Name
	if err := n.disk.Problem(); err != nil {
		s.Problem = err.Error()
	}
	if _, err := n.disk.SnapshotProblem(); err != nil {
		s.Snapshot = err.Error()
	}
	if err := n.stopped(); err != nil {
		s.Stopped = true
		s.State += " (" + err.Error() + ")"
	}
	return s
}

// parsed returns a command of another proxy. One that this version does not understand is refused here,
// because part of it would be lost if it were passed on.
func parsed(text []byte) (state.Command, error) {
	c, err := state.Parse(text)
	if err != nil {
		return c, &refusal{"the request cannot be carried out: " + err.Error() + upgradeNodes}
	}
	return c, nil
}

func decoded[T any](text []byte) (in T, err error) {
	err = decode(text, &in)
	return in, err
}

func decode(text []byte, into any) error {
	if err := json.Unmarshal(text, into); err != nil {
		return &refusal{"the request cannot be read: " + err.Error()}
	}
	return nil
}
