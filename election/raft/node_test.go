package raft

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/raft/disk"
	"github.com/fencepost/fencepost/election/raft/state"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// apply applies a command through a node.
func apply(ctx context.Context, n *node, c state.Command) (o state.Outcome, err error) {
	err = n.call(ctx, request{op: opApply, in: c}, &o)
	return o, err
}

// What leaves a cluster as it was.
func TestACluster(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	t.Run("store", func(t *testing.T) {
		cfg := c.config("one").withDefaults()
		cfg.Prefix = "store"
		electiontest.RunStore(t, newStore(c.nodes["one"], cfg, "raft"))
	})
	t.Run("strangers are refused", c.strangersAreRefused)
	t.Run("an unknown command is refused", c.anUnknownCommandIsRefused)
	t.Run("an award that arrives late is refused", c.anAwardThatArrivesLateIsRefused)
	t.Run("the lead is handed over while entries are applied", c.theLeadIsHandedOver)
}

// A voter whose disk is lost does not start, however its directory came to be empty, and comes
// back as a node that was removed and added.
func TestAVoterThatLostItsDiskRefusesToStart(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	lost := c.follower().cfg.Name
	c.stop(lost)
	dir := filepath.Join(c.dir, lost)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "snapshots"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		n, err := start(c.config(lost).withDefaults())
		if !errors.Is(err, disk.ErrNoIdentity) || !strings.Contains(err.Error(), "fencepost raft remove "+lost) {
			t.Errorf("it starts with %v, %v", n, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := Add(within(t, patience), c.config(lost)); err == nil || !strings.Contains(err.Error(), "a voter already") {
		t.Errorf("a voter is added again with %v", err)
	}
	if err := Remove(within(t, patience), c.base, lost); err != nil {
		t.Fatal(err)
	}
	c.add(lost)
	for _, m := range c.members() {
		if m.Name == lost && m.Voter {
			t.Error("a node that has nothing yet votes")
		}
	}
	c.start(lost)
	c.allVote()
}

// A node whose log is damaged does not start, and says what to do.
func TestANodeWhoseLogIsDamagedSaysWhatToDo(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one")
	c.begin()
	c.stop("one")
	if err := os.Truncate(filepath.Join(c.dir, "one", "raft.db"), 3*4096); err != nil {
		t.Fatal(err)
	}
	if n, err := start(c.config("one").withDefaults()); !errors.Is(err, disk.ErrDamaged) || !strings.Contains(err.Error(), "fencepost raft remove one") {
		t.Errorf("it starts with %v, %v", n, err)
	}
}

// A leader that was cut off believes that it leads, and its replica shows the old holder. Nothing
// that it decides succeeds.
func TestALeaderThatIsCutOffDecidesNothing(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	old := c.leader()
	take := state.Command{Op: state.Swap, Space: "test", Key: "k", Life: "a", Marker: "m"}
	for _, cmd := range []state.Command{{Op: state.Mark, Space: "test", Marker: "m"}, take} {
		if o, err := apply(within(t, patience), old, cmd); err != nil || o.Verdict != state.Done {
			t.Fatalf("%s: %+v, %v", cmd.Op, o, err)
		}
	}
	for name, n := range c.nodes { // the others are gone, and the leader does not know yet
		if n != old {
			c.stop(name)
		}
	}
	var v state.View
	if _, err := old.machine.look(func(s *state.State) { v = s.View("test", "k") }); err != nil || v.Lease.Life != "a" {
		t.Fatalf("its replica shows %+v, %v", v, err)
	}
	if err := old.lead(within(t, 3*time.Second), request{op: opRead, in: readRequest{"test", "k"}}, &v); err == nil {
		t.Error("a read that decides has succeeded")
	}
	if o, err := apply(within(t, 2*time.Second), old, state.Command{Op: state.Beat, Space: "test", Key: "k", Life: "a"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a renewal ended with %+v, %v", o, err)
	}
	if _, err := old.changes(within(t, 2*time.Second), changesRequest{Space: "test", First: true}); err == nil {
		t.Error("a watch has begun")
	}
}

// Entries are sent while the lead is handed from node to node. Each is applied once.
func (c *members) theLeadIsHandedOver(t *testing.T) {
	from := c.nodes["one"]
	if o, err := apply(within(t, patience), from, state.Command{Op: state.Mark, Space: "handed over", Marker: "m"}); err != nil || o.Verdict != state.Done {
		t.Fatalf("%+v, %v", o, err)
	}
	ended := make(chan error, 1)
	go func() { // ends before the test does, which waits for it
		var basis, last uint64
		for i := range 60 {
			cmd := state.Command{Op: state.Swap, Space: "handed over", Key: "k", Life: fmt.Sprint("life-", i), Marker: "m", Basis: basis, Record: []byte("r")}
			o, err := apply(within(t, patience), from, cmd)
			for end := time.Now().Add(patience); err != nil && time.Now().Before(end); { // unknown: ask again
				o, err = apply(within(t, patience), from, cmd)
			}
			if err != nil || o.Verdict != state.Done || o.Version <= last {
				ended <- fmt.Errorf("award %d after %d: %+v, %w", i, last, o, err)
				return
			}
			basis, last = o.Version, o.Version
		}
		ended <- nil
	}()
	for transfers := 0; ; time.Sleep(heartbeat / 10) {
		select {
		case err := <-ended:
			if err != nil || transfers == 0 {
				t.Errorf("after %d transfers: %v", transfers, err)
			}
			return
		default:
		}
		if transfers < 10 && c.leader().raft.LeadershipTransfer().Error() == nil {
			transfers++
		}
	}
}

// What no node knows is not made an entry: every replica would end, and end again after each restart.
func (c *members) anUnknownCommandIsRefused(t *testing.T) {
	other, err := newCluster(c.base)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.close() })
	refused := new(refusal)
	for name, in := range map[string]any{
		"an operation": map[string]any{"op": "newer", "space": "test"},
		"a field":      map[string]any{"op": state.Mark, "space": "test", "marker": "m", "newer": true},
	} {
		for _, node := range c.names {
			if err := other.ask(within(t, patience), node, request{op: opApply, in: in}, anywhere, nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), "unknown command") {
				t.Errorf("%s that %s does not know ends with %v", name, node, err)
			}
		}
	}
	leader := c.leader()
	if _, err := apply(within(t, patience), leader, state.Command{Op: "newer", Space: "test"}); !errors.As(err, &refused) {
		t.Errorf("the leader's own proxy gets %v", err)
	}
	if err := mark(t, leader); err != nil {
		t.Errorf("then an entry ends with %v", err)
	}
}

