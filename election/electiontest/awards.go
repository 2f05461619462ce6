package electiontest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/elector"
)

// retryPause is between the attempts at a request that could not be sent.
const retryPause = 10 * time.Millisecond

// acquire waits for the lease.
func (w *testEnv) acquire(p elector.Provider, bid elector.AcquireRequest) *elector.Lease {
	w.Helper()
	var lease *elector.Lease
	eventually(w.T, "the lease of "+bid.Worker+" is awarded", w.service.Death+patience, func() bool {
		var err error
		lease, err = p.Acquire(within(w.T, patience), bid)
		if err != nil && !errors.Is(err, elector.ErrHeld) {
			w.Logf("acquire: %v", err)
		}
		return err == nil
	})
	return lease
}

// ask makes one request for the lease, and repeats it while it cannot be sent because the service is slow to
// answer what is read before.
func (w *testEnv) ask(p elector.Provider, bid elector.AcquireRequest) (lease *elector.Lease, err error) {
	w.Helper()
	for began := time.Now(); ; {
		lease, err = p.Acquire(within(w.T, patience), bid)
		if !errors.Is(err, elector.ErrNotSent) || time.Since(began) > patience {
			return lease, err
		}
		w.Logf("acquire for %s: %v", bid.Worker, err)
		time.Sleep(retryPause)
	}
}

// oneOf has so many workers, each at a proxy of its own, ask at once, and verifies that one of them is awarded the
// lease.
func (w *testEnv) oneOf(workers int, bid func(worker string) elector.AcquireRequest) {
	w.Helper()
	results := make(chan error)
	for i := range workers {
		name := string(rune('a' + i))
		p, _ := w.provider(name)
		go func() {
			_, err := w.ask(p, bid(name))
			results <- err
		}()
	}
	won := 0
	for range workers {
		switch err := <-results; {
		case err == nil:
			won++
		case !errors.Is(err, elector.ErrHeld):
			w.Errorf("acquire: %v", err)
		}
	}
	if won != 1 {
		w.Errorf("%d were awarded the lease", won)
	}
}

func (w *testEnv) mustAcquire(p elector.Provider, bid elector.AcquireRequest) *elector.Lease {
	w.Helper()
	lease, err := w.ask(p, bid)
	if err != nil {
		w.Fatalf("acquire for %s: %v", bid.Worker, err)
	}
	return lease
}

func (w *testEnv) mustRelease(p elector.Provider, l *elector.Lease, why elector.Reason) {
	w.Helper()
	if err := p.Release(within(w.T, patience), l, why, 0); err != nil {
		w.Fatalf("release of %s: %v", l.Worker, err)
	}
}

// mustFollow fails the test unless the later award is newer.
func (w *testEnv) mustFollow(earlier, later *elector.Lease) {
	w.Helper()
	if later.InstanceID != earlier.InstanceID || later.Index <= earlier.Index {
		w.Fatalf("award (%s, %d) does not follow (%s, %d)", later.InstanceID, later.Index, earlier.InstanceID, earlier.Index)
	}
}

// mustAcquireAgain tries to acquire the lease, which must end without a known outcome,
// and fails the test unless a second request gets the award that the first one got.
func (w *testEnv) mustAcquireAgain(p elector.Provider) {
	w.Helper()
	_, err := p.Acquire(within(w.T, patience), w.bid("a"))
	w.mustBeUnknown(err)
	w.mustGetWhatIsShown(p)
}

// mustBeUnknown fails the test unless an acquire whose response was lost has ended without a known
// outcome.
func (w *testEnv) mustBeUnknown(err error) {
	w.Helper()
	if err == nil || errors.Is(err, elector.ErrHeld) || errors.Is(err, elector.ErrNotSent) {
		w.Fatalf("an acquire whose response was lost ended with %v", err)
	}
}

// mustGetWhatIsShown asks for the lease again, and fails the test unless that gives the award that
// the service shows.
func (w *testEnv) mustGetWhatIsShown(p elector.Provider) {
	w.Helper()
	q, _ := w.provider("another")
	shown := w.see(q, elector.Held)
	lease := w.mustAcquire(p, w.bid("a"))
	if shown.Incarnation != lease.Incarnation || shown.Index != lease.Index {
		w.Errorf("the award is %d of %s; what the service shows is %+v", lease.Index, lease.Incarnation, shown)
	}
	if err := p.Renew(within(w.T, patience), lease); err != nil {
		w.Errorf("it renews with %v", err)
	}
}

// see waits until the lease is observed in a state.
func (w *testEnv) see(p elector.Provider, want elector.State) elector.Observation {
	w.Helper()
	return w.seeOf(p, want, "")
}

