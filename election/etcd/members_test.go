package etcd_test

import (
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/fencepost/fencepost/election/etcd"
	"github.com/fencepost/fencepost/internal/etcdtest"
)

// A member that is cut off from its peers keeps its connections. It says that it has no leader, so
// that the request can go to another member.
func TestAMemberWithoutALeaderSaysSo(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	p := client(t, etcd.Config{Endpoints: cluster.Endpoints()[:1], Proxy: "one"}).Database("db")
	lease := acquire(t, p, bid("a", long))
	cluster.Pause(t, 1)
	cluster.Pause(t, 2)
	const deadline = 2 * time.Second // a request that waits for a leader takes longer
	eventually(t, "the member says that it has no leader", patience, func() bool {
		err := p.Renew(within(t, deadline), lease)
		return errors.Is(err, rpctypes.ErrNoLeader)
	})
	cluster.Continue(t, 1)
	if err := renew(t, p, lease); err != nil {
		t.Errorf("with a leader again, the holder renews with %v", err)
	}
}

// The library sends each request to the next member, whether that answers or not.
func TestAMemberThatStandsStillCostsNoLease(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	p := client(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "one"}).Database("db")
	lease := acquire(t, p, bid("a", long))
	cluster.Pause(t, (cluster.Leader(t)+1)%3)
	for i := range 8 {
		if err := p.Renew(within(t, patience), lease); err != nil {
			t.Errorf("renewal %d ended with %v", i, err)
		}
	}
}
