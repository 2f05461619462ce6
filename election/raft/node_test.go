package raft

import (
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

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/raft/disk"
	"github.com/fencepost/fencepost/election/raft/state"
	"github.com/fencepost/fencepost/election/standstill"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// What leaves a cluster as it was.
func TestACluster(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	t.Run("store", func(t *testing.T) {
		electiontest.RunStore(t, standstill.New(&service{nodes: c.all, space: "store", name: "raft"}, "one", 0))
	})
	t.Run("strangers are refused", c.strangersAreRefused)
	t.Run("an unknown command is refused", c.anUnknownCommandIsRefused)
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

// A leader that was cut off believes that it leads, and its replica shows the old holder. Nothing
// that it decides succeeds.
func TestALeaderThatIsCutOffDecidesNothing(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	old := c.leader()
	if err := c.mark(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	for name, n := range c.nodes { // the others are gone, and the leader does not know yet
		if n != old {
			c.stop(name)
		}
	}
	var v state.View
	if _, err := old.machine.look(func(s *state.State) { v = s.View("test", "k") }); err != nil || v.Marker != "m" {
		t.Fatalf("its replica shows %+v, %v", v, err)
	}
	name := old.cfg.Name
	if err := c.all.ask(within(t, 2*time.Second), name, request{op: opRead, in: readRequest{"test", "k"}}, false, &v); err == nil {
		t.Error("a read that decides has succeeded")
	}
	put := state.Command{Op: state.Put, Space: "test", Key: "k", Text: []byte("1")}
	var refused *refusal
	if err := c.all.ask(within(t, 2*time.Second), name, request{op: opApply, in: put}, false, nil); err == nil || errors.As(err, &refused) {
		t.Errorf("a write ended with %v", err)
	}
	if err := c.all.ask(within(t, 2*time.Second), name, request{op: opChanges, in: changesRequest{Space: "test", First: true}}, false, nil); err == nil {
		t.Error("a watch has begun")
	}
}

// Entries are sent while the lead is handed from node to node. Each is applied once.
func (c *members) theLeadIsHandedOver(t *testing.T) {
	ended := make(chan error, 1)
	go func() { // ends before the test does, which waits for it
		var last uint64
		for i := range 60 {
			cmd := state.Command{Op: state.Put, Space: "handed over", Key: "k", Text: fmt.Append(nil, i), Basis: last}
			o, err := c.apply(within(t, patience), cmd)
			if err != nil || o.Version <= last {
				ended <- fmt.Errorf("write %d after %d: %+v, %w", i, last, o, err)
				return
			}
			last = o.Version
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
	refused := new(refusal)
	for name, in := range map[string]any{
		"an operation": map[string]any{"op": "newer", "space": "test"},
		"a field":      map[string]any{"op": state.Mark, "space": "test", "marker": "m", "newer": true},
	} {
		if err := c.all.call(within(t, patience), request{op: opApply, in: in}, nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), "unknown command") {
			t.Errorf("%s that no node knows ends with %v", name, err)
		}
	}
	if err := c.mark(within(t, patience)); err != nil {
		t.Errorf("then an entry ends with %v", err)
	}
}

// With two of three gone nothing is awarded, and a holder cannot renew. With two again, the term
// continues if its record was not taken.
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
	if err == nil || errors.Is(err, elector.ErrLost) || !strings.Contains(err.Error(), "raft") {
		t.Errorf("the holder renews with %v", err)
	}
	if l, err := q.Database("db").Acquire(within(t, 3*time.Second), bid("b", long)); err == nil || errors.Is(err, elector.ErrHeld) {
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
	eventually(t, "the replica of the new node has the holder", patience, func() (has bool) {
		_, err := c.nodes["three"].machine.look(func(s *state.State) {
			has = strings.Contains(string(s.View("test", "db/billing").Record.Text), lease.Handle)
		})
		return err == nil && has
	})
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
	for _, name := range []string{"one", "two"} {
		cfg := c.config(name)
		cfg.Dir = filepath.Join(c.dir, "another")
		if err := Bootstrap(within(t, patience), cfg); err == nil || !strings.Contains(err.Error(), "accepts connections at "+c.base.Peers["one"]) {
			t.Errorf("a second cluster is begun at %s with %v", name, err)
		}
	}
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
	if conn, err := c.all.security.dial(within(t, patience), c.base.Peers["two"], raftProtocol("another cluster", c.nodes["two"].disk.Identity.Disk)); err == nil {
		_ = conn.Close()
		t.Error("a node of another cluster is accepted")
	}
}

// TestANodeThatCannotWriteSaysSo: what its proxy shows is what an operator can do, until it can write again.
func TestANodeThatCannotWriteSaysSo(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	n := c.nodes["two"]
	var err error
	eventually(t, "it says that it cannot write", patience, func() bool { // until the next write, which what the others replicate may be
		if err := n.disk.Set(nil, []byte("bbolt wants a key")); err == nil {
			t.Fatal("a write without a key was made")
		}
		var said NodeStatus
		if c.all.ask(within(t, patience), "two", request{op: opSelf}, false, &said) != nil {
			return false
		}
		err = n.healthy()
		return err != nil && said.Problem != ""
	})
	var limited *elector.LimitedError
	if !errors.As(err, &limited) || limited.Remedy != DirectoryRemedy || !strings.Contains(err.Error(), "the node two of Raft cannot write its directory") {
		t.Errorf("healthy: %v", err)
	}
	eventually(t, "it can write again", patience, func() bool { return c.mark(within(t, patience)) == nil && n.healthy() == nil })
}

// TestARequestWithoutAnEndKeepsNoNodeFromClosing: what is not sent whole is not waited for.
func TestARequestWithoutAnEndKeepsNoNodeFromClosing(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one")
	c.begin()
	body, more := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+c.base.Peers["one"]+pathPrefix+string(opSelf), body)
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() {
		resp, err := c.all.client.Do(req)
		if err == nil {
			err = resp.Body.Close()
		}
		over <- err
	}()
	if _, err := more.Write([]byte("{")); err != nil {
		t.Fatal(err)
	}
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
	_ = more.Close()
	<-over
	<-closed
}