// seeOf is see, and the state must be that of a candidacy, "" for any. What is observed may be older than
// what the service has answered to others, so for a moment it may be the state of the term before.
func (w *testEnv) seeOf(p elector.Provider, want elector.State, incarnation string) elector.Observation {
	w.Helper()
	var obs elector.Observation
	for ctx := within(w.T, patience); obs.State != want || incarnation != "" && obs.Incarnation != incarnation; {
		seen, err := p.Watch(ctx, resource, obs)
		switch {
		case err == nil:
			obs = seen
		case ctx.Err() != nil:
			w.Fatalf("watching for %q of %q, last seen %+v: %v", want, incarnation, obs, err)
		default: // the service is slow to answer
			w.Logf("watch: %v", err)
			time.Sleep(retryPause)
		}
	}
	return obs
}

// awardCases are about the order of awards.
var awardCases = []testCase{
	{"the lease is awarded to one candidacy at a time", func(w *testEnv) {
		p, _ := w.provider("one")
		q, _ := w.provider("two")
		lease := w.mustAcquire(p, w.bid("a"))
		if lease.Index <= 0 || lease.InstanceID == "" {
			w.Errorf("the award has no order: %+v", lease)
		}
		for _, other := range []elector.Provider{p, q} {
			if _, err := w.ask(other, w.bid("b")); !errors.Is(err, elector.ErrHeld) {
				w.Errorf("a second candidacy got %v, want ErrHeld", err)
			}
		}
		if err := p.Renew(within(w.T, patience), lease); err != nil {
			w.Errorf("the holder renews: %v", err)
		}
	}},
	{"of many that try at once one is awarded the lease", func(w *testEnv) {
		w.oneOf(8, w.bid)
	}},
	{"the order of awards survives release", func(w *testEnv) {
		p, _ := w.provider("one")
		q, _ := w.provider("two")
		last := w.mustAcquire(p, w.bid("a"))
		for _, next := range []struct {
			p      elector.Provider
			worker string
		}{{q, "b"}, {p, "a"}, {p, "c"}} {
			w.mustRelease(p, last, elector.ReasonLeft)
			w.mustRelease(q, last, elector.ReasonLeft) // twice, and by another proxy: harmless
			bid := w.bid(next.worker)
			bid.Incarnation += "-again"
			lease := w.acquire(next.p, bid)
			w.mustFollow(last, lease)
			last = lease
		}
	}},
	{"the order of awards survives expiry", func(w *testEnv) {
		p, link := w.provider("one")
		q, _ := w.provider("two")
		asked := time.Now() // the TTL may begin before the answer comes
		first := w.mustAcquire(p, w.briefBid("a"))
		link.Cut()
		second := w.acquire(q, w.briefBid("b"))
		if took := time.Since(asked); took < w.service.TTL*8/10 {
			w.Errorf("the lease was free after %v, the TTL is %v", took, w.service.TTL)
		}
		w.mustFollow(first, second)
	}},
	{"the order of awards survives what an operator does", func(w *testEnv) {
		for _, fault := range w.service.Faults {
			w.Run(fault.Name, func(t *testing.T) {
				w := &testEnv{T: t, service: w.service, server: w.server, db: w.db}
				p, _ := w.provider("one")
				q, _ := w.provider("two")
				bid := w.briefBid("a " + fault.Name)
				first := w.acquire(p, bid)
				fault.Do(t, resource)
				if p.Renew(within(t, patience), first) == nil { // the lease is still held, which is fine
					w.mustRelease(p, first, elector.ReasonLeft)
				}
				second := w.acquire(q, w.briefBid("b "+fault.Name))
				w.mustFollow(first, second)
				if err := p.Renew(within(t, patience), first); !errors.Is(err, elector.ErrLost) {
					t.Errorf("the old term renews with %v, want ErrLost", err)
				}
				w.mustRelease(q, second, elector.ReasonLeft)
			})
		}
	}},
}