// With two of three gone nothing is awarded, and a holder cannot renew. With two again, the term
// goes on if its record was not taken.
func TestWithoutAQuorumNothingIsAwarded(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	p := c.client(t, "p", "test")
	lease := acquire(t, p.Database("db"), bid("a", long))
	kept := c.follower().cfg.Name
	var gone []string
	for name := range c.nodes {
		if name != kept {
			gone = append(gone, name)
		}
	}
	for _, name := range gone {
		c.stop(name)
	}
	q := c.client(t, "q", "test")
	err := p.Database("db").Renew(within(t, 2*time.Second), lease)
	if err == nil || errors.Is(err, election.ErrLost) || !strings.Contains(err.Error(), "raft") {
		t.Errorf("the holder renews with %v", err)
	}
	if l, err := q.Database("db").Acquire(within(t, 3*time.Second), bid("b", long)); err == nil || errors.Is(err, election.ErrHeld) {
		t.Errorf("another worker gets %+v, %v", l, err)
	}
	eventually(t, "both to know why", patience, func() bool {
		why := q.Healthy() // at first, it may be that a busy node has not answered
		return p.Healthy() != nil && why != nil && (strings.Contains(why.Error(), "no leader") || strings.Contains(why.Error(), "refused"))
	})
	c.start(gone[0])
	eventually(t, "the holder renews", patience, func() bool {
		return p.Database("db").Renew(within(t, 2*time.Second), lease) == nil
	})
	eventually(t, "both know that there is a leader", patience, func() bool { return p.Healthy() == nil && q.Healthy() == nil })
}

