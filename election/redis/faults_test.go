package redis_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/redis"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
	"github.com/fencepost/fencepost/internal/redistest"
)

// A server that was killed has its data when it starts again: the term continues. The next award is of
// another instance, because nothing shows whether the data are older.
func TestRedisRestartsWhileALeaseIsHeld(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, lease := electiontest.Outage{
		Service: "Redis at " + server.Addr(), Client: client(t, redis.Config{Address: server.Addr(), Proxy: "one"}), TTL: long,
		Kill: server.Kill, Restart: func() { server.Restart(t) }, Pause: func() { server.Pause(t) }, Continue: func() { server.Continue(t) },
	}.Run(t)
	if err := p.Release(within(t, patience), lease, elector.ReasonLeft, 0); err != nil {
		t.Fatal(err)
	}
	if next := acquire(t, p, bid("b", long)); next.InstanceID == lease.InstanceID || next.Index <= lease.Index {
		t.Errorf("award (%s, %d) came after (%s, %d)", next.InstanceID, next.Index, lease.InstanceID, lease.Index)
	}
}

// A replica that has not seen the newest awards takes the master's place, and the master continues for
// those who still reach it. Both award the same index, in different instances.
func TestALaggingFailoverBeginsAnInstance(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.Start(t, redistest.WithReplicaOf(master))
	p := client(t, redis.Config{Address: master.Addr(), Proxy: "one"}).Database("db")
	first := acquire(t, p, bid("a", long))
	master.AwaitReplicas(t, 1)
	q := client(t, redis.Config{Address: replica.Addr(), Proxy: "two"}).Database("db")
	_, err := q.Acquire(within(t, patience), bid("b", long))
	isDenied(t, "a replica's award", err, "It must be the master")

	replica.Promote(t)
	if err := p.Release(within(t, patience), first, elector.ReasonLeft, 0); err != nil {
		t.Fatal(err)
	}
	there := acquire(t, p, bid("c", long)) // the old master continues
	eventually(t, "the new master has the first award", patience, func() bool {
		_, err := q.Acquire(within(t, patience), bid("b", long))
		return errors.Is(err, elector.ErrHeld)
	})
	if err := renew(t, q, there); !errors.Is(err, elector.ErrLost) {
		t.Errorf("an award that the new master has not seen renews with %v", err)
	}
	if err := q.Release(within(t, patience), first, elector.ReasonLeft, 0); err != nil {
		t.Fatal(err)
	}
	here := acquire(t, q, bid("d", long))
	if here.Index != there.Index || here.InstanceID == there.InstanceID {
		t.Errorf("the old master awarded (%s, %d), the new one (%s, %d): want the same index, and two instances", there.InstanceID, there.Index, here.InstanceID, here.Index)
	}
	marker := func(instance string) string { marker, _, _ := strings.Cut(instance, "."); return marker }
	if marker(here.InstanceID) != marker(there.InstanceID) {
		t.Errorf("the markers of %s and %s differ", there.InstanceID, here.InstanceID)
	}
}

// After a failover, the address leads to another server, while connections to the old one, a replica by
// now, stay open. No request goes over them any more.
func TestTheAddressFollowsTheMaster(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.Start(t, redistest.WithReplicaOf(master))
	master.AwaitReplicas(t, 1)
	var leads atomic.Value
	leads.Store(replica.Addr())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", leads.Load().(string))
			if err != nil {
				_ = conn.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, conn); _ = server.Close() }()
			go func() { _, _ = io.Copy(conn, server); _ = conn.Close() }()
		}
	}()
	p := client(t, redis.Config{Address: listener.Addr().String(), Proxy: "one"}).Database("db")
	_, err = p.Acquire(within(t, patience), bid("a", long))
	isDenied(t, "a replica's award", err, "It must be the master")
	leads.Store(master.Addr())
	eventually(t, "the master awards the lease", patience, func() bool {
		_, err := p.Acquire(within(t, patience), bid("a", long))
		return err == nil
	})
}

// Redis counts by its wall clock. A step forward ends a lease, and a step backward does not keep one
// of a dead holder for longer than its TTL.
func TestTheClockOfRedisSteps(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.WithClock())
	p := client(t, redis.Config{Address: server.Addr(), Proxy: "one"}).Database("db")
	q := client(t, redis.Config{Address: server.Addr(), Proxy: "two"}).Database("db")
	lease := acquire(t, p, bid("a", 10*time.Second))
	server.SetClock(t, 30*time.Second)
	next := acquire(t, q, bid("b", 10*time.Second))
	if err := renew(t, p, lease); !errors.Is(err, elector.ErrLost) {
		t.Errorf("after a step forward the holder renews with %v", err)
	}
	server.SetClock(t, -time.Hour)
	if err := renew(t, q, next); err != nil {
		t.Errorf("after a step backward the holder renews with %v", err)
	}
	server.SetClock(t, -2*time.Hour) // and its proxy dies
	last := acquire(t, p, bid("c", 10*time.Second))
	if last.Index <= next.Index || next.Index <= lease.Index || last.InstanceID != lease.InstanceID {
		t.Errorf("awards (%s, %d), (%s, %d), (%s, %d)", lease.InstanceID, lease.Index, next.InstanceID, next.Index, last.InstanceID, last.Index)
	}
}

