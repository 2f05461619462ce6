package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy"
)

// TestThePageIsServed with headers that keep a browser from running or sending anything else, as all responses are.
func TestThePageIsServed(t *testing.T) {
	t.Parallel()
	h := testServer(&Readiness{Ready: true}).handler()
	for _, c := range []struct{ method, path, kind, says string }{
		{"GET", "/", "text/html", `<script src="page/app.js" defer>`},
		{"HEAD", "/", "text/html", ""},
		{"GET", "/page/app.js", "javascript", "EventSource"},
		{"GET", "/page/base.js", "javascript", "textContent"},
		{"GET", "/page/style.css", "text/css", ""},
		{"GET", "/page/icon.svg", "image/svg+xml", "<svg"},
		{"GET", "/v1/resources", "application/json", "billing"},
		{"GET", "/v1/proxies", "application/json", `"proxy": "fence-1"`},
	} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(c.method, c.path, nil))
		if rec.Code != 200 || !strings.Contains(rec.Header().Get("Content-Type"), c.kind) || !strings.Contains(rec.Body.String(), c.says) {
			t.Errorf("%s %s: status %d, %v", c.method, c.path, rec.Code, rec.Header())
		}
		csp := rec.Header().Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
			if !strings.Contains(csp, want) || strings.Contains(csp, "unsafe") {
				t.Errorf("%s: the policy is %q", c.path, csp)
			}
		}
		if rec.Header().Get("X-Content-Type-Options") != "nosniff" || rec.Header().Get("Cache-Control") != "no-store" || rec.Header().Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: %v", c.path, rec.Header())
		}
	}
	for path, want := range map[string]int{"/page/missing.js": 404, "/page/../admin.go": 307, "/index.html": 404, "/v1/nothing": 404} {
		if code, body := get(t, h, path); code != want || strings.Contains(body, "package admin") {
			t.Errorf("%s: status %d, want %d", path, code, want)
		}
	}
}

