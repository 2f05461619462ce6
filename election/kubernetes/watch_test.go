package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/standstill"
)

// patience bounds every wait, and is only reached if a test fails.
const patience = 60 * time.Second

// watching is a Watch, and what it shows.
type watching struct {
	t     *testing.T
	shown chan kv.Snapshot
	ended chan error
	stop  context.CancelFunc
}

func watch(t *testing.T, s *store) *watching {
	ctx, cancel := context.WithCancel(t.Context())
	w := &watching{t: t, shown: make(chan kv.Snapshot, 1000), ended: make(chan error, 1), stop: cancel}
	go func() { w.ended <- s.Watch(ctx, func(s kv.Snapshot) { w.shown <- s }) }()
	t.Cleanup(cancel)
	return w
}

// until waits until something is shown that is as it should be, and returns how many there were.
func (w *watching) until(what string, is func(kv.Snapshot) bool) (n int) {
	w.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case s := <-w.shown:
			n++
			if is(s) {
				return n
			}
		case err := <-w.ended:
			w.ended <- err
			w.t.Fatalf("the watch ended with %v before it showed %s", err, what)
		case <-timer.C:
			w.t.Fatalf("the watch does not show %s", what)
		}
	}
}

func TestAWatchShowsWhatMatters(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s, other := f.store(), f.store()
	w := watch(t, other)
	w.until("nothing", func(s kv.Snapshot) bool { return s.Marker == "" && len(s.Entries) == 0 })
	if err := s.Mark(t.Context(), "marker", false); err != nil {
		t.Fatal(err)
	}
	w.until("the marker", func(s kv.Snapshot) bool { return s.Marker == "marker" })
	life, version := award(t, s, "award")
	isHeld := func(s kv.Snapshot) bool {
		e := s.Entries[key]
		return e.Life == life && e.Version == version && string(e.Record) == "award"
	}
	w.until("the award", isHeld)
	for range 20 {
		if err := s.Beat(t.Context(), key, life); err != nil {
			t.Fatal(err)
		}
	}
	f.change("fencepost.billing.copied", func(o *lease) {
		*o = *f.objects[s.nameOf(key)]
		o.Metadata.Name, o.Metadata.UID = "fencepost.billing.copied", ""
	})
	f.change("another", func(o *lease) { o.Metadata.Annotations[noteKey] = "db/another" })
	if _, err := s.Swap(t.Context(), key, read(t, s), []byte("left"), ""); err != nil {
		t.Fatal(err)
	}
	if n := w.until("the release", func(s kv.Snapshot) bool { return s.Entries[key].Life == "" }); n != 1 {
		t.Errorf("%d were shown, although nothing but the release matters", n)
	}
	f.delete(s.nameOf(key))
	w.until("that it is gone", func(s kv.Snapshot) bool { return len(s.Entries) == 0 })
	f.delete(s.markerName())
	w.until("that the marker is gone", func(s kv.Snapshot) bool { return s.Marker == "" })
	w.stop()
	if err := <-w.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

// A holder that dies says nothing: the watch shows it when its object has stood still for the TTL.
func TestAWatchShowsThatALeaseIsFree(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s, other := f.store(), f.store()
	var now atomic.Int64
	other.still = standstill.New(func() time.Duration { return time.Duration(now.Load()) })
	life, err := s.Begin(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	w := watch(t, other)
	if _, err := s.Swap(t.Context(), key, read(t, s), []byte("award"), life.ID); err != nil {
		t.Fatal(err)
	}
	w.until("the award", func(s kv.Snapshot) bool { return s.Entries[key].Life == life.ID })
	for range 10 {
		now.Add(int64(900 * time.Millisecond))
		if err := s.Beat(t.Context(), key, life.ID); err != nil {
			t.Fatal(err)
		}
		version := f.object(s.nameOf(key)).Metadata.ResourceVersion
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if _, seen := other.still.Until(s.nameOf(key), version, 0); seen {
				break
			}
			if time.Now().After(end) {
				t.Fatal("the watch does not see a renewal")
			}
		}
	}
	select {
	case s := <-w.shown:
		t.Fatalf("while it was renewed, the watch showed %+v", s)
	default:
	}
	now.Add(int64(time.Second))
	w.until("that it is free", func(s kv.Snapshot) bool { return s.Entries[key].Life == "" })
}

// A watch that ends, or that begins too long ago, is followed by another one after a list.
func TestAWatchGoesOn(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(w http.ResponseWriter){
		"the server ends it": func(http.ResponseWriter) {},
		"its begin is too old": func(w http.ResponseWriter) {
			fmt.Fprintln(w, `{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"}}`)
		},
		"its begin is refused as too old": nil,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			s := f.store()
			f.instead(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("watch") == "" {
					return false
				}
				f.instead(nil)
				time.Sleep(2 * leastWatch)
				if end == nil {
					status(w, http.StatusGone, "Expired", "too old resource version")
					return true
				}
				w.WriteHeader(http.StatusOK)
				end(w)
				return true
			})
			w := watch(t, s)
			w.until("nothing", func(s kv.Snapshot) bool { return len(s.Entries) == 0 })
			life, _ := award(t, s, "award")
			w.until("the award", func(s kv.Snapshot) bool { return s.Entries[key].Life == life })
			if n := f.requests("GET ?labelSelector=fencepost%2Fprefix%3Dfencepost"); n < 3 {
				t.Errorf("%d lists and watches", n)
			}
		})
	}
	f := newFake(t)
	s := f.store()
	f.instead(func(w http.ResponseWriter, r *http.Request) bool { return r.URL.Query().Get("watch") != "" })
	if err := s.Watch(t.Context(), func(kv.Snapshot) {}); err == nil {
		t.Error("a watch that the server ends at once each time goes on")
	}
}

// Whoever cannot watch is told why, also if the API server wants to be asked much later.
func TestAWatchSaysWhyItDoesNotBegin(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.instead(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", "3600")
		status(w, http.StatusTooManyRequests, "TooManyRequests", "busy")
		return true
	})
	c, err := New(Config{Kubeconfig: f.kubeconfig("token: secret"), Proxy: "one"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for end := time.Now().Add(patience); !isStatus(c.Healthy(), http.StatusTooManyRequests); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it says %v", c.Healthy())
		}
	}
	if n := f.requests("GET"); n != 1 {
		t.Errorf("%d requests were sent", n)
	}
}

// All leases of a proxy need one connection, beside which it has one watch.
func TestManyLeases(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	c, err := New(Config{Kubeconfig: f.kubeconfig("token: secret"), Proxy: "one"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := c.Database("db")
	const leases = 100
	ended := make(chan error)
	for i := range leases {
		go func() {
			b := bid(fmt.Sprint("w", i))
			b.Resource = fmt.Sprint("r", i)
			var lease *election.Lease
			err := until(func() (err error) { lease, err = p.Acquire(t.Context(), b); return err })
			if err == nil {
				err = p.Renew(t.Context(), lease)
			}
			for obs := (election.LeaseObservation{}); err == nil && obs.Incarnation != b.Incarnation; {
				err = until(func() (err error) { obs, err = p.Watch(t.Context(), b.Resource, obs); return err })
			}
			ended <- err
		}()
	}
	for range leases {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if f.mu.Lock(); len(f.objects) != leases+1 {
		t.Errorf("there are %d objects", len(f.objects))
	}
	f.mu.Unlock()
}

// until repeats what fails, as a busy machine makes it.
func until(do func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if err := do(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
