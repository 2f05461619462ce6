package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/etcd"
	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/files"
)

// A member that was killed has its data when it starts again: the term continues.
func TestEtcdRestartsWhileALeaseIsHeld(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	electiontest.Outage{
		Service: "etcd at " + cluster.Addr(), Client: client(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "one"}), TTL: long,
		Kill: func() { cluster.Kill(0) }, Restart: func() { cluster.Restart(t) },
		Pause: func() { cluster.Pause(t, 0) }, Continue: func() { cluster.Continue(t, 0) },
	}.Run(t)
}

// What was compacted is not needed: a watch starts over with what there is.
func TestCompactionIsNoticedByNoOne(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	p := client(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "one"}).Database("db")
	q := client(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "two"}).Database("db")
	lease := acquire(t, p, bid("a", long))
	as := cluster.Client(t, "", "")
	for i := range 20 {
		if _, err := as.Put(within(t, patience), "other", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	now, err := as.Get(within(t, patience), "other")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := as.Compact(within(t, patience), now.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if err := p.Renew(within(t, patience), lease); err != nil {
		t.Errorf("the holder renews with %v", err)
	}
	if err := p.Release(within(t, patience), lease, elector.ReasonLeft, 0); err != nil {
		t.Errorf("the holder releases with %v", err)
	}
	next := acquire(t, q, bid("b", long))
	if next.Index <= lease.Index {
		t.Errorf("award %d came after %d", next.Index, lease.Index)
	}
	var obs elector.Observation
	eventually(t, "the first proxy sees the new holder", patience, func() bool {
		obs, err = p.Watch(within(t, patience), "billing", obs)
		return err == nil && obs.State == elector.Held && obs.Incarnation == "b-1"
	})
}

const remedy = "readwrite on the prefix fencepost/"

func TestMissingRightsAreUnknownNotLost(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	admin := authenticate(t, cluster, "root", "secret")
	change := func(do func(ctx context.Context) error) func(*elector.Lease) {
		return func(*elector.Lease) {
			if err := do(within(t, patience)); err != nil {
				t.Fatal(err)
			}
		}
	}
	electiontest.Rights{
		Open: func(who electiontest.Login) electiontest.Client {
			return client(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "of " + who.User + who.Password, Login: files.Login{User: who.User, Password: who.Password}})
		},
		Holder: electiontest.Login{User: "full", Password: "secret", Remedy: remedy},
		Strangers: map[string]electiontest.Login{
			"no rights": {User: "none", Password: "secret"}, "a wrong password": {User: "full", Password: "wrong"}, "no user": {},
			"a user that is unknown": {User: "nobody", Password: "secret"},
		},
		Deny:  change(func(ctx context.Context) error { _, err := admin.UserRevokeRole(ctx, "full", "fencepost"); return err }),
		Allow: change(func(ctx context.Context) error { _, err := admin.UserGrantRole(ctx, "full", "fencepost"); return err }),
	}.Run(t)
}

// authenticate enables authentication, with the users root, full and none, and returns a client
// of this one, or of whom the cluster's certificate for operators names.
func authenticate(t *testing.T, cluster *etcdtest.Cluster, user, password string) *clientv3.Client {
	t.Helper()
	c, ctx := cluster.Client(t, "", ""), within(t, patience)
	var errs []error
	do := func(_ any, err error) { errs = append(errs, err) }
	do(c.RoleAdd(ctx, "root"))
	do(c.RoleAdd(ctx, "fencepost"))
	do(c.RoleGrantPermission(ctx, "fencepost", "fencepost/", clientv3.GetPrefixRangeEnd("fencepost/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	for _, user := range []string{"root", "full", "none"} {
		do(c.UserAdd(ctx, user, "secret"))
	}
	do(c.UserGrantRole(ctx, "root", "root"))
	do(c.UserGrantRole(ctx, "full", "fencepost"))
	do(c.AuthEnable(ctx))
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("enable authentication: %v", err)
	}
	return cluster.Client(t, user, password)
}

// With etcd's own ticks a TTL is at least 2 s, whatever was asked for: that is a fact of the
// lease, and nothing is wrong.
func TestATTLBelowTheLeastIsRaised(t *testing.T) {
	t.Parallel()
	const granted = 2 * time.Second
	cluster := etcdtest.Start(t, etcdtest.WithDefaultTicks())
	c := client(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "one"})
	q := client(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "two"})
	began := time.Now()
	lease := acquire(t, c.Database("db"), bid("a", 600*time.Millisecond))
	if lease.Granted != granted {
		t.Errorf("etcd has granted %v, want %v", lease.Granted, granted)
	}
	acquire(t, q.Database("db"), bid("b", long))
	if took := time.Since(began); took < granted-500*time.Millisecond {
		t.Errorf("the lease was free after %v", took)
	}
	if err := c.Check(within(t, patience), []time.Duration{600 * time.Millisecond, long}); err != nil {
		t.Errorf("the test of these TTLs ended with %v", err)
	}
}