// TestABrowserReadsWithTheTokenAsPassword, and changes nothing with it, because it would add the password to requests
// that it did not make by itself.
func TestABrowserReadsWithTheTokenAsPassword(t *testing.T) {
	t.Parallel()
	closed := Access{Token: "secret"}
	for name, c := range map[string]struct {
		access       Access
		method, pass string
		want         int
	}{
		"nothing":                        {closed, "GET", "", 401},
		"the token":                      {closed, "GET", "secret", 200},
		"another password":               {closed, "GET", "secre", 401},
		"where there is no token":        {Access{Certificates: true}, "GET", "secret", 401},
		"to change something":            {closed, "POST", "secret", 401},
		"to change, with open reads":     {Access{OpenReads: true, Token: "secret"}, "POST", "secret", 401},
		"nothing, where reading is open": {Access{OpenReads: true, Token: "secret"}, "GET", "", 200},
	} {
		rec := httptest.NewRecorder()
		r := httptest.NewRequest(c.method, "/v1/reload", nil)
		r.RemoteAddr = "10.0.0.7:4000"
		if c.pass != "" {
			r.SetBasicAuth("anybody", c.pass)
		}
		guarded(func() Access { return c.access }, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(rec, r)
		challenges := strings.Join(rec.Header().Values("WWW-Authenticate"), ", ")
		if rec.Code != c.want || strings.Contains(challenges, "Basic") != (c.want == 401 && c.access.Token != "") {
			t.Errorf("%s: %d, %q", name, rec.Code, challenges)
		}
	}
}

// TestOtherSitesReadNothing: a page of another site reaches a loopback address under a name of its own (DNS rebinding), or
// sends requests from its own origin.
func TestOtherSitesReadNothing(t *testing.T) {
	t.Parallel()
	loopback, outside := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6433}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5), Port: 6433}
	for name, c := range map[string]struct {
		at         net.Addr
		host, path string
		headers    string
		want       int
	}{
		"by the address":                     {loopback, "127.0.0.1:6433", "/v1/resources", "", 200},
		"by localhost":                       {loopback, "localhost:6433", "/v1/resources", "", 200},
		"by a name of another site":          {loopback, "rebound.example:6433", "/v1/resources", "", 421},
		"by that name, IPv6":                 {&net.TCPAddr{IP: net.IPv6loopback}, "rebound.example:6433", "/metrics", "", 421},
		"by that name, with the token":       {loopback, "fence.example:6433", "/v1/resources", "Authorization: Bearer secret", 200},
		"by that name, with another token":   {loopback, "fence.example:6433", "/v1/resources", "Authorization: Bearer other", 421},
		"by that name, as a password":        {loopback, "fence.example:6433", "/v1/resources", "Authorization: Basic eDpzZWNyZXQ=", 200},
		"by a name, not on the loopback":     {outside, "fence.example:6433", "/v1/resources", "", 200},
		"a link on another site":             {outside, "fence.example", "/", "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: navigate|Sec-Fetch-Dest: document", 200},
		"a frame on another site":            {outside, "fence.example", "/", "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: navigate|Sec-Fetch-Dest: iframe", 403},
		"the events, from another site":      {outside, "fence.example", "/v1/events", "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: cors|Sec-Fetch-Dest: empty", 403},
		"the resources, from another origin": {outside, "fence.example", "/v1/resources", "Origin: http://other.example", 403},
	} {
		a := testServer(&Readiness{Ready: true})
		a.Access = func() Access { return Access{OpenReads: true, Token: "secret"} }
		r := httptest.NewRequest(http.MethodGet, c.path, nil)
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, c.at))
		r.Host = c.host
		for header := range strings.SplitSeq(c.headers, "|") {
			if name, value, ok := strings.Cut(header, ": "); ok {
				r.Header.Set(name, value)
			}
		}
		rec := httptest.NewRecorder()
		a.handler().ServeHTTP(rec, r)
		if rec.Code != c.want {
			t.Errorf("%s: %d, want %d: %s", name, rec.Code, c.want, rec.Body)
		}
	}
}

// fakeResources are resources that a test changes.
type fakeResources struct {
	mu  sync.Mutex
	all []status.Resource
}

func (f *fakeResources) get() []status.Resource {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]status.Resource(nil), f.all...)
}

func (f *fakeResources) change(do func(all []status.Resource) []status.Resource) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = do(f.all)
}

// event is a Live as its reader has it.
type event struct {
	Whole     bool
	Resources []ResourceView
	Readiness *Readiness
}

func (e event) names() string {
	names := make([]string, len(e.Resources))
	for i, r := range e.Resources {
		names[i] = r.Resource + ":" + r.State
	}
	return strings.Join(names, " ")
}

