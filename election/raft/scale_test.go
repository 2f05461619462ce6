package raft

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/electiontest"
)

// Two hundred leases, their renewals and their watches need one connection.
func TestManyLeasesShareOneConnection(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	link := electiontest.NewLink(t, c.follower().cfg.Listen)
	p := c.client(t, "p", "test", link.Addr()).Database("db")
	const leases = 200
	held := make([]*election.Lease, leases)
	all := func(what string, one func(i int) error) {
		began := time.Now()
		var group errgroup.Group
		group.SetLimit(4) // a busy machine needs more than a request may take for all at once
		for i := range leases {
			group.Go(func() error {
				if err := one(i); err != nil {
					t.Errorf("%s %d: %v", what, i, err)
				}
				return nil
			})
		}
		_ = group.Wait() // it returns no errors
		t.Logf("%d x %s: %v", leases, what, time.Since(began))
	}
	request := func(i int) election.AcquireRequest {
		b := bid(fmt.Sprint("w", i), long)
		b.Resource = fmt.Sprint("r", i)
		return b
	}
	acquire(t, p, bid("first", long)) // the connection is there
	all("acquire", func(i int) (err error) {
		held[i], err = p.Acquire(within(t, patience), request(i))
		return err
	})
	if t.Failed() {
		return
	}
	all("renew", func(i int) error { return p.Renew(within(t, patience), held[i]) })
	all("watch", func(i int) (err error) {
		for obs := (election.LeaseObservation{}); err == nil && obs.Incarnation != request(i).Incarnation; {
			obs, err = p.Watch(within(t, patience), request(i).Resource, obs)
		}
		return err
	})
	all("release", func(i int) error { return p.Release(within(t, patience), held[i], election.ReasonLeft, 0) })
	if made := link.Made(); made > 1 {
		t.Errorf("%d connections were made", made)
	}
}