// What a node has put into a snapshot is there after a restart, and a new node gets it.
func TestASnapshotIsRestored(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one", "two", "three")
	if err := Bootstrap(within(t, patience), c.config("one")); err != nil {
		t.Fatal(err)
	}
	n := c.start("one")
	p := c.client(t, "p", "test", c.base.Peers["one"])
	lease := acquire(t, p.Database("db"), bid("a", long))
	options := n.raft.ReloadableConfig()
	options.TrailingLogs = 0 // so that nothing is left of what the snapshot contains
	if err := n.raft.ReloadConfig(options); err != nil {
		t.Fatal(err)
	}
	if err := n.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	if first, err := n.disk.FirstIndex(); err != nil || first == 1 {
		t.Fatalf("the log still begins at %d, %v", first, err)
	}
	c.stop("one")
	c.start("one")
	if err := p.Database("db").Renew(within(t, patience), lease); err != nil {
		t.Errorf("after a restart from a snapshot the holder renews with %v", err)
	}
	for _, name := range []string{"two", "three"} {
		c.add(name)
		c.start(name)
	}
	c.allVote()
	var life string
	if _, err := c.nodes["three"].machine.look(func(s *state.State) { life = s.View("test", "db/billing").Lease.Life }); err != nil || life != lease.Handle {
		t.Errorf("the replica of the new node shows the holder %q, %v", life, err)
	}
}

