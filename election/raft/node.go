package raft

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/raft/disk"
	"github.com/fencepost/fencepost/election/raft/state"
)

const (
	keptSnapshots = 2
	// streamTimeout bounds what a node waits for another one that Raft has asked something.
	streamTimeout = 3 * time.Second
	// closeTimeout bounds the orderly end of a node.
	closeTimeout = 3 * time.Second
)

// node is this proxy's part in the cluster.
type node struct {
	cfg       Config
	log       *zap.Logger
	disk      *disk.Disk
	port      *port
	transport *hraft.NetworkTransport
	machine   *machine
	raft      *hraft.Raft
	others    *cluster // for requests that only the leader answers
	around    *cluster // the other nodes, for what this one cannot have answered
	server    *http.Server
	ctx       context.Context // ends with close
	cancel    context.CancelFunc
	wg        sync.WaitGroup

	confirming sync.Mutex // held while a confirmation is made

	mu       sync.Mutex
	closed   bool                  // no request is handled any more
	next     *confirmation         // that has not begun; nil if nobody waits for one
	handling sync.WaitGroup        // requests of others
	removed  atomic.Bool           // the others say that this node is no member
	hidden   atomic.Pointer[error] // why this node cannot be reached at its own address; nil if it can
}

// self returns the member that this node is.
func (n *node) self() Member { return Member{Name: n.cfg.Name, Disk: n.disk.Identity.Disk} }

// options returns how Raft's library is used by a member.
func (cfg Config) options(m Member) *hraft.Config {
	c := hraft.DefaultConfig()
	c.LocalID = m.id()
	// The leader's own lease only says how soon it steps down: what it decides needs a quorum anyway.
	c.HeartbeatTimeout, c.LeaderLeaseTimeout = cfg.Heartbeat, cfg.Heartbeat
	c.ElectionTimeout = 2 * cfg.Heartbeat // on a busy machine, shorter ones disturb each other
	c.Logger = libraryLog(cfg.Logger)
	return c
}

// startTimeout bounds the start of a node. It reads its whole log.
const startTimeout = 30 * time.Second

// startInTime is start with a time limit: a disk that hangs, or on which the term cannot be written, would
// keep the whole proxy from starting, without a word.
func startInTime(cfg Config) (replica, error) {
	type started struct {
		n   *node
		err error
	}
	done := make(chan started, 1)
	go func() { // which nobody waits for, since it may never end
		n, err := start(cfg)
		done <- started{n, err}
	}()
	select {
	case s := <-done:
		if s.err != nil {
			return nil, s.err
		}
		return s.n, nil
	case <-time.After(startTimeout):
	}
	go func() {
		if s := <-done; s.n != nil {
			_ = s.n.close()
		}
	}()
	return nil, fmt.Errorf("the node %s has not started within %s, because the disk of %s hangs, or is full. "+
		"Repair it, or take election.raft.dir from the configuration, so that this proxy is no node meanwhile", cfg.Name, startTimeout, cfg.Dir)
}

// start starts the node, if the directory is its own.
func start(cfg Config) (_ *node, err error) {
	if _, err := cfg.address(); err != nil {
		return nil, err
	}
	n := &node{cfg: cfg, log: cfg.Logger}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	n.machine = newMachine(n.halt)
	if n.others, err = newCluster(cfg); err != nil {
		return nil, err
	}
	if n.disk, err = disk.Open(cfg.Dir, cfg.Name); err != nil {
		return nil, refusedDirectory(cfg, err)
	}
	snapshots, err := hraft.NewFileSnapshotStoreWithLogger(cfg.Dir, keptSnapshots, libraryLog(n.log))
	if err != nil {
		return nil, fmt.Errorf("open the snapshots in %s: %w", filepath.Join(cfg.Dir, "snapshots"), err)
	}
	n.others.meant = n.disk.Identity.Cluster
	n.around = n.others.without(cfg.Name)
	if n.port, err = listen(cfg.Listen, n.others.security, n.disk.Identity, n.log); err != nil {
		return nil, err
	}
	n.transport = hraft.NewNetworkTransportWithConfig(&hraft.NetworkTransportConfig{
		ServerAddressProvider: addresses(cfg.Peers), Logger: libraryLog(n.log), Stream: n.port.raft, MaxPool: 3, Timeout: streamTimeout,
		// No pipelines: in 1.8.0, one whose connection fails can block the goroutine that fills it for
		// ever, and Shutdown waits for that. Entries that wait are sent together anyway.
		MaxRPCsInFlight: 1,
	})
	sending := newSteady(n.ctx, n.transport, cfg)
	if n.raft, err = hraft.NewRaft(cfg.options(n.self()), n.machine, n.disk, n.disk, n.disk.Remembering(snapshots), sending); err != nil {
		return nil, fmt.Errorf("start the node: %w", err)
	}
	sending.raft.Store(n.raft)
	n.server = n.newServer()
	n.wg.Go(func() {
		if err := n.server.Serve(n.port.requests); !errors.Is(err, http.ErrServerClosed) && n.ctx.Err() == nil {
			n.log.Error("requests of other proxies are no longer answered", zap.Error(err))
		}
	})
	n.wg.Go(n.keepUp)
	n.wg.Go(n.watchDisk)
	n.wg.Go(n.watchAddress)
	n.wg.Go(n.retrySnapshots)
	return n, nil
}

