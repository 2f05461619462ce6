package kubernetes

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/standstill"
)

// patience bounds every wait, and is only reached if a test fails.
const patience = 60 * time.Second

// What is not a lease of the prefix is not shown, and what is gone is not either.
func TestAWatchShowsTheLeasesOfItsPrefix(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s := f.store()
	changes := make(chan standstill.Change, 100)
	go func() { _ = f.service().Watch(t.Context(), func(c standstill.Change) { changes <- c }) }()
	next := func() standstill.Change {
		t.Helper()
		select {
		case c := <-changes:
			return c
		case <-time.After(patience):
			t.Fatal("nothing is reported")
			return standstill.Change{}
		}
	}
	if c := next(); !c.All || c.Marker != "" || len(c.Records) != 0 {
		t.Errorf("at first it tells %+v", c)
	}
	if err := s.Mark(t.Context(), "marker", false); err != nil {
		t.Fatal(err)
	}
	if c := next(); c.Marker != "marker" {
		t.Errorf("of the marker it tells %+v", c)
	}
	life, version := award(t, s, "award")
	if c := next(); len(c.Records) != 1 || c.Records[0].Key != key || c.Records[0].Life != life || c.Records[0].Version != version {
		t.Errorf("of the award it tells %+v", c)
	}
	name := f.service().nameOf(key)
	f.change("fencepost.billing.copied", func(o *lease) {
		*o = *f.objects[name]
		o.Metadata.Name, o.Metadata.UID = "fencepost.billing.copied", ""
	})
	f.change("another", func(o *lease) { o.Metadata.Annotations[noteKey] = "db/another" })
	for range 2 {
		if c := next(); len(c.Records) != 0 {
			t.Errorf("of another program's object it tells %+v", c)
		}
	}
	f.delete(name)
	if c := next(); len(c.Gone) != 1 || c.Gone[0] != key {
		t.Errorf("of what was deleted it tells %+v", c)
	}
	f.delete(f.service().markerName())
	if c := next(); c.Marker != "" {
		t.Errorf("of the marker that was deleted it tells %+v", c)
	}
}

// A watch ends when the API server ends it. Package kv begins another one.
func TestAWatchEnds(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(w http.ResponseWriter){
		"the server ends it": func(http.ResponseWriter) {},
		"its begin is too old": func(w http.ResponseWriter) {
			fmt.Fprintln(w, `{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"}}`)
		},
	} {
		f := newFake(t)
		f.answerWith(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") == "" {
				return false
			}
			w.WriteHeader(http.StatusOK)
			end(w)
			return true
		})
		if err := f.store().Watch(t.Context(), func(kv.Snapshot) {}); err == nil {
			t.Errorf("%s: the watch goes on", what)
		}
	}
}

// Whoever cannot watch gets the reason.
func TestAWatchSaysWhyItDoesNotBegin(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.answerWith(func(w http.ResponseWriter, _ *http.Request) bool {
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
}

// until repeats what fails, as a busy machine makes it.
func until(do func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if err := do(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
