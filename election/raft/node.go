package raft

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
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

// node is this proxy's part in the cluster. It serves requests; what its own proxy asks for goes through a cluster, as
// that of others does.
type node struct {
	cfg       Config
	log       *zap.Logger
	disk      *disk.Disk
	transport *hraft.NetworkTransport
	machine   *machine
	raft      *hraft.Raft
	others    *cluster // for requests of the node itself
	server    *http.Server
	ctx       context.Context // ends with close
	cancel    context.CancelFunc
	wg        sync.WaitGroup
}

// self returns the member that this node is.
func (n *node) self() Member { return Member{Name: n.cfg.Name, Disk: n.disk.Identity.Disk} }

// protocol is what the other nodes of the cluster speak to this one.
func (n *node) protocol() string {
	return raftProtocol(n.disk.Identity.Cluster, n.disk.Identity.Disk)
}

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
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for other nodes: %w", err)
	}
	raft := &stream{security: n.others.security, id: n.disk.Identity, address: listener.Addr(), conns: make(chan net.Conn), ctx: n.ctx}
	n.transport = hraft.NewNetworkTransportWithConfig(&hraft.NetworkTransportConfig{
		ServerAddressProvider: addresses(cfg.Peers), Logger: libraryLog(n.log), Stream: raft, MaxPool: 3, Timeout: streamTimeout,
		// No pipelines: in 1.8.0, one whose connection fails can block the goroutine that fills it for
		// ever, and Shutdown waits for that. Entries that wait are sent together anyway.
		MaxRPCsInFlight: 1,
	})
	if n.raft, err = hraft.NewRaft(cfg.options(n.self()), n.machine, n.disk, n.disk, snapshots, n.transport); err != nil {
		return nil, errors.Join(fmt.Errorf("start the node: %w", err), listener.Close())
	}
	n.server = n.newServer(raft)
	listener = tls.NewListener(listener, n.others.security.server(requestProtocol, n.protocol()))
	n.wg.Go(func() {
		if err := n.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			n.log.Error("requests of other proxies are no longer answered", zap.Error(err))
		}
	})
	n.wg.Go(n.askForVote)
	return n, nil
}

// refusedDirectory says what to do about a directory that cannot be used.
func refusedDirectory(cfg Config, err error) error {
	if !errors.Is(err, disk.ErrNoIdentity) && !errors.Is(err, disk.ErrOtherIdentity) {
		return err
	}
	return fmt.Errorf("%w. A node that has lost its disk must not start as if it were new, because leases could be awarded twice. "+
		"To begin a new cluster, run fencepost raft bootstrap, once, at one node only. To let this node join, or join again, "+
		"run fencepost raft remove %s at another node if it was a member, empty the directory, and run fencepost raft add here", err, cfg.Name)
}

// askForVote asks for this node's vote, while it has none. The leader gives it when the node has caught up.
func (n *node) askForVote() {
	ticker := time.NewTicker(n.cfg.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-n.ctx.Done():
			return
		}
		f := n.raft.GetConfiguration() // which waits for nothing
		if f.Error() != nil {
			continue
		}
		for _, s := range f.Configuration().Servers {
			if s.ID == n.self().id() && s.Suffrage != hraft.Voter {
				if err := n.others.call(n.ctx, request{op: opPromote, in: n.self()}, nil); err != nil {
					n.log.Debug("this node does not vote yet", zap.Error(err))
				}
			}
		}
	}
}

// halt stops Raft, because this replica cannot continue. It is called while the log is applied.
func (n *node) halt(err error) {
	n.log.Error("this node of raft has stopped", zap.Error(err))
	n.wg.Go(func() { n.raft.Shutdown() })
}

// stopped says why the node no longer takes part; nil while it does.
func (n *node) stopped() error {
	if n.raft.State() != hraft.Shutdown {
		return nil
	}
	if _, err := n.machine.look(func(*state.State) {}); err != nil {
		return err
	}
	return errors.New("the node is closing")
}

// healthy returns why this node does not serve the cluster, nil if it does. A node that cannot write acknowledges
// nothing, and the cluster is one node closer to losing its majority.
func (n *node) healthy() error {
	if err := n.disk.Problem(); err != nil {
		return &elector.LimitedError{Err: fmt.Errorf("the node %s of Raft cannot write its directory: %w", n.cfg.Name, err), Remedy: DirectoryRemedy}
	}
	return nil
}

// DirectoryRemedy is what an operator can do about a node that cannot write its directory.
const DirectoryRemedy = "Make room on its disk, or remove the node and add it again with another one."

// close stops the node. If it leads, it lets another one lead first. It does not wait for ever.
func (n *node) close() error {
	var errs []error
	stopped := true
	ctx, cancel := context.WithTimeout(context.Background(), 2*closeTimeout)
	defer cancel()
	if n.raft != nil {
		if n.raft.State() == hraft.Leader {
			if err := n.wait(ctx, n.raft.LeadershipTransfer()); err != nil {
				n.log.Debug("no other node leads yet", zap.Error(err))
			}
		}
		err := n.wait(ctx, n.raft.Shutdown())
		stopped = !errors.Is(err, context.DeadlineExceeded)
		errs = append(errs, err)
	}
	n.cancel()
	if n.server != nil {
		if n.server.Shutdown(ctx) != nil { // something is still under way
			errs = append(errs, n.server.Close())
		}
	}
	if n.transport != nil {
		errs = append(errs, n.transport.Close())
	}
	n.wg.Wait()
	if n.others != nil {
		n.others.close()
	}
	if n.disk != nil && stopped { // otherwise Raft waits for the disk, which would not close
		errs = append(errs, n.disk.Close())
	}
	return errors.Join(errs...)
}

// wait returns when a future is done, or with the context's error. No one waits for its goroutine: in
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