// refusedDirectory says what to do about a directory that cannot be used.
func refusedDirectory(cfg Config, err error) error {
	if errors.Is(err, disk.ErrDamaged) {
		return fmt.Errorf("%w. This node cannot go on with it, and must not start as if it were new: run fencepost raft remove %s at another node, "+
			"empty the directory, and run fencepost raft add here", err, cfg.Name)
	}
	if !errors.Is(err, disk.ErrNoIdentity) && !errors.Is(err, disk.ErrOtherIdentity) {
		return err
	}
	return fmt.Errorf("%w. A node that has lost its disk must not start as if it were new, because leases could be awarded twice. "+
		"To begin a new cluster, run fencepost raft bootstrap, once, at one node only. To let this node join, or join again, "+
		"run fencepost raft remove %s at another node if it was a member, empty the directory, and run fencepost raft add here", err, cfg.Name)
}

// halt stops Raft, because this replica cannot go on. It is called while the log is applied.
func (n *node) halt(err error) {
	n.log.Error("this node of raft has stopped", zap.Error(err))
	n.wg.Go(func() { n.raft.Shutdown() })
}

// close stops the node. If it leads, it lets another one lead first. It waits for nothing that may never
// end: neither for a disk that hangs nor for a client.
func (n *node) close() error {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	if n.raft != nil && n.raft.State() == hraft.Leader {
		n.handOver()
	}
	n.cancel()
	handled := make(chan struct{})
	go func() {
		n.handling.Wait()
		close(handled)
	}()
	select {
	case <-handled:
	case <-time.After(closeTimeout): // the end of the server, below, ends the requests that are left
	}
	var errs []error
	stopped := true
	if n.raft != nil {
		err := n.settle(n.raft.Shutdown())
		stopped = !errors.Is(err, context.DeadlineExceeded)
		errs = append(errs, err)
	}
	if n.server != nil {
		errs = append(errs, n.server.Close())
	}
	<-handled
	if n.transport != nil {
		errs = append(errs, n.transport.Close())
	}
	if n.port != nil {
		errs = append(errs, n.port.close())
	}
	n.wg.Wait()
	if n.others != nil {
		errs = append(errs, n.others.close())
	}
	if n.disk != nil && stopped { // otherwise Raft waits for the disk, which would not close
		errs = append(errs, n.disk.Close())
	}
	return errors.Join(errs...)
}

// handOver lets another node lead, if one can.
func (n *node) handOver() {
	if err := n.settle(n.raft.LeadershipTransfer()); err != nil {
		n.log.Debug("no other node leads yet", zap.Error(err))
	}
}

// settle waits for a future, but not for long.
func (n *node) settle(f hraft.Future) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return n.wait(ctx, f)
}

