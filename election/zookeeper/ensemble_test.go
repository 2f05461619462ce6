package zookeeper_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/zookeeper"
	"github.com/fencepost/fencepost/internal/stopwatch"
	"github.com/fencepost/fencepost/internal/zookeepertest"
)

// Whoever leads an ensemble of three is frozen, then killed. The term goes on each time, and a dead
// proxy's lease is free after a timeout that began anew.
func TestALeaderOfZooKeeperIsLost(t *testing.T) {
	t.Parallel()
	ensemble := zookeepertest.Start(t, zookeepertest.WithServers(3))
	open := func(proxy string) election.Provider {
		return client(t, zookeeper.Config{Servers: ensemble.Addrs(), TTL: 8 * time.Second, Proxy: proxy}).Database("db")
	}
	p, q := open("one"), open("two")
	const ttl = 8 * time.Second
	lease := acquire(t, p, bid("a", ttl))
	leader := ensemble.Leader(t)
	ensemble.Pause(t, leader)
	if err := renew(t, p, lease); err != nil {
		t.Errorf("while the leader is frozen, the holder renews with %v", err)
	}
	ensemble.Continue(t, leader)
	if err := renew(t, p, lease); err != nil {
		t.Errorf("after the old leader woke up, the holder renews with %v", err)
	}
	ensemble.Kill(ensemble.Leader(t))
	if err := renew(t, p, lease); err != nil {
		t.Errorf("after the leader was killed, the holder renews with %v", err)
	}
	if _, err := q.Acquire(within(t, 2*time.Second), bid("b", ttl)); err == nil {
		t.Error("somebody else got the lease")
	}
	began, watch := time.Now(), stopwatch.Start(t) // the holder's candidacy dies
	next := acquire(t, q, bid("b", long))
	if took := time.Since(began); watch.Late(t, took, 3*ttl) {
		t.Errorf("the lease was free after %v", took)
	}
	if next.Index <= lease.Index || next.InstanceID != lease.InstanceID {
		t.Errorf("award (%s, %d) came after (%s, %d)", next.InstanceID, next.Index, lease.InstanceID, lease.Index)
	}
	ensemble.Restart(t)
	if err := renew(t, q, next); err != nil {
		t.Errorf("with all servers again, the holder renews with %v", err)
	}
}

// A request is still under way to one server when its proxy has connected to another one, and has
// given the lease back there. The first server only learns of that from the late request: the session
// has moved.
func TestALateRequestOverAnotherServer(t *testing.T) {
	t.Parallel()
	ensemble := zookeepertest.Start(t, zookeepertest.WithServers(3))
	first, second := electiontest.NewLink(t, ensemble.Addrs()[0]), electiontest.NewLink(t, ensemble.Addrs()[1])
	second.Cut()
	p := client(t, zookeeper.Config{Servers: []string{first.Addr(), second.Addr()}, TTL: long, Proxy: "one"}).Database("db")
	q := client(t, zookeeper.Config{Servers: []string{ensemble.Addrs()[2]}, TTL: long, Proxy: "two"}).Database("db")
	seed := acquire(t, p, bid("seed", long))
	if err := p.Release(within(t, patience), seed, election.ReasonLeft, 0); err != nil {
		t.Fatal(err)
	}
	late := bid("late", long)
	held := first.Hold(t, `{"state":"held","worker":"late"`)
	ctx, cancel := context.WithCancel(within(t, patience))
	ended := make(chan error, 1)
	go func() { _, err := p.Acquire(ctx, late); ended <- err }()
	held.Await()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("the cancelled acquire ended with %v", err)
	}
	second.Mend()
	first.Refuse()
	held.Sever()
	eventually(t, "the lease is given back over the other server", patience, func() bool {
		return p.Release(within(t, patience), &election.Lease{AcquireRequest: late}, election.ReasonLeft, 0) == nil
	})
	held.Submit()
	next := acquire(t, q, bid("b", long))
	if err := q.Renew(within(t, patience), next); err != nil {
		t.Errorf("the next holder renews with %v", err)
	}
	if second.Made() == 0 {
		t.Error("nothing went over the other server")
	}
}

// A server that has lost its quorum answers reads until it notices. Nothing is renewed, awarded or
// released by that.
func TestWithoutAQuorumNothingIsConfirmed(t *testing.T) {
	t.Parallel()
	ensemble := zookeepertest.Start(t, zookeepertest.WithServers(3))
	p := client(t, zookeeper.Config{Servers: ensemble.Addrs()[:1], TTL: long, Proxy: "one"}).Database("db")
	lease := acquire(t, p, bid("a", long))
	if err := renew(t, p, lease); err != nil {
		t.Fatal(err)
	}
	ensemble.Pause(t, 1)
	ensemble.Pause(t, 2)
	if err := p.Renew(within(t, time.Second), lease); err == nil || errors.Is(err, election.ErrLost) {
		t.Errorf("without a quorum the holder renews with %v", err)
	}
	if _, err := p.Acquire(within(t, time.Second), bid("b", long)); err == nil || errors.Is(err, election.ErrHeld) {
		t.Errorf("without a quorum an acquire ends with %v", err)
	}
	ensemble.Continue(t, 1)
	ensemble.Continue(t, 2)
	if err := renew(t, p, lease); err != nil {
		t.Errorf("with a quorum again, the holder renews with %v", err)
	}
}
