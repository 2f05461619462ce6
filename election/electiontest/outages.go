package electiontest

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/faults"
)

// What the tests of the providers need too.
var (
	Within     = within
	Eventually = eventually
)

// Patience bounds every wait, and is only reached if a test fails.
const Patience = patience

// longTTL is the TTL of leases that are not to expire. Some services grant no longer one.
const longTTL = time.Minute

// Bid is a request of a worker for the lease of the resource billing.
func Bid(worker string, ttl time.Duration) elector.AcquireRequest {
	return elector.AcquireRequest{Resource: resource, Worker: worker, Incarnation: worker + "-1", TTL: ttl}
}

// Acquire waits for the lease.
func Acquire(t *testing.T, p elector.Provider, b elector.AcquireRequest) (lease *elector.Lease) {
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

// Renew renews a lease until the outcome is known.
func Renew(t *testing.T, p elector.Provider, l *elector.Lease) error {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(retryPause) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := p.Renew(ctx, l)
		cancel()
		if err == nil || errors.Is(err, elector.ErrLost) || time.Now().After(end) {
			return err
		}
	}
}

// IsDenied fails the test unless err says that the service denies something, and what to do.
func IsDenied(t *testing.T, what string, err error, remedy string) {
	t.Helper()
	var denied *elector.DeniedError
	switch {
	case errors.Is(err, elector.ErrLost), errors.Is(err, elector.ErrHeld), !errors.As(err, &denied):
		t.Errorf("%s ended with %v", what, err)
	case denied.Kind != faults.LeaseDenied, denied.Answer == "", !strings.Contains(denied.Remedy, remedy):
		t.Errorf("%s: %+v, whose remedy should contain %q", what, denied, remedy)
	}
}

// Client is a client of a service, as each provider has one.
type Client interface {
	Database(name string) *kv.Provider
	Healthy() error
}

// Outage is a server of a test's own that is killed, and then frozen, while a lease is held. Neither ends the term.
type Outage struct {
	Service         string // as errors name it
	Client          Client
	TTL             time.Duration
	Kill, Restart   func() // nil if the server does not keep its data
	Away            time.Duration
	Pause, Continue func()
}

// Run returns the lease, and the provider that holds it.
func (o Outage) Run(t *testing.T) (elector.Provider, *elector.Lease) {
	t.Helper()
	p := Reached(t, o.Client.Database("db"))
	lease := Acquire(t, p, Bid("a", o.TTL))
	healthy := func(what string, want bool) {
		t.Helper()
		eventually(t, "the client knows that the service "+what, patience, func() bool { return (o.Client.Healthy() == nil) == want })
	}
	if o.Kill != nil {
		o.Kill()
		killed := time.Now()
		for what, request := range map[string]func() error{
			"renew":   func() error { return p.Renew(within(t, patience), lease) },
			"acquire": func() error { _, err := p.Acquire(within(t, patience), Bid("b", o.TTL)); return err },
			"release": func() error { return p.Release(within(t, patience), lease, elector.ReasonLeft, 0) },
		} {
			eventually(t, "the error of "+what+" names the cause", patience, func() bool {
				err := request()
				var network net.Error
				if errors.Is(err, elector.ErrLost) || errors.Is(err, elector.ErrHeld) || !errors.As(err, &network) {
					t.Fatalf("without the service, %s ended with %v", what, err)
				}
				return strings.Contains(err.Error(), o.Service+" cannot be reached") && strings.Contains(err.Error(), "refused")
			})
		}
		healthy("is away", false)
		time.Sleep(time.Until(killed.Add(o.Away)))
		o.Restart()
		if err := Renew(t, p, lease); err != nil {
			t.Errorf("after the restart the holder renews with %v", err)
		}
		healthy("is there", true)
	}
	o.Pause()
	if err := p.Renew(within(t, time.Second), lease); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, elector.ErrLost) {
		t.Errorf("while the service stands still the holder renews with %v", err)
	}
	healthy("stands still", false)
	o.Continue()
	if err := Renew(t, p, lease); err != nil {
		t.Errorf("when the service goes on the holder renews with %v", err)
	}
	healthy("goes on", true)
	return p, lease
}

// Full is a service that has no space left for a while.
type Full struct {
	Open       func(proxy string) Client
	Fill, Mend func()
	Remedy     string
}

// Run fails the test unless the holder of a lease keeps and frees it while the service is full, and the next one is
// told.
func (f Full) Run(t *testing.T) {
	t.Helper()
	p, q := f.Open("one").Database("db"), f.Open("two").Database("db")
	lease := Acquire(t, p, Bid("a", longTTL))
	f.Fill()
	if err := p.Renew(within(t, patience), lease); err != nil {
		t.Errorf("the holder renews with %v", err)
	}
	if err := p.Release(within(t, patience), lease, elector.ReasonLeft, 0); err != nil {
		t.Errorf("the holder releases with %v", err)
	}
	_, err := q.Acquire(within(t, patience), Bid("b", longTTL))
	IsDenied(t, "the next worker's request", err, f.Remedy)
	f.Mend()
	Acquire(t, q, Bid("b", longTTL))
}

// Members are the servers of a service that has a leader among them.
type Members struct {
	Open     func(proxy string) Client
	TTL      time.Duration // for which a dead holder is waited for
	Leader   func() int
	Pause    func(member int)
	Continue func(member int)
	Kill     func(member int)
	Restart  func()
}

// LoseTheLeader shows that a leader that is frozen, and one that is killed, costs no lease, and that a dead proxy's
// lease is free after a TTL that started over.
func (m Members) LoseTheLeader(t *testing.T) {
	t.Helper()
	p, q := m.Open("one").Database("db"), m.Open("two").Database("db")
	lease := Acquire(t, p, Bid("a", m.TTL))
	renewed := func(when string, p elector.Provider, l *elector.Lease) {
		t.Helper()
		if err := Renew(t, p, l); err != nil {
			t.Errorf("%s, the holder renews with %v", when, err)
		}
	}
	leader := m.Leader()
	m.Pause(leader)
	renewed("while the leader is frozen", p, lease)
	m.Continue(leader)
	renewed("after the old leader woke up", p, lease)
	m.Kill(m.Leader())
	renewed("after the leader was killed", p, lease)
	if _, err := q.Acquire(within(t, 2*time.Second), Bid("b", m.TTL)); err == nil {
		t.Error("somebody else got the lease")
	}
	next := Acquire(t, q, Bid("b", longTTL)) // the holder's candidacy dies
	if next.Index <= lease.Index || next.InstanceID != lease.InstanceID {
		t.Errorf("award (%s, %d) came after (%s, %d)", next.InstanceID, next.Index, lease.InstanceID, lease.Index)
	}
	m.Restart()
	renewed("with all members again", q, next)
}