// A request that is sent after its life has ended awards nothing, wherever it was meanwhile.
func (c *members) anAwardThatArrivesLateIsRefused(t *testing.T) {
	cfg := c.config("one").withDefaults()
	cfg.Prefix = "late"
	s := newStore(c.nodes["one"], cfg, "raft")
	ctx := within(t, patience)
	if err := s.Mark(ctx, "m", false); err != nil {
		t.Fatal(err)
	}
	life, err := s.Begin(ctx, time.Second)
	if err != nil || life.TTL != leastTTL*heartbeat {
		t.Fatalf("%+v, %v", life, err)
	}
	old, err := s.Read(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ask(life.ID, "k", 0); err != nil { // the request is under way
		t.Fatal(err)
	}
	if err := s.End(ctx, life.ID); err != nil {
		t.Fatal(err)
	}
	late := state.Command{Op: state.Swap, Space: "late", Key: "k", Life: life.ID, Marker: "m"}
	if o, err := apply(ctx, c.nodes["two"], late); err != nil || o.Verdict != state.Conflict {
		t.Errorf("the late request ended with %+v, %v", o, err)
	}
	if _, err := s.Swap(ctx, "k", old, []byte("r"), life.ID); !errors.Is(err, election.ErrLost) {
		t.Errorf("another request with the life ended with %v", err)
	}
	next, err := s.Begin(ctx, time.Millisecond)
	if err != nil || next.TTL != leastTTL*heartbeat {
		t.Fatalf("a short life has %v, %v", next.TTL, err)
	}
	if _, err := s.Swap(ctx, "k", old, []byte("r"), next.ID); !errors.Is(err, kv.ErrConflict) {
		t.Errorf("a request that rests on what was there before ended with %v", err)
	}
}

// While a node runs, there is a cluster to be added to.
func TestASecondClusterIsRefused(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one", "two")
	if err := Bootstrap(within(t, patience), c.config("one")); err != nil {
		t.Fatal(err)
	}
	if err := Bootstrap(within(t, patience), c.config("one")); !errors.Is(err, disk.ErrNotEmpty) {
		t.Errorf("it is bootstrapped again with %v", err)
	}
	c.start("one")
	eventually(t, "a second cluster is refused because of the node", patience, func() bool {
		err := Bootstrap(within(t, patience), c.config("two"))
		if err == nil {
			t.Fatal("a second cluster is begun")
		}
		return strings.Contains(err.Error(), "node one at "+c.base.Peers["one"]+" runs already") // else it has not said so in time
	})
}

// Without a certificate of the authority nothing is answered, and nodes of another cluster are
// no peers.
func (c *members) strangersAreRefused(t *testing.T) {
	stranger := c.base
	authority := pgtest.NewAuthority(t)
	pair := authority.Issue(t, pgtest.Subject{Name: "stranger", Hosts: []string{"127.0.0.1"}})
	stranger.CertFile, stranger.KeyFile = pair.CertFile, pair.KeyFile
	if err := Remove(within(t, 3*time.Second), stranger, "two"); err == nil {
		t.Error("a node was removed with a certificate of another authority")
	}
	trusting := c.base
	trusting.CAFile = authority.File
	if err := Remove(within(t, 3*time.Second), trusting, "two"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a command that trusts another authority ended with %v", err)
	}
	conn, err := tls.Dial("tcp", c.base.Peers["one"], &tls.Config{InsecureSkipVerify: true, NextProtos: []string{requestProtocol}})
	if err == nil {
		_, err = conn.Read(make([]byte, 1)) // the server's verdict on the certificate comes here
		_ = conn.Close()
	}
	if err == nil {
		t.Error("without a certificate a connection is accepted")
	}
	s := c.nodes["one"].others.security
	if conn, err := s.dial(within(t, patience), c.base.Peers["two"], raftProtocol("another cluster", c.nodes["two"].disk.Identity.Disk)); err == nil {
		_ = conn.Close()
		t.Error("a node of another cluster is accepted")
	}
}

// TestANodeThatCannotWriteSaysSo: what its proxy shows is what an operator can do, until it can write again.
func TestANodeThatCannotWriteSaysSo(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one", "two", "three")
	c.begin()
	n := c.nodes["two"]
	delete(c.nodes, "two") // the client closes it
	client, err := newClient(c.config("two").withDefaults(), n, "raft, node two")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	healthy := func() bool { return client.Healthy() == nil }
	eventually(t, "the client is healthy", patience, healthy)
	var contact string
	eventually(t, "it says that it cannot write", patience, func() bool { // until the next write, which what the others replicate may be
		if err := n.disk.Set(nil, []byte("bbolt wants a key")); err == nil {
			t.Fatal("a write without a key was made")
		}
		err, contact = client.Healthy(), n.contact()
		return err != nil && strings.Contains(contact, "cannot write its directory")
	})
	var limited *election.LimitedError
	if !errors.As(err, &limited) || limited.Remedy != DirectoryRemedy || !strings.Contains(err.Error(), "the node two of Raft cannot write its directory") {
		t.Errorf("healthy: %v", err)
	}
	acquire(t, c.client(t, "another", "test").Database("d"), bid("w", long)) // which two writes as well
	eventually(t, "the client is healthy again", patience, healthy)
}

// TestARequestWithoutAnEndKeepsNoNodeFromClosing: neither what is not sent whole nor what is not read is waited for.
func TestARequestWithoutAnEndKeepsNoNodeFromClosing(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one")
	c.begin()
	client, err := newCluster(c.base)
	if err != nil {
		t.Fatal(err)
	}
	body, more := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+c.base.Peers["one"]+pathPrefix+string(opSelf), body)
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() {
		resp, err := client.client.Do(req)
		if err == nil {
			err = resp.Body.Close()
		}
		over <- err
	}()
	if _, err := more.Write([]byte("{")); err != nil {
		t.Fatal(err)
	}
	n := c.nodes["one"]
	closed := make(chan struct{})
	go func() {
		c.stop("one")
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Error("the node does not close")
	}
	if n.enter() {
		t.Error("a node that was closed takes requests")
	}
	_ = more.Close()
	<-over
	<-closed
}
