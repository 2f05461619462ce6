package zookeeper_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/zookeeper"
	"github.com/fencepost/fencepost/internal/zookeepertest"
)

// TestAnEnsemble is about three servers.
func TestAnEnsemble(t *testing.T) {
	t.Parallel()
	ensemble := zookeepertest.Start(t, zookeepertest.WithServers(3))
	t.Run("a late request over another server", func(t *testing.T) { aLateRequestOverAnotherServer(t, ensemble) })
	t.Run("without a quorum nothing is confirmed", func(t *testing.T) { withoutAQuorumNothingIsConfirmed(t, ensemble) })
	t.Run("a leader is lost", func(t *testing.T) {
		const ttl = 8 * time.Second
		electiontest.Members{
			Open: func(proxy string) electiontest.Client {
				return client(t, zookeeper.Config{Servers: ensemble.Addrs(), Prefix: "leader", Proxy: proxy})
			},
			TTL: ttl, Leader: func() int { return ensemble.Leader(t) }, Kill: ensemble.Kill, Restart: func() { ensemble.Restart(t) },
			Pause: func(i int) { ensemble.Pause(t, i) }, Continue: func(i int) { ensemble.Continue(t, i) },
		}.LoseTheLeader(t)
	})
}

// A request is still under way to one server when its proxy has connected to another one, and has
// given the lease back there. The first server only learns of that from the late request: the session
// has moved.
func aLateRequestOverAnotherServer(t *testing.T, ensemble *zookeepertest.Ensemble) {
	first, second := electiontest.NewLink(t, ensemble.Addrs()[0]), electiontest.NewLink(t, ensemble.Addrs()[1])
	second.Cut()
	p := client(t, zookeeper.Config{Servers: []string{first.Addr(), second.Addr()}, Prefix: "late", Proxy: "one"}).Database("db")
	q := client(t, zookeeper.Config{Servers: []string{ensemble.Addrs()[2]}, Prefix: "late", Proxy: "two"}).Database("db")
	seed := acquire(t, p, bid("seed", long))
	if err := p.Release(within(t, patience), seed, elector.ReasonLeft, 0); err != nil {
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
		return p.Release(within(t, patience), &elector.Lease{AcquireRequest: late}, elector.ReasonLeft, 0) == nil
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
func withoutAQuorumNothingIsConfirmed(t *testing.T, ensemble *zookeepertest.Ensemble) {
	p := client(t, zookeeper.Config{Servers: ensemble.Addrs()[:1], Prefix: "quorum", Proxy: "one"}).Database("db")
	lease := acquire(t, p, bid("a", long))
	if err := renew(t, p, lease); err != nil {
		t.Fatal(err)
	}
	ensemble.Pause(t, 1)
	ensemble.Pause(t, 2)
	if err := p.Renew(within(t, time.Second), lease); err == nil || errors.Is(err, elector.ErrLost) {
		t.Errorf("without a quorum the holder renews with %v", err)
	}
	if _, err := p.Acquire(within(t, time.Second), bid("b", long)); err == nil || errors.Is(err, elector.ErrHeld) {
		t.Errorf("without a quorum an acquire ends with %v", err)
	}
	// Servers that only go on sometimes do not find a leader for minutes.
	ensemble.Kill(1)
	ensemble.Kill(2)
	ensemble.Restart(t)
	if err := renew(t, p, lease); err != nil {
		t.Errorf("with a quorum again, the holder renews with %v", err)
	}
}
