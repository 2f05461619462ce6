package admin

import (
	"encoding/json"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
)

// TestWhatIsSeenInShadow of resources that are in shadow now: it outlasts the resource's other counts, and is bounded,
// whatever workers are called.
func TestWhatIsSeenInShadow(t *testing.T) {
	t.Parallel()
	a := testServer(&Readiness{})
	m := a.Metrics
	a.EnforceMode = func(resource string) string {
		if resource == "enforced" {
			return "on"
		}
		return "shadow"
	}
	a.WorkerTimeout = func(string) time.Duration { return time.Minute }
	a.Resources = func() []status.Resource { // of the last, only the database knows
		return append(someResources(), status.Resource{Database: "shop", Resource: "unused"})
	}
	would := func(resource, worker string, write bool) {
		m.Audit(fencing.Rejection{Database: "shop", Resource: resource, Worker: worker, User: "u", SQLState: "ZF002", Verb: "COPY", Write: write, Shadow: true, Time: time.Now()})
	}
	for _, resource := range []string{"gone", "enforced"} {
		m.Shadowed("shop", resource)
		for i := range maxWould + 10 {
			would(resource, strconv.Itoa(i), true)
		}
	}
	would("gone", "0", true)
	would("gone", "0", false) // a read
	would("billing", "0", true)
	for _, took := range []time.Duration{2 * time.Second, time.Second} {
		m.Observe(election.Event{Kind: election.EventResumed, Database: "shop", Resource: "gone", Took: took})
	}
	m.Observe(election.Event{Kind: election.EventSuperseded, Database: "shop", Resource: "gone"})
	m.Observe(election.Event{Kind: election.EventForgotten, Database: "shop", Resource: "gone"})
	var list ShadowList
	code, body := get(t, a.handler(), "/v1/shadow")
	if err := json.Unmarshal([]byte(body), &list); err != nil || code != http.StatusOK || list.Proxy != "fence-1" || len(list.Resources) != 3 {
		t.Fatalf("%v, status %d: %s", err, code, body)
	}
	// The leader of billing has promised heartbeats, and the timeout of mail's worker is unlimited.
	for i, resource := range []string{"billing", "gone", "mail"} {
		v := list.Resources[i]
		if v.Database != "shop" || v.Resource != resource || (v.Since == nil) != (resource != "gone") || (v.WorkerTimeout == nil) != (resource != "gone") {
			t.Errorf("%s: %+v", resource, v)
		}
	}
	gone := list.Resources[1]
	if gone.Connections != 1 || gone.Superseded != 1 || gone.LongestSilence != 2 || *gone.WorkerTimeout != 60 || len(gone.WouldRefuse) != maxWould+1 {
		t.Errorf("%+v, %d kinds", gone, len(gone.WouldRefuse))
	}
	others, one := gone.WouldRefuse[0], gone.WouldRefuse[1]
	if others.Worker != "" || others.User != "" || others.Count != 10 || one.Worker != "0" || one.User != "u" || one.Statement != "COPY" || one.Count != 2 || one.Last.IsZero() {
		t.Errorf("others %+v, the first worker %+v", others, one)
	}
	for i := range 2 * maxShadows {
		m.Shadowed(strconv.Itoa(i), "gone")
	}
	if n := len(m.mu.shadows); n != maxShadows {
		t.Errorf("%d resources are kept, want %d", n, maxShadows)
	}
}

// TestTheTimeoutOfTheWorkersThatCouldLead is the shortest of those without heartbeats; the configured one counts if
// there are none.
func TestTheTimeoutOfTheWorkersThatCouldLead(t *testing.T) {
	t.Parallel()
	limit := func(n float64) *float64 { return &n }
	leader, follower, unlimited := WorkerView{Role: "leader", WorkerTimeout: limit(40)}, WorkerView{Role: "follower", WorkerTimeout: limit(30)}, WorkerView{}
	beating := WorkerView{WorkerTimeout: limit(5), Heartbeat: limit(1)}
	observer, superseded := WorkerView{Observes: true, WorkerTimeout: limit(3)}, WorkerView{Role: "superseded", WorkerTimeout: limit(3)}
	a := &Server{WorkerTimeout: func(string) time.Duration { return time.Minute }}
	for name, c := range map[string]struct {
		workers []WorkerView
		want    float64 // 0: unlimited
	}{
		"some":                 {[]WorkerView{leader, follower, unlimited, beating, observer, superseded}, 30},
		"unlimited":            {[]WorkerView{unlimited, observer}, 0},
		"with heartbeats":      {[]WorkerView{beating, superseded}, 0},
		"none that could lead": {[]WorkerView{observer, superseded}, 60},
		"none":                 {nil, 60},
	} {
		got := a.workerTimeout("r", c.workers)
		if (got == nil) != (c.want == 0) || got != nil && *got != c.want {
			t.Errorf("%s: want %g, got %v", name, c.want, got)
		}
	}
	a.WorkerTimeout = func(string) time.Duration { return 0 }
	if got := a.workerTimeout("r", nil); got != nil {
		t.Errorf("%g where the configured timeout is unlimited", *got)
	}
}
