package etcd_test

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/etcd"
	"github.com/fencepost/fencepost/internal/etcdtest"
)

// The library sends each request to the next member, whether that answers or not.
func TestAMemberThatStandsStillCostsNoLease(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	p := client(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "one"}).Database("db")
	lease := acquire(t, p, bid("a", long))
	cluster.Pause(t, (cluster.Leader(t)+1)%3)
	for i := range 8 {
		if err := p.Renew(within(t, 4*time.Second), lease); err != nil {
			t.Errorf("renewal %d ended with %v", i, err)
		}
	}
}