// A Redis that may delete leases before they expire awards none. Those that it has continue.
func TestARedisThatEvictsAwardsNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := client(t, redis.Config{Address: server.Addr(), Proxy: "one"})
	p := c.Database("db")
	lease := acquire(t, p, bid("a", long))
	for _, policy := range []string{"allkeys-lru", "volatile-ttl"} {
		server.Do(t, "CONFIG", "SET", "maxmemory-policy", policy)
		eventually(t, "the client knows", patience, func() bool {
			err := c.Healthy()
			return err != nil && strings.Contains(err.Error(), "maxmemory-policy is "+policy)
		})
		other := bid("b", long)
		other.Resource = "other"
		_, err := p.Acquire(within(t, patience), other)
		isDenied(t, "acquire", err, "Set maxmemory-policy noeviction")
		isDenied(t, "the check", c.Check(within(t, patience), []time.Duration{long}), "Set maxmemory-policy noeviction")
		if err := p.Renew(within(t, patience), lease); err != nil {
			t.Errorf("the holder renews with %v", err)
		}
	}
	if err := p.Release(within(t, patience), lease, elector.ReasonLeft, 0); err != nil {
		t.Errorf("the holder releases with %v", err)
	}
	server.Do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	eventually(t, "the client knows that it may ask again", patience, func() bool { return c.Healthy() == nil })
	acquire(t, p, bid("b", long))
}

func TestARedisThatIsFull(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	electiontest.Full{
		Open: func(proxy string) electiontest.Client {
			return client(t, redis.Config{Address: server.Addr(), Proxy: proxy})
		},
		Fill: func() { server.Do(t, "CONFIG", "SET", "maxmemory", "1") },
		Mend: func() { server.Do(t, "CONFIG", "SET", "maxmemory", "0") }, Remedy: "Raise maxmemory",
	}.Run(t)
}

// Whoever empties the cache of scripts changes nothing.
func TestScriptsAreLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := client(t, redis.Config{Address: server.Addr(), Proxy: "one"}).Database("db")
	lease := acquire(t, p, bid("a", long))
	server.Do(t, "SCRIPT", "FLUSH", "SYNC")
	if err := p.Renew(within(t, patience), lease); err != nil {
		t.Errorf("the holder renews with %v", err)
	}
	server.Do(t, "SCRIPT", "FLUSH", "SYNC")
	if err := p.Release(within(t, patience), lease, elector.ReasonLeft, 0); err != nil {
		t.Errorf("the holder releases with %v", err)
	}
	server.Do(t, "SCRIPT", "FLUSH", "SYNC")
	if _, err := p.Acquire(within(t, patience), bid("b", long)); err != nil {
		t.Errorf("the next worker gets %v", err)
	}
}

// What cannot be used says so with the first request.
func TestServersThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts   []redistest.Option
		db     int
		remedy string
	}{
		"a node of a cluster":          {[]redistest.Option{redistest.With("cluster-enabled", "yes", "cluster-port", fmt.Sprint(ports.For(t).Number))}, 0, "does not support Redis Cluster"},
		"a sentinel":                   {[]redistest.Option{redistest.AsSentinel()}, 0, "does not ask a Sentinel for the master"},
		"a database that is not there": {nil, 16, "number of a database that this Redis has"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, c.opts...)
			p := client(t, redis.Config{Address: server.Addr(), Database: c.db, Proxy: "one"}).Database("db")
			_, err := p.Acquire(within(t, patience), bid("a", long))
			isDenied(t, "acquire", err, c.remedy)
		})
	}
}

// A renewal over a connection that is dead is sent again over another one.
func TestADeadConnectionCostsNoLease(t *testing.T) {
	t.Parallel()
	prefix := pgtest.Shared(t).Database(t)
	link := electiontest.NewLink(t, redistest.Shared(t).Addr())
	p := client(t, redis.Config{Address: link.Addr(), Prefix: prefix, Proxy: "one"}).Database("db")
	lease := acquire(t, p, bid("a", long))
	held := link.Hold(t, lease.Handle)
	began := time.Now()
	if err := p.Renew(within(t, patience), lease); err != nil {
		t.Errorf("after %v the renewal ended with %v", time.Since(began), err)
	}
	held.Await()
	held.Forward()
}