// TestTheEventsHaveWhatHasChanged, not what the passing of time changes by itself. A browser that comes later gets all, and
// so does each when a resource is gone. The end of the server ends the stream.
func TestTheEventsHaveWhatHasChanged(t *testing.T) {
	t.Parallel()
	began, renewed := time.Now(), atomic.Int64{} // by how much that was, in nanoseconds
	fake := &fakeResources{all: []status.Resource{
		{Database: "shop", Resource: "a", State: status.Led, Local: true, Candidacies: []status.Candidacy{{Worker: "w", Status: fencing.Status{Role: fencing.Leader}, WorkerTimeout: time.Minute}}},
		{Database: "shop", Resource: "b", State: status.Electing}, {Database: "shop", Resource: "c", State: status.Idle},
	}}
	a := testServer(&Readiness{Ready: true, Upstream: "ok"})
	a.Resources = func() []status.Resource {
		all := fake.get()
		passed := time.Since(began) - time.Duration(renewed.Load())
		for i := range all {
			switch all[i].Resource { // what time alone changes
			case "a":
				all[i].LeaseLeft = time.Hour - passed
				all[i].Candidacies = []status.Candidacy{all[i].Candidacies[0]}
				all[i].Candidacies[0].Silence, all[i].Candidacies[0].LongestSilence = 10*time.Second+passed, 10*time.Second+passed
			case "b":
				all[i].Leaderless = time.Minute + passed
			}
		}
		return all
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, l) }()
	resp, err := http.Get("http://" + l.Addr().String() + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	next := func() (e event) {
		t.Helper()
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(text), &e); err != nil {
					t.Fatal(err)
				}
				return e
			}
		}
		t.Fatalf("the stream has ended: %v", lines.Err())
		return e
	}
	if e := next(); !e.Whole || len(e.Resources) != 3 {
		t.Errorf("first %+v", e)
	}
	for range 3 {
		if e := next(); e.Whole || len(e.Resources) != 0 || e.Readiness == nil {
			t.Errorf("after nothing has changed: whole %v, %s", e.Whole, e.names())
		}
	}
	fake.change(func(all []status.Resource) []status.Resource {
		all[2].State = status.Blocked
		return all
	})
	if e := next(); e.Whole || e.names() != "c:blocked" {
		t.Errorf("after a change: whole %v, %s", e.Whole, e.names())
	}
	renewed.Store(int64(5 * time.Second)) // the lease was renewed, the worker has sent something
	if e := next(); e.Whole || len(e.Resources) != 2 {
		t.Errorf("after a renewal: whole %v, %s", e.Whole, e.names())
	}
	fake.change(func(all []status.Resource) []status.Resource { return all[:2] })
	if e := next(); !e.Whole || len(e.Resources) != 2 {
		t.Errorf("after a resource is gone: whole %v, %s", e.Whole, e.names())
	}
	end()
	for lines.Scan() { // what was sent before
	}
	if err := lines.Err(); err != nil {
		t.Errorf("the stream was cut: %v", err)
	}
	select {
	case err := <-served:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the stream keeps the server from ending")
	}
}

