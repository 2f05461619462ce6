package raft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/fencepost/fencepost/election/raft/disk"
)

// Bootstrap begins a new cluster, whose only node is this one, and makes its directory. It must be
// done once, at one node: two clusters would award the same leases. It is refused while another node
// of the configuration runs. Where that cannot be told, because a host does not answer at all, it warns:
// the first node must be able to start before the hosts of the others do.
func Bootstrap(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	_, err := cfg.address()
	if err != nil {
		return err
	}
	c, err := newCluster(cfg)
	if err != nil {
		return err
	}
	unknown, err := c.nobodyRuns(ctx, cfg)
	if err = errors.Join(err, c.close()); err != nil {
		return err
	}
	for _, n := range unknown {
		cfg.Logger.Warn(fmt.Sprintf("%s (%s) does not answer, so that nothing tells whether a node runs there: %v. If there is a cluster already, do not start this "+
			"proxy, and empty %s: two clusters would award the same leases", n.Name, n.Address, n.Err, cfg.Dir))
	}
	id := disk.Identity{Cluster: newID(), Node: cfg.Name, Disk: newID()}
	self := Member{Name: id.Node, Disk: id.Disk}
	options := cfg.options(self)
	members := hraft.Configuration{Servers: []hraft.Server{{ID: options.LocalID, Address: self.recorded(), Suffrage: hraft.Voter}}}
	return disk.Create(cfg.Dir, id, func(d *disk.Disk) error {
		if err := hraft.BootstrapCluster(options, d, d, hraft.NewDiscardSnapshotStore(), nil, members); err != nil {
			return fmt.Errorf("begin the log: %w", err)
		}
		return nil
	})
}

