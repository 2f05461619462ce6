package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/etcd"
	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/faults"
)

const long = 60 * time.Second

func bid(worker string, ttl time.Duration) election.AcquireRequest {
	return election.AcquireRequest{Resource: "billing", Worker: worker, Incarnation: worker + "-1", TTL: ttl}
}

// acquire waits for the lease.
func acquire(t *testing.T, p election.Provider, b election.AcquireRequest) (lease *election.Lease) {
	t.Helper()
	eventually(t, "the lease of "+b.Worker+" is awarded", patience, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var err error
		lease, err = p.Acquire(ctx, b)
		return err == nil
	})
	return lease
}

// renew renews a lease until the outcome is known.
func renew(t *testing.T, p election.Provider, l *election.Lease) error {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		err := p.Renew(ctx, l)
		cancel()
		if err == nil || errors.Is(err, election.ErrLost) || time.Now().After(end) {
			return err
		}
	}
}

// Whoever leads an etcd of three members is frozen, then killed. The term goes on each time, and
// a dead proxy's lease is free after a TTL that began anew.
func aLeaderIsLost(t *testing.T, cluster *etcdtest.Cluster) {
	open := func(proxy string) election.Provider {
		return client(t, etcd.Config{Endpoints: cluster.Endpoints(), Prefix: "leader", Proxy: proxy}).Database("db")
	}
	p, q := open("one"), open("two")
	const ttl = 10 * time.Second // a renewal on a busy machine, with another leader, takes some seconds
	lease := acquire(t, p, bid("a", ttl))
	leader := cluster.Leader(t)
	cluster.Pause(t, leader)
	if err := renew(t, p, lease); err != nil {
		t.Errorf("while the leader is frozen, the holder renews with %v", err)
	}
	cluster.Continue(t, leader)
	if err := renew(t, p, lease); err != nil {
		t.Errorf("after the old leader woke up, the holder renews with %v", err)
	}
	cluster.Kill(cluster.Leader(t))
	if err := renew(t, p, lease); err != nil {
		t.Errorf("after the leader was killed, the holder renews with %v", err)
	}
	if _, err := q.Acquire(within(t, 2*time.Second), bid("b", ttl)); err == nil {
		t.Error("somebody else got the lease")
	}
	next := acquire(t, q, bid("b", ttl))
	if next.Index <= lease.Index || next.InstanceID != lease.InstanceID {
		t.Errorf("award (%s, %d) came after (%s, %d)", next.InstanceID, next.Index, lease.InstanceID, lease.Index)
	}
	cluster.Restart(t)
	if err := renew(t, q, next); err != nil {
		t.Errorf("with all members again, the holder renews with %v", err)
	}
}

// A member that was killed has its data when it starts again: the term goes on.
func TestEtcdRestartsWhileALeaseIsHeld(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	c := client(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "one"})
	p := c.Database("db")
	lease := acquire(t, p, bid("a", long))
	cluster.Kill(0)
	for what, request := range map[string]func() error{
		"renew":   func() error { return p.Renew(within(t, patience), lease) },
		"acquire": func() error { _, err := p.Acquire(within(t, patience), bid("b", long)); return err },
		"release": func() error { return p.Release(within(t, patience), lease, election.ReasonLeft, 0) },
	} {
		eventually(t, "the error names the cause", patience, func() bool {
			err := request()
			var network net.Error
			if errors.Is(err, election.ErrLost) || errors.Is(err, election.ErrHeld) || !errors.As(err, &network) {
				t.Fatalf("without etcd, %s ended with %v", what, err)
			}
			return strings.Contains(err.Error(), "etcd at "+cluster.Addr()+" cannot be reached") && strings.Contains(err.Error(), "refused")
		})
	}
	eventually(t, "the client knows", patience, func() bool { return c.Healthy() != nil })
	cluster.Restart(t)
	if err := renew(t, p, lease); err != nil {
		t.Errorf("after the restart the holder renews with %v", err)
	}
	eventually(t, "the client knows that etcd is there", patience, func() bool { return c.Healthy() == nil })
	cluster.Pause(t, 0)
	if err := p.Renew(within(t, time.Second), lease); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, election.ErrLost) {
		t.Errorf("while etcd stands still the holder renews with %v", err)
	}
	eventually(t, "the client knows that etcd stands still", patience, func() bool { return c.Healthy() != nil })
	cluster.Continue(t, 0)
	if err := renew(t, p, lease); err != nil {
		t.Errorf("when etcd goes on the holder renews with %v", err)
	}
}

// What was compacted is not needed: a watch begins anew with what there is.
func TestCompactionIsNoticedByNobody(t *testing.T) {
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
	if err := p.Release(within(t, patience), lease, election.ReasonLeft, 0); err != nil {
		t.Errorf("the holder releases with %v", err)
	}
	next := acquire(t, q, bid("b", long))
	if next.Index <= lease.Index {
		t.Errorf("award %d came after %d", next.Index, lease.Index)
	}
	var obs election.LeaseObservation
	eventually(t, "the first proxy sees the new holder", patience, func() bool {
		obs, err = p.Watch(within(t, patience), "billing", obs)
		return err == nil && obs.State == election.Held && obs.Incarnation == "b-1"
	})
}

// TestMissingRightsAreUnknownNotLost: users without rights, with a wrong password, without a
// user, and one whose rights are taken away and given back while it holds a lease.
func TestMissingRightsAreUnknownNotLost(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	admin := authenticate(t, cluster, "root", "secret")
	open := func(user, password string) election.Provider {
		return client(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "of " + user + password, User: user, Password: password}).Database("db")
	}
	p := open("full", "secret")
	lease := acquire(t, p, bid("a", long))
	if err := p.Renew(within(t, patience), lease); err != nil {
		t.Fatalf("renew with all rights: %v", err)
	}
	for name, q := range map[string]election.Provider{
		"no rights": open("none", "secret"), "a wrong password": open("full", "wrong"), "no user": open("", ""),
		"a user that is unknown": open("nobody", "secret"),
	} {
		isDenied(t, name+": renew", q.Renew(within(t, patience), lease))
		other := bid(name, long)
		other.Resource = "other"
		_, err := q.Acquire(within(t, patience), other)
		isDenied(t, name+": acquire", err)
		_, err = q.Watch(within(t, patience), "other", election.LeaseObservation{})
		isDenied(t, name+": watch", err)
	}
	ctx := within(t, patience)
	if _, err := admin.UserRevokeRole(ctx, "full", "fencepost"); err != nil {
		t.Fatal(err)
	}
	isDenied(t, "after the role was revoked: renew", p.Renew(ctx, lease))
	if _, err := admin.UserGrantRole(ctx, "full", "fencepost"); err != nil {
		t.Fatal(err)
	}
	if err := renew(t, p, lease); err != nil {
		t.Errorf("the holder, whose rights were restored, renews with %v", err)
	}
	if err := p.Release(ctx, lease, election.ReasonLeft, 0); err != nil {
		t.Errorf("it releases with %v", err)
	}
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

func isDenied(t *testing.T, what string, err error) {
	t.Helper()
	var denied *election.DeniedError
	switch {
	case errors.Is(err, election.ErrLost), errors.Is(err, election.ErrHeld), !errors.As(err, &denied):
		t.Errorf("%s ended with %v", what, err)
	case denied.Kind != faults.LeaseDenied, denied.Answer == "", !strings.Contains(denied.Remedy, "readwrite on the prefix fencepost/"):
		t.Errorf("%s: %+v", what, denied)
	}
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
