package zookeeper_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/zookeeper"
	"github.com/fencepost/fencepost/internal/files"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/zookeepertest"
)

// The server is away for longer than the TTL. The term continues if no one has taken the lease.
func TestZooKeeperRestartsWhileALeaseIsHeld(t *testing.T) {
	t.Parallel()
	ensemble := zookeepertest.Start(t)
	const ttl = 8 * time.Second
	electiontest.Outage{
		Service: "ZooKeeper at " + ensemble.Addr(), Client: client(t, zookeeper.Config{Servers: ensemble.Addrs(), Proxy: "one"}),
		Kill: func() { ensemble.Kill(0) }, Restart: func() { ensemble.Restart(t) }, Away: ttl,
		Pause: func() { ensemble.Pause(t, 0) }, Continue: func() { ensemble.Continue(t, 0) },
	}.Run(t)
}

const remedy = "(crwd) on /fencepost"

func TestMissingRightsAreUnknownNotLost(t *testing.T) {
	t.Parallel()
	ensemble := zookeepertest.Start(t)
	allow := func(acl []zk.ACL) func(*elector.Lease) {
		return func(*elector.Lease) {
			if _, err := ensemble.Client(t, "full", "secret").SetACL("/fencepost/db/billing", acl, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	electiontest.Rights{
		Open: func(who electiontest.Login) electiontest.Client {
			return client(t, zookeeper.Config{Servers: ensemble.Addrs(), Proxy: "of " + who.User + who.Password, Login: files.Login{User: who.User, Password: who.Password}})
		},
		Holder: electiontest.Login{User: "full", Password: "secret", Remedy: remedy},
		Strangers: map[string]electiontest.Login{
			"another user": {User: "none", Password: "secret"}, "a wrong password": {User: "full", Password: "wrong"}, "no user": {},
		},
		Sessions: true,
		Deny:     allow([]zk.ACL{{Perms: zk.PermAdmin, Scheme: "auth"}}), Allow: allow(zk.AuthACL(zk.PermAll)),
	}.Run(t)
}

// TestAForeignZnodeCostsItsOwnResource, and no other, until its ACL is mended.
func TestAForeignZnodeCostsItsOwnResource(t *testing.T) {
	t.Parallel()
	ensemble := zookeepertest.Start(t)
	as := ensemble.Client(t, "somebody", "else")
	p := client(t, zookeeper.Config{Servers: ensemble.Addrs(), Proxy: "one"}).Database("db")
	acquire(t, p, bid("a", long))
	for _, path := range []string{"/fencepost/db/foreign", "/fencepost/elsewhere"} {
		if _, err := as.Create(path, nil, 0, zk.DigestACL(zk.PermAll, "somebody", "else")); err != nil {
			t.Fatal(err)
		}
	}
	q := client(t, zookeeper.Config{Servers: ensemble.Addrs(), Proxy: "two"}).Database("db")
	other, foreign := bid("b", long), bid("c", long)
	other.Resource, foreign.Resource = "other", "foreign"
	acquire(t, q, other)
	_, err := q.Acquire(within(t, patience), foreign)
	electiontest.IsDenied(t, "the foreign one", err, remedy)
	if obs, err := q.Watch(within(t, patience), "billing", elector.Observation{}); err != nil || obs.Incarnation != "a-1" {
		t.Errorf("the watch shows %+v, %v", obs, err)
	}
	if _, err := as.SetACL("/fencepost/db/foreign", zk.WorldACL(zk.PermAll), -1); err != nil {
		t.Fatal(err)
	}
	acquire(t, q, foreign)
}

func TestNamesCannotMeetInOneZnode(t *testing.T) {
	t.Parallel()
	ensemble, prefix := zookeepertest.Shared(t), pgtest.Shared(t).Database(t)
	c := client(t, zookeeper.Config{Servers: ensemble.Addrs(), Prefix: prefix + "/below", Proxy: "one"})
	for _, name := range [][2]string{
		{"a/b", "c"}, {"a", "b/c"}, {"a%2Fb", "c"}, {".", "c"}, {"..", "c"}, {"a", ".generation"}, {"ä", "c"}, {"a b", "?c#d"},
		{"a", "b"}, {".lives", "a"}, {".generation", "a"}, {"a", ".lives"},
	} {
		b := bid("w"+name[0]+"|"+name[1], long)
		b.Resource = name[1]
		p := electiontest.Reached(t, c.Database(name[0]))
		lease, err := p.Acquire(within(t, patience), b)
		if err != nil {
			t.Errorf("the lease of %q is not free: %v", name, err)
			continue
		}
		if err := p.Renew(within(t, patience), lease); err != nil {
			t.Errorf("the lease of %q renews with %v", name, err)
		}
		var obs elector.Observation
		for ctx := within(t, patience); err == nil && obs.State != elector.Held; {
			obs, err = p.Watch(ctx, name[1], obs)
		}
		if err != nil || obs.Incarnation != b.Incarnation {
			t.Errorf("the lease of %q is seen as %+v, %v", name, obs, err)
		}
	}
}

// Two hundred leases and their renewals need one connection, and their watches another one.
func TestManyLeasesShareTwoConnections(t *testing.T) {
	t.Parallel()
	ensemble, prefix := zookeepertest.Shared(t), pgtest.Shared(t).Database(t)
	link := electiontest.NewLink(t, ensemble.Addr())
	p := client(t, zookeeper.Config{Servers: []string{link.Addr()}, Prefix: prefix, Proxy: "one"}).Database("db")
	electiontest.Reached(t, p)
	const leases = 200
	var held [leases]*elector.Lease
	each := func(what string, do func(i int, b elector.AcquireRequest) error) {
		t.Helper()
		began, ended := time.Now(), make(chan error)
		for i := range leases {
			b := bid(fmt.Sprint("w", i), long)
			b.Resource = fmt.Sprint("r", i)
			go func() { ended <- do(i, b) }()
		}
		for range leases {
			if err := <-ended; err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		t.Logf("%s of %d leases: %v", what, leases, time.Since(began))
	}
	each("acquire", func(i int, b elector.AcquireRequest) (err error) {
		held[i], err = p.Acquire(within(t, patience), b)
		return err
	})
	if t.Failed() {
		return
	}
	each("renew", func(i int, _ elector.AcquireRequest) error { return p.Renew(within(t, patience), held[i]) })
	each("watch", func(_ int, b elector.AcquireRequest) (err error) {
		for obs := (elector.Observation{}); err == nil && obs.Incarnation != b.Incarnation; {
			obs, err = p.Watch(within(t, patience), b.Resource, obs)
		}
		return err
	})
	each("release", func(i int, _ elector.AcquireRequest) error {
		return p.Release(within(t, patience), held[i], elector.ReasonLeft, 0)
	})
	if made := link.Made(); made != 2 {
		t.Errorf("%d connections were made", made)
	}
}