// termCases are about the requests of one term.
var termCases = []testCase{
	{"a late renew or release of an old term changes nothing", func(w *testEnv) {
		p, _ := w.provider("one")
		old := w.mustAcquire(p, w.bid("a"))
		w.mustRelease(p, old, elector.ReasonLeft)
		q, _ := w.provider("two")
		present := w.acquire(q, w.bid("b"))
		for _, late := range []elector.Reason{elector.ReasonUnresponsive, elector.ReasonLeft} {
			if err := p.Renew(within(w.T, patience), old); !errors.Is(err, elector.ErrLost) {
				w.Errorf("the old term renews with %v, want ErrLost", err)
			}
			w.mustRelease(p, old, late)
			if err := q.Renew(within(w.T, patience), present); err != nil {
				w.Errorf("after a late release the holder renews with %v", err)
			}
		}
		// The same candidacy may have had two terms. Releasing the first must not end
		// the second.
		w.mustRelease(q, present, elector.ReasonLeft)
		again := w.acquire(q, w.bid("b"))
		w.mustRelease(q, present, elector.ReasonLeft)
		if err := q.Renew(within(w.T, patience), present); !errors.Is(err, elector.ErrLost) {
			w.Errorf("the first term of two renews with %v, want ErrLost", err)
		}
		if err := q.Renew(within(w.T, patience), again); err != nil {
			w.Errorf("the second term of two renews with %v", err)
		}
	}},
	{"an award whose answer was lost is awarded again, the same", func(w *testEnv) {
		p, _ := w.provider("one")
		seed := w.mustAcquire(p, w.bid("seed"))
		w.mustRelease(p, seed, elector.ReasonLeft)
		p.lose(acquire)
		w.mustAcquireAgain(p)
	}},
	{"an award whose answer was lost can be given back", func(w *testEnv) {
		p, _ := w.provider("one")
		seed := w.mustAcquire(p, w.bid("seed"))
		w.mustRelease(p, seed, elector.ReasonLeft)
		p.lose(acquire)
		if _, err := p.Acquire(within(w.T, patience), w.bid("a")); err == nil {
			w.Fatal("an acquire whose response was lost succeeded")
		}
		w.mustRelease(p, &elector.Lease{AcquireRequest: w.bid("a")}, elector.ReasonLeft)
		w.mustAcquire(p, w.bid("b"))
	}},
	{"a term that ended elsewhere is no obstacle to the next of its candidacy", func(w *testEnv) {
		p, _ := w.provider("one")
		q, _ := w.provider("two")
		first := w.mustAcquire(p, w.bid("a"))
		w.mustRelease(q, first, elector.ReasonLeft) // as an operator would: this proxy does not know
		again := w.acquire(p, w.bid("a"))
		w.mustFollow(first, again)
		if err := p.Renew(within(w.T, patience), again); err != nil {
			w.Errorf("the second term renews with %v", err)
		}
	}},
	{"a release whose answer was lost can be repeated", func(w *testEnv) {
		p, _ := w.provider("one")
		lease := w.mustAcquire(p, w.bid("a"))
		p.lose(release)
		if err := p.Release(within(w.T, patience), lease, elector.ReasonLeft, 0); err == nil {
			w.Fatal("a release whose response was lost succeeded")
		}
		next := w.mustAcquire(p, w.bid("b"))
		w.mustRelease(p, lease, elector.ReasonLeft)
		if err := p.Renew(within(w.T, patience), next); err != nil {
			w.Errorf("after the repeated release the holder renews with %v", err)
		}
	}},
	{"a cancelled context returns at once", func(w *testEnv) {
		p, link := w.provider("one")
		lease := w.mustAcquire(p, w.bid("a"))
		obs := w.see(p, elector.Held)
		link.Stall()
		requests := map[string]func(context.Context) error{
			"acquire": func(ctx context.Context) error { _, err := p.Acquire(ctx, w.bid("b")); return err },
			"renew":   func(ctx context.Context) error { return p.Renew(ctx, lease) },
			"release": func(ctx context.Context) error { return p.Release(ctx, lease, elector.ReasonLeft, 0) },
			"watch": func(ctx context.Context) error {
				_, err := p.Watch(ctx, resource, obs)
				return err
			},
		}
		for name, request := range requests {
			ctx, cancel := context.WithCancel(within(w.T, patience))
			done := make(chan error, 1)
			go func() { done <- request(ctx) }()
			time.AfterFunc(50*time.Millisecond, cancel)
			select {
			case err := <-done:
				if !errors.Is(err, context.Canceled) || errors.Is(err, elector.ErrLost) {
					w.Errorf("%s ended with %v", name, err)
				}
			case <-time.After(patience):
				w.Errorf("%s is still waiting", name)
			}
		}
	}},
	{"what cannot be reached is unknown, not lost", func(w *testEnv) {
		p, link := w.provider("one")
		lease := w.mustAcquire(p, w.bid("a"))
		link.Cut()
		if err := p.Renew(within(w.T, patience), lease); err == nil || errors.Is(err, elector.ErrLost) {
			w.Errorf("renew over a cut link ended with %v", err)
		}
		if _, err := p.Acquire(within(w.T, patience), w.bid("b")); err == nil || errors.Is(err, elector.ErrHeld) {
			w.Errorf("acquire over a cut link ended with %v", err)
		}
	}},
	{"whoever watches sees the lease taken, released, and why", func(w *testEnv) {
		p, _ := w.provider("one")
		q, _ := w.provider("two")
		w.see(q, elector.Freed)
		lease := w.mustAcquire(p, w.bid("a"))
		w.seeOf(q, elector.Held, lease.Incarnation)
		w.mustRelease(p, lease, elector.ReasonUnresponsive)
		w.see(q, elector.Unresponsive)
		w.mustRelease(p, lease, elector.ReasonLeft) // it was dead
		w.see(q, elector.Freed)
		second := w.mustAcquire(q, w.bid("b"))
		w.mustRelease(q, second, elector.ReasonUnresponsive)
		w.mustRelease(p, lease, elector.ReasonLeft) // no longer released as unresponsive
		w.seeOf(p, elector.Unresponsive, second.Incarnation)
		always(w.T, "the vacancy by silence stays", 200*time.Millisecond, func() bool {
			ctx, cancel := context.WithTimeout(w.Context(), 50*time.Millisecond)
			defer cancel()
			obs, err := p.Watch(ctx, resource, elector.Observation{})
			return err != nil || obs.State == elector.Unresponsive
		})
	}},
}
