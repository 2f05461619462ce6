package redis_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/redis"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/redistest"
)

// Two hundred leases, their renewals and their watches need one small pool of connections.
func TestManyLeasesShareAFewConnections(t *testing.T) {
	t.Parallel()
	prefix := pgtest.Shared(t).Database(t)
	link := electiontest.NewLink(t, redistest.Shared(t).Addr())
	p := client(t, redis.Config{Address: link.Addr(), Prefix: prefix, Proxy: "one"}).Database("db")
	const leases = 200
	held := make([]*election.Lease, leases)
	all := func(what string, one func(i int) error) {
		began := time.Now()
		var wg sync.WaitGroup
		for i := range leases {
			wg.Go(func() {
				if err := one(i); err != nil {
					t.Errorf("%s %d: %v", what, i, err)
				}
			})
		}
		wg.Wait()
		t.Logf("%d x %s: %v", leases, what, time.Since(began))
	}
	request := func(i int) election.AcquireRequest {
		b := bid(fmt.Sprint("w", i), long)
		b.Resource = fmt.Sprint("r", i)
		return b
	}
	electiontest.Reached(t, p)
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
	if made := link.Made(); made > leases/4 { // a connection that has not answered in time is replaced
		t.Errorf("%d connections were made", made)
	}
}

func TestNamesCannotMeetInOneKey(t *testing.T) {
	t.Parallel()
	prefix := pgtest.Shared(t).Database(t)
	c := client(t, redis.Config{Address: redistest.Shared(t).Addr(), Prefix: prefix, Proxy: "one"})
	for _, name := range [][2]string{
		{"a/b", "c"}, {"a", "b/c"}, {"a%2Fb", "c"}, {".", "c"}, {"..", "c"}, {"a", ".generation"}, {"ä", "c"}, {"a b", "?c#d"},
		{"a", "b"}, {"a", ".leases"}, {".life", "x"},
	} {
		b := bid("w"+name[0]+"|"+name[1], time.Minute)
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
		var obs election.LeaseObservation
		for ctx := within(t, patience); err == nil && obs.State != election.Held; {
			obs, err = p.Watch(ctx, name[1], obs)
		}
		if err != nil || obs.Incarnation != b.Incarnation {
			t.Errorf("the lease of %q is seen as %+v, %v", name, obs, err)
		}
	}
}
