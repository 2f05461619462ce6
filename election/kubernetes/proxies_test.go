//go:build kubernetes

package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/internal/kubernetestest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

// Two hundred leases, their renewals and their watches need one connection.
func TestManyLeasesShareOneConnection(t *testing.T) {
	t.Parallel()
	server := kubernetestest.Shared(t)
	link := electiontest.NewLink(t, server.Addr())
	p := client(t, Config{Kubeconfig: server.Kubeconfig(t, link.Addr(), kubernetestest.Admin), Prefix: "many", Proxy: "one"}).Database("db")
	electiontest.Reached(t, p)
	const leases = 200
	ended, held, seen := make(chan error), make(chan *election.Lease, leases), make(chan struct{})
	began := time.Now()
	for i := range leases {
		go func() {
			b := bid(fmt.Sprint("w", i))
			b.Resource = fmt.Sprint("r", i)
			lease, err := p.Acquire(t.Context(), b)
			if err == nil {
				held <- lease
				err = p.Renew(t.Context(), lease)
			}
			ended <- err
			for obs := (election.LeaseObservation{}); obs.Incarnation != b.Incarnation && t.Context().Err() == nil; {
				// A busy API server may not answer a list in time. It is asked again, as a candidacy does.
				next, err := p.Watch(t.Context(), b.Resource, obs)
				if err != nil {
					time.Sleep(100 * time.Millisecond)
					continue
				}
				obs = next
			}
			seen <- struct{}{}
		}()
	}
	for range leases {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	for range leases {
		<-seen
	}
	t.Logf("%d leases were awarded, renewed once and seen in %v", leases, time.Since(began))
	began = time.Now()
	close(held)
	for lease := range held {
		go func() { ended <- p.Renew(t.Context(), lease) }()
	}
	for range leases {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d leases were renewed in %v", leases, time.Since(began))
	if made := link.Made(); made != 1 {
		t.Errorf("%d connections were made", made)
	}
}

// A proxy that starts ends what it has left, and nobody else's.
func TestStartingProxyEndsItsOldLeases(t *testing.T) {
	t.Parallel()
	server := kubernetestest.Shared(t)
	openAs := func(proxy string) election.Provider {
		return client(t, Config{Kubeconfig: server.Kubeconfig(t, server.Addr(), kubernetestest.Admin), Prefix: "starting", Proxy: proxy}).Database("db")
	}
	mine, other := openAs("one"), openAs("two")
	acquire(t, mine, bid("a"))
	theirs := bid("b")
	theirs.Resource = "shipping"
	held := acquire(t, other, theirs)
	again := openAs("one")
	began, watch := time.Now(), stopwatch.Start(t)
	acquire(t, again, bid("c"))
	if took := time.Since(began); watch.Late(t, took, 20*time.Second) {
		t.Errorf("the old lease was free after %v", took)
	}
	if err := renew(t, other, held); err != nil {
		t.Errorf("another proxy's lease was lost: %v", err)
	}
}

func TestNamesOnAServer(t *testing.T) {
	t.Parallel()
	server := kubernetestest.Shared(t)
	c := client(t, Config{Kubeconfig: server.Kubeconfig(t, server.Addr(), kubernetestest.Admin), Prefix: "names", Proxy: "one"})
	for _, name := range [][2]string{
		{"a/b", "c"}, {"a", "b/c"}, {"a%2Fb", "c"}, {".", "c"}, {"..", "c"}, {"a", ".generation"}, {"a", "generation"}, {"ä", "ö"}, {"a b", "?c#d"},
		{"a", "b"}, {"A", "b"}, {strings.Repeat("x", 63), strings.Repeat("ü", 100)},
	} {
		b := bid("w" + name[0] + "|" + name[1])
		b.Resource = name[1]
		p := c.Database(name[0])
		lease, err := p.Acquire(t.Context(), b)
		if err != nil {
			t.Errorf("the lease of %q is not free: %v", name, err)
			continue
		}
		if err := p.Renew(t.Context(), lease); err != nil {
			t.Errorf("the lease of %q renews with %v", name, err)
		}
		var obs election.LeaseObservation
		for err == nil && obs.State != election.Held {
			obs, err = p.Watch(t.Context(), name[1], obs)
		}
		if err != nil || obs.Incarnation != b.Incarnation {
			t.Errorf("the lease of %q is seen as %+v, %v", name, obs, err)
		}
	}
}
