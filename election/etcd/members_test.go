package etcd_test

import (
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/etcd"
	"github.com/fencepost/fencepost/internal/etcdtest"
)

// TestACluster is about three members.
func TestACluster(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	t.Run("a member that stands still costs no lease", func(t *testing.T) { aMemberThatStandsStillCostsNoLease(t, cluster) })
	t.Run("a member without a leader says so", func(t *testing.T) { aMemberWithoutALeaderSaysSo(t, cluster) })
	t.Run("a leader is lost", func(t *testing.T) {
		electiontest.Members{
			Open: func(proxy string) electiontest.Client {
				return client(t, etcd.Config{Endpoints: cluster.Endpoints(), Prefix: "leader", Proxy: proxy})
			},
			TTL:    10 * time.Second, // a renewal on a busy machine, with another leader, takes some seconds
			Leader: func() int { return cluster.Leader(t) }, Kill: cluster.Kill, Restart: func() { cluster.Restart(t) },
			Pause: func(i int) { cluster.Pause(t, i) }, Continue: func(i int) { cluster.Continue(t, i) },
		}.LoseTheLeader(t)
	})
}

// A member that is cut off from its peers keeps its connections. It says that it has no leader, so
// that the request can go to another member.
func aMemberWithoutALeaderSaysSo(t *testing.T, cluster *etcdtest.Cluster) {
	p := client(t, etcd.Config{Endpoints: cluster.Endpoints()[:1], Prefix: "leaderless", Proxy: "one"}).Database("db")
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
	cluster.Continue(t, 2)
}

// The library sends each request to the next member, whether that answers or not.
func aMemberThatStandsStillCostsNoLease(t *testing.T, cluster *etcdtest.Cluster) {
	p := client(t, etcd.Config{Endpoints: cluster.Endpoints(), Prefix: "still", Proxy: "one"}).Database("db")
	lease := acquire(t, p, bid("a", long))
	still := (cluster.Leader(t) + 1) % 3
	cluster.Pause(t, still)
	for i := range 8 {
		if err := p.Renew(within(t, patience), lease); err != nil {
			t.Errorf("renewal %d ended with %v", i, err)
		}
	}
	cluster.Continue(t, still)
}