// nobodyRuns returns an error if something accepts connections at the address of a node, and the nodes of
// which nothing can be told. A connection that is refused tells that there is none.
func (c *cluster) nobodyRuns(ctx context.Context, cfg Config) (unknown []NodeAnswer, err error) {
	errs := make([]error, len(c.names))
	var wg sync.WaitGroup
	for i, name := range c.names {
		wg.Go(func() { errs[i] = connects(ctx, c.peers[name]) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for i, err := range errs {
		n := NodeAnswer{Name: c.names[i], Address: c.peers[c.names[i]], Err: err}
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			continue
		case err != nil:
			unknown = append(unknown, n)
			continue
		}
		n = c.nodeStatus(ctx, n.Name)
		switch {
		case n.Err != nil:
			return nil, fmt.Errorf("something accepts connections at %s, the address of %s, and does not say what it is (%w): a node may run there, "+
				"and must not get a second cluster beside it. Correct election.raft, or stop it first", n.Address, n.Name, n.Err)
		case n.Name == cfg.Name:
			return nil, runs(n)
		default:
			return nil, fmt.Errorf("the node %s at %s runs already: add this node to its cluster with fencepost raft add", n.Name, n.Address)
		}
	}
	return unknown, nil
}

// connects returns nil if something accepts connections at an address.
func connects(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: attemptTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// runs is the error of a directory that is to be made for a node that is running.
func runs(n NodeAnswer) error {
	return fmt.Errorf("the node %s answers at %s: stop its proxy first, because it goes on with the directory that it had", n.Name, n.Address)
}

// Add adds this node to the running cluster, and makes its directory. It votes when it has been
// started and has caught up. It is refused while a process answers at the node's address. Only what
// starts with this directory is the member: a process that goes on with deleted files is not.
func Add(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	address, err := cfg.address()
	if err != nil {
		return err
	}
	if err := disk.Prepare(cfg.Dir); err != nil {
		return err
	}
	c, err := newCluster(cfg)
	if err != nil {
		return err
	}
	own := c.nodeStatus(ctx, cfg.Name)
	if err := c.close(); err != nil {
		return err
	}
	if own.Err == nil {
		return runs(own)
	}
	id := disk.Identity{Node: cfg.Name, Disk: newID()}
	var to joined
	if err := administer(ctx, cfg, request{op: opAdd, in: Member{Name: id.Node, Disk: id.Disk, Address: address}}, &to); err != nil {
		return err
	}
	id.Cluster = to.Cluster
	if err := disk.Create(cfg.Dir, id, nil); err != nil {
		return fmt.Errorf("the node %s was added, and does not vote, but its directory could not be made (%w): repair that, and run the command again", cfg.Name, err)
	}
	return nil
}

// Remove removes the named node from the running cluster. That node stops to take part, and its
// directory is of no use any more.
func Remove(ctx context.Context, cfg Config, name string) error {
	cfg = cfg.withDefaults()
	var all []Member
	if err := administer(ctx, cfg, request{op: opMembers}, &all); err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(m Member) bool { return m.Name == name })
	if i < 0 {
		return fmt.Errorf("the node %s is not a member", name)
	}
	return administer(ctx, cfg, request{op: opRemove, in: Member{Name: name, Disk: all[i].Disk}}, nil)
}

// administer makes a request to the nodes other than this one.
func administer(ctx context.Context, cfg Config, r request, into any) (err error) {
	c, err := newCluster(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	err = c.call(ctx, r, into)
	switch {
	case err == nil:
		return nil
	case final(err) || r.op == opMembers:
		return fmt.Errorf("%s: %w", c, err)
	}
	return fmt.Errorf("%s: %w. It may have been carried out all the same: run fencepost raft status", c, err)
}

// Status is what the nodes say of themselves and of each other.
type Status struct {
	Members []Member // as the leader has them; nil if there is none
	Err     error    // why there are no members
	Nodes   []NodeAnswer
}

// NodeAnswer is what one peer of the configuration says of itself.
type NodeAnswer struct {
	Name, Address string
	Status        NodeStatus
	Err           error // why it did not answer
	// Behind is how many of the entries that were committed when Look began it had not applied a while
	// later. It is counted for voters.
	Behind uint64
}

// behindAfter is how long a voter may need to apply what was committed: as long as a request may take,
// because requests would fail if they depended on a slower one.
const behindAfter = attemptTimeout

// Trouble returns what is wrong with the node that has given an answer, and what to do; "" if all is well, or
// if nobody can tell, because there is no leader.
func (s Status) Trouble(a NodeAnswer) (problem, remedy string) {
	i := slices.IndexFunc(s.Members, func(m Member) bool { return m.Name == a.Name })
	switch {
	case a.Err != nil:
		return "it does not answer: " + a.Err.Error(), "Start its proxy, or correct election.raft.peers."
	case s.Err != nil:
		return "", ""
	case a.Status.Name != a.Name:
		return "the node " + a.Status.Name + " answers at its address", "Correct election.raft.peers."
	case i < 0 && a.Status.Stopped:
		return "", "" // it was removed, and is to be stopped
	case i < 0:
		return "it runs and is no member: it has just been removed, or belongs to another cluster", "Stop its proxy."
	case a.Status.Stopped:
		return "it is a member and takes no part: " + a.Status.State, "Do what that says, or remove the node."
	case a.Status.Problem != "":
		return "it cannot write its directory: " + a.Status.Problem, DirectoryRemedy
	case a.Status.Snapshot != "":
		return "it cannot write a snapshot: " + a.Status.Snapshot, DirectoryRemedy
	case a.Status.Disk != s.Members[i].Disk:
		return "it runs with another directory than the one that was added", "Restart its proxy."
	case a.Status.Leader == "":
		return "it hears of no leader", "Correct its address in election.raft.peers at the others, or let connections pass."
	case a.Behind > 0:
		return fmt.Sprintf("it is behind: it has not applied %d of the entries that were committed %s before", a.Behind, behindAfter),
			"Stop no other node before it has caught up. If it does not, look into its log, and let connections from the leader pass."
	}
	return "", ""
}

// Look asks all peers of the configuration for their status, and the leader for the members. It waits a
// while for voters that are behind.
func Look(ctx context.Context, cfg Config) (s Status, err error) {
	c, err := newCluster(cfg.withDefaults())
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	var wg sync.WaitGroup
	wg.Go(func() { s.Nodes = c.nodes(ctx) })
	wg.Go(func() {
		several, cancel := context.WithTimeout(ctx, giveUp)
		defer cancel()
		if err := c.call(several, request{op: opMembers}, &s.Members); err != nil {
			s.Err = fmt.Errorf("%s: %w", c, err)
		}
	})
	wg.Wait()
	index := s.committed()
	for i := range s.Nodes {
		a := &s.Nodes[i]
		if slices.ContainsFunc(s.Members, func(m Member) bool { return m.Name == a.Name && m.Voter }) {
			wg.Go(func() { c.follow(ctx, a, index) })
		}
	}
	wg.Wait()
	return s, nil
}

// committed returns up to which entry all was committed, as the leader said; 0 if it did not.
func (s Status) committed() (index uint64) {
	for _, m := range s.Members {
		index = max(index, m.Index)
	}
	return index
}

// follow asks a node again until it has applied the entries up to an index, or is behind.
func (c *cluster) follow(ctx context.Context, a *NodeAnswer, index uint64) {
	pause := retryPause
	for deadline := time.Now().Add(behindAfter); a.Err == nil && !a.Status.Stopped && a.Status.Applied < index; pause = min(2*pause, maxRetryPause) {
		if time.Now().After(deadline) {
			a.Behind = index - a.Status.Applied
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		*a = c.nodeStatus(ctx, a.Name)
	}
}

// nodes asks each node for its status.
func (c *cluster) nodes(ctx context.Context) []NodeAnswer {
	all := make([]NodeAnswer, len(c.names))
	var wg sync.WaitGroup
	for i, name := range c.names {
		wg.Go(func() { all[i] = c.nodeStatus(ctx, name) })
	}
	wg.Wait()
	return all
}

// nodeStatus asks one node for its status.
func (c *cluster) nodeStatus(ctx context.Context, name string) NodeAnswer {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	a := NodeAnswer{Name: name, Address: c.peers[name]}
	a.Err = c.ask(ctx, name, request{op: opSelf}, anywhere, &a.Status)
	return a
}