// wait returns when a future is there, or with the context's error. Nobody waits for its goroutine: in
// 1.8.0, a Raft that is ending may leave a future unanswered, and close must not wait for that.
func (n *node) wait(ctx context.Context, f hraft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// call implements replica: the leader, here or elsewhere, answers the request. If this node knows of none,
// because it is cut off from the leader, another one may pass the request on.
func (n *node) call(ctx context.Context, r request, into any) error {
	return persist(ctx, n.cfg.giveUp, func(ctx context.Context) error {
		err := n.once(ctx, r, into)
		if !errors.Is(err, errNoLeader) || len(n.around.names) == 0 {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		if other := n.around.askAny(ctx, r, onward, into); other == nil || final(other) {
			return other
		}
		return err
	})
}

// once has the leader answer the request, if this node knows of one.
func (n *node) once(ctx context.Context, r request, into any) error {
	if err := n.stopped(); err != nil {
		return err
	}
	_, leader := n.raft.LeaderWithID()
	switch leader {
	case "":
		return fmt.Errorf("%w, as far as node %s knows (%s)", errNoLeader, n.cfg.Name, n.contact())
	case n.self().id():
		return n.lead(ctx, r, into)
	}
	return n.others.ask(ctx, named(leader).Name, r, nowhere, into)
}

// contact says when the leader was last heard of.
func (n *node) contact() string {
	if err := n.disk.Problem(); err != nil {
		return fmt.Sprintf("it cannot write its directory: %v", err)
	}
	last := n.raft.LastContact()
	if last.IsZero() {
		return "it has heard of no other one since it started"
	}
	return fmt.Sprintf("it last heard of one %s ago", time.Since(last).Round(100*time.Millisecond))
}

// stopped says why the node no longer takes part; nil while it does.
func (n *node) stopped() error {
	if !n.removed.Load() && n.raft.State() != hraft.Shutdown {
		return nil
	}
	if _, err := n.machine.look(func(*state.State) {}); err != nil {
		return &stoppedError{err.Error()}
	}
	if n.ctx.Err() != nil {
		return &stoppedError{"the node is closing"}
	}
	return &stoppedError{fmt.Sprintf("the node %s was removed from the cluster (to let it join again, stop this proxy, empty %s, and run fencepost raft add)", n.cfg.Name, n.cfg.Dir)}
}

// changes implements replica, with this node's own. While it knows of no leader, its replica may be behind,
// and another one may answer.
func (n *node) changes(ctx context.Context, r changesRequest) (d state.Delta, err error) {
	return n.changesWithin(ctx, r, anywhere)
}

// changesWithin is changes. Other nodes are asked only if the request may be passed on to anybody, so that
// nodes that all know of no leader do not ask each other in turn.
func (n *node) changesWithin(ctx context.Context, r changesRequest, far scope) (d state.Delta, err error) {
	if r.First {
		return n.firstChanges(ctx, r, far)
	}
	for {
		one, cancel := context.WithTimeout(ctx, mostWait+attemptTimeout)
		err := n.changesAround(one, r, far, &d)
		cancel()
		switch {
		case err == nil && d.Upto > r.Since:
			return d, nil
		case err == nil && ctx.Err() == nil:
			continue // it has waited
		}
		one, cancel = context.WithTimeout(ctx, mostWait)
		err = n.machine.await(one, func(s *state.State) bool {
			if s.Touched(r.Space) <= r.Since {
				return false
			}
			d = s.Since(r.Space, r.Since)
			return true
		})
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return d, err
		}
	}
}

func (n *node) firstChanges(ctx context.Context, r changesRequest, far scope) (d state.Delta, err error) {
	for range n.around.names {
		if n.changesAround(ctx, r, far, &d) == nil {
			return d, nil
		}
	}
	var v state.View
	if err := n.call(ctx, request{op: opRead, in: readRequest{Space: r.Space}}, &v); err != nil {
		return d, err
	}
	if err := n.machine.await(ctx, func(s *state.State) bool { return s.Index >= v.Index }); err != nil {
		return d, fmt.Errorf("the replica at node %s is behind: %w", n.cfg.Name, err)
	}
	_, err = n.machine.look(func(s *state.State) { d = s.Since(r.Space, 0) })
	return d, err
}

// changesAround asks another node for changes, if this one knows of no leader.
func (n *node) changesAround(ctx context.Context, r changesRequest, far scope, d *state.Delta) error {
	_, leader := n.raft.LeaderWithID()
	if far != anywhere || leader != "" || len(n.around.names) == 0 || n.stopped() != nil {
		return errNoLeader // nobody else is asked
	}
	if r.First {
		short, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		ctx = short
	}
	var got state.Delta
	err := n.around.askAny(ctx, request{op: opChanges, in: r}, onward, &got)
	if err == nil {
		*d = got
	}
	return err
}