// TestAProxyThatIsNotReadyHoldsUpNoEvent: no one waits for the answer of Postgres.
func TestAProxyThatIsNotReadyHoldsUpNoEvent(t *testing.T) {
	t.Parallel()
	a := testServer(&Readiness{})
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	var asked atomic.Int32
	a.Ready = func(context.Context) Readiness { asked.Add(1); <-never; return Readiness{} }
	a.handler()
	for range 3 {
		text, _ := a.live.since(t.Context(), 0, true)
		var e event
		if err := json.Unmarshal(text, &e); err != nil || len(e.Resources) != 2 || e.Readiness != nil {
			t.Errorf("%v: %s", err, text)
		}
	}
	if n := asked.Load(); n > 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestHistoryIsAskedForOncePerTurn(t *testing.T) {
	t.Parallel()
	a := testServer(&Readiness{})
	a.Metrics.Observe(election.Event{Kind: election.EventReleased, Reason: elector.ReasonUnresponsive, Database: "shop", Resource: "billing", Worker: "w", Epoch: 7})
	a.Metrics.Observe(election.Event{Kind: election.EventReleased, Reason: elector.ReasonLeft, Database: "shop", Resource: "billing", Worker: "left"})
	var since, until time.Time
	failure := error(nil)
	a.History = func(_ context.Context, database, resource string, s, u time.Time) (any, error) {
		since, until = s, u
		return map[string]string{"of": database + "/" + resource}, failure
	}
	h := a.handler()
	const path = "/v1/resources/shop/billing/history"
	at := time.Date(2026, 3, 2, 11, 0, 0, 0, time.UTC)
	for query, want := range map[string]time.Duration{
		"?until=2026-03-02T11:00:00Z":                            24 * time.Hour,
		"?until=2026-03-02T11:00:00Z&since=2026-03-02T10:00:00Z": time.Hour,
		fmt.Sprintf("?until=%d&since=-60", at.Unix()):            time.Minute,
	} {
		code, body := get(t, h, path+query)
		if code != 200 || !strings.Contains(body, `"of": "shop/billing"`) || !strings.Contains(body, `"worker": "w"`) || strings.Contains(body, "left") || !until.Equal(at) || until.Sub(since) != want {
			t.Errorf("%s: %d, from %v to %v: %s", query, code, since, until, body)
		}
	}
	for _, query := range []string{"?since=yesterday", "?until=2026-03-02", "?since=0&until=0", "?since=99999999999999"} {
		if code, body := get(t, h, path+query); code != 400 || !strings.Contains(body, "error") {
			t.Errorf("%s: %d %s", query, code, body)
		}
	}
	for err, want := range map[error]int{ErrUnknown: 404, errors.New("connection refused"): 503} {
		failure = err
		if code, body := get(t, h, path); code != want || !strings.Contains(body, err.Error()) {
			t.Errorf("%v: %d %s", err, code, body)
		}
	}
}

// TestDatabasesAreReadByFewAtATime: others wait, and get an answer that says so in the end.
func TestDatabasesAreReadByFewAtATime(t *testing.T) {
	t.Parallel()
	a := testServer(&Readiness{})
	reading, end := make(chan struct{}, 10), make(chan struct{})
	a.Refusals = func(context.Context) (any, error) { reading <- struct{}{}; <-end; return "read", nil }
	h := a.handler()
	codes := make(chan int, mostQueries)
	for range mostQueries {
		go func() {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/v1/refusals", nil))
			codes <- rec.Code
		}()
		<-reading
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/refusals", nil))
	if rec.Code != 503 || len(reading) != 0 {
		t.Errorf("one too many: %d", rec.Code)
	}
	close(end)
	for range mostQueries {
		if code := <-codes; code != 200 {
			t.Errorf("status %d", code)
		}
	}
}

func TestSilencesAreBounded(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	for i := range 3 * mostSilences {
		m.silent(election.Event{Database: "shop", Resource: "billing", Epoch: fencing.Epoch(i)})
	}
	all := m.silencesOf("shop", "billing")
	if len(all) < mostSilences/2 || len(all) > mostSilences || all[len(all)-1].Epoch != 3*mostSilences-1 {
		t.Errorf("%d are kept, the last one of epoch %d", len(all), all[len(all)-1].Epoch)
	}
}

func TestConnectionsAreFiltered(t *testing.T) {
	t.Parallel()
	a := testServer(&Readiness{})
	a.Connections = func() []proxy.Connection {
		return []proxy.Connection{
			{Database: "shop", Resource: "billing", Worker: "one"}, {Database: "shop", Resource: "mail", Chosen: []string{"billing"}, Worker: "two"},
			{Database: "bank", Resource: "billing", Worker: "three", State: "idle"}, {Database: "shop", User: "someone"},
		}
	}
	h := a.handler()
	for query, want := range map[string]struct{ listed, matching int }{
		"": {4, 0}, "?database=shop": {3, 0}, "?database=shop&resource=billing": {2, 0}, "?match=one": {2, 0}, "?match=idle": {1, 0}, "?match=nobody": {0, 0},
		"?limit=3": {3, 4}, "?limit=4": {4, 0}, "?resource=billing&limit=1": {1, 3}, "?resource=": {1, 0},
	} {
		code, body := get(t, h, "/v1/connections"+query)
		var list ConnectionList
		if err := json.Unmarshal([]byte(body), &list); err != nil || code != 200 || len(list.Connections) != want.listed || list.Matching != want.matching {
			t.Errorf("%q: %d, %d listed of %d, want %+v: %v", query, code, len(list.Connections), list.Matching, want, err)
		}
	}
	if code, _ := get(t, h, "/v1/connections?limit=-1"); code != 400 {
		t.Errorf("a negative limit: %d", code)
	}
}
