package raft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/fencepost/fencepost/election/raft/disk"
)

// Bootstrap begins a new cluster, whose only node is this one, and makes its directory. It must be
// done once, at one node: two clusters would award the same leases. It is refused while anything accepts
// connections at the address of a node. The first node must be able to start before the hosts of the others do.
func Bootstrap(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	if _, err := cfg.address(); err != nil {
		return err
	}
	for name, address := range cfg.Peers {
		if accepts(ctx, address) {
			return fmt.Errorf("something accepts connections at %s, the address of %s: if a node runs there, add this one to its cluster with fencepost raft add; "+
				"otherwise correct election.raft, or stop it first", address, name)
		}
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

// accepts reports whether something accepts connections at an address.
func accepts(ctx context.Context, address string) bool {
	conn, err := (&net.Dialer{Timeout: attemptTimeout}).DialContext(ctx, "tcp", address)
	return err == nil && conn.Close() == nil
}

// Add adds this node to the running cluster, and makes its directory. It votes when it has been
// started and has caught up. It is refused while a process accepts connections at the node's address. Only what
// starts with this directory is the member: a process that continues with deleted files is not.
func Add(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	address, err := cfg.address()
	if err != nil {
		return err
	}
	if err := disk.Prepare(cfg.Dir); err != nil {
		return err
	}
	if accepts(ctx, address) {
		return fmt.Errorf("something accepts connections at %s, the address of this node: stop its proxy first, because it continues to use the directory that it had", address)
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

// administer makes a request to the nodes.
func administer(ctx context.Context, cfg Config, r request, into any) error {
	c, err := newCluster(cfg)
	if err != nil {
		return err
	}
	defer c.close()
	err = c.call(ctx, r, into)
	var refused *refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) || r.op == opMembers:
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
	// Lag is how many of the entries that were committed when Look began it had not applied a while
	// later. It is counted for voters.
	Lag uint64
}

// lagLimit is how long a voter may need to apply what was committed: as long as a request may take,
// because requests would fail if they depended on a slower one.
const lagLimit = attemptTimeout

// Trouble returns what is wrong with the node that has given an answer, and what to do; "" if all is well, or
// if that is not known, because there is no leader.
func (s Status) Trouble(a NodeAnswer) (problem, remedy string) {
	i := slices.IndexFunc(s.Members, func(m Member) bool { return m.Name == a.Name })
	switch {
	case a.Err != nil:
		return "it does not answer: " + a.Err.Error(), "Start its proxy, or correct election.raft.peers."
	case s.Err != nil:
		return "", ""
	case a.Status.Name != a.Name:
		return "the node " + a.Status.Name + " answers at its address", "Correct election.raft.peers."
	case i < 0:
		return "it runs and is no member: it has just been removed, or belongs to another cluster", "Stop its proxy."
	case a.Status.Stopped:
		return "it is a member and takes no part: " + a.Status.State, "Do what that says, or remove the node."
	case a.Status.Problem != "":
		return "it cannot write its directory: " + a.Status.Problem, DirectoryRemedy
	case a.Status.Disk != s.Members[i].Disk:
		return "it runs with another directory than the one that was added", "Restart its proxy."
	case a.Status.Leader == "":
		return "it knows of no leader", "Correct its address in election.raft.peers at the others, or let connections pass."
	case a.Lag > 0:
		return fmt.Sprintf("it lags: it has not applied %d of the entries that were committed %s before", a.Lag, lagLimit),
			"Stop no other node before it has caught up. If it does not, look into its log, and let connections from the leader pass."
	}
	return "", ""
}

// Look asks all peers of the configuration for their status, and the leader for the members. It waits a
// while for voters that lag.
func Look(ctx context.Context, cfg Config) (s Status, err error) {
	c, err := newCluster(cfg.withDefaults())
	if err != nil {
		return s, err
	}
	defer c.close()
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

// follow asks a node again until it has applied the entries up to an index, or lags.
func (c *cluster) follow(ctx context.Context, a *NodeAnswer, index uint64) {
	pause := retryPause
	for deadline := time.Now().Add(lagLimit); a.Err == nil && !a.Status.Stopped && a.Status.Applied < index; pause = min(2*pause, maxRetryPause) {
		if time.Now().After(deadline) {
			a.Lag = index - a.Status.Applied
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
	a.Err = c.ask(ctx, name, request{op: opSelf}, false, &a.Status)
	return a
}
