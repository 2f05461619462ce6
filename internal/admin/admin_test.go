package admin

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
)

// someResources returns one resource whose leader is here, and one that no one leads.
func someResources() []status.Resource {
	return []status.Resource{
		{
			Database: "shop", Resource: "billing", State: status.Led, StateSince: time.Now().Add(-time.Minute),
			Local: true, LeaseLeft: 7 * time.Second, Holds: true, Margin: 7 * time.Second,
			Record:      fencing.Record{Epoch: 8, Worker: "host-9:117:q1", GrantedAt: time.Now().Add(-time.Minute), Guards: 6},
			FalseAlarms: 4,
			Candidacies: []status.Candidacy{{User: "shop", Worker: "host-9:117:q1", Members: 3,
				Status: fencing.Status{Role: fencing.Leader, Epoch: 8}, WorkerTimeout: 90 * time.Second, FalseAlarms: 2, LongestSilence: 75 * time.Second, Heartbeat: time.Second}},
		},
		{
			Database: "shop", Resource: "mail", State: status.Electing, Leaderless: 5 * time.Second,
			Record:      fencing.Record{Epoch: 3, Worker: "gone", GrantedAt: time.Now().Add(-time.Minute)},
			Candidacies: []status.Candidacy{{User: "shop", Worker: "next"}},
			BlockedBy:   []string{`prepared transaction "x" of role "app" must be committed or rolled back`},
		},
	}
}

func testServer(ready *Readiness) *Server {
	m := NewMetrics()
	m.Watch(someResources)
	m.WatchReady(func(context.Context) Readiness { return *ready })
	return &Server{
		Proxy: "fence-1", Resources: someResources, Metrics: m,
		Ready: func(context.Context) Readiness { return *ready },
	}
}

// refuse counts a refused statement of the resource billing.
func refuse(m *Metrics, sqlstate string, write bool) {
	m.Audit(fencing.Rejection{
		Database: "shop", Resource: "billing", SQLState: sqlstate, Kind: fencing.KindOf("billing", sqlstate, fencing.Finding{}), Write: write,
	})
}

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
	return rec.Code, rec.Body.String()
}

func TestAdminAnswers(t *testing.T) {
	t.Parallel()
	ready := Readiness{Ready: true, Upstream: "ok", Election: "consul does not answer"}
	a := testServer(&ready)
	m := a.Metrics
	refuse(m, fencing.StateSuperseded, true)
	refuse(m, fencing.StateSuperseded, false) // a read is not a write
	refuse(m, fencing.StateNotLeader, true)   // a write, but not a stale one
	m.Audit(fencing.Rejection{Database: "shop", Resource: "billing", SQLState: fencing.StateSuperseded, Kind: fencing.KindDiscarded, Write: true})
	m.Audit(fencing.Rejection{Database: "shop", Resource: "billing", SQLState: fencing.StateSuperseded, Write: true, Shadow: true})
	a.EnforceMode = func(string) string { return "shadow" }
	a.StaleMode = func(string) string { return "discard" }
	a.Configured = func(string) bool { return true }
	a.FenceMode = func(string) string { return "tables" }
	m.Observe(election.Event{Kind: election.EventGranted, Database: "shop", Resource: "billing", Takeover: true, Took: 3 * time.Second, Grant: time.Second})
	m.Sessions(+1)
	h := a.handler()
	for _, c := range []struct {
		path string
		code int
		want []string
	}{
		{"/healthz", 200, []string{"ok"}},
		{"/readyz", 200, []string{`"ready": true`, "consul does not answer"}},
		{"/v1/resources", 200, []string{`"proxy": "fence-1"`, `"leader": "host-9:117:q1"`, `"epoch": 8`, `"lease_left_seconds": 7`,
			`"configured": true`, `"refused_writes": 2`, `"discarded_writes": 1`, `"on_stale": "discard"`, `"enforce": "shadow"`, `"fence": "tables"`, `"longest_silence_seconds": 75`, `"connections": 3`, `"leaderless_seconds": 5`,
			`"state": "led"`, `"state_since": "`, `"confirmed_until": "`, `"state": "electing"`, `"leader": ""`, `"granted_to": "gone"`,
			`"worker_timeout_seconds": 90`, `"heartbeat_seconds": 1`, `"false_alarms": 2`, `"false_alarms": 4`, `"guarded_tables": 6`, `"takeover_blocked_by"`, "prepared transaction"}},
		{"/v1/resources/shop/billing", 200, []string{`"role": "leader"`}},
		{"/v1/resources/shop/billing/leader", 200, []string{`"leader": "host-9:117:q1"`}},
		{"/v1/resources/shop/mail/leader", 503, []string{`"state": "electing"`}},
		{"/v1/resources/shop/nothing/leader", 404, []string{"unknown resource"}},
		{"/v1/resources/shop/nothing", 404, []string{"unknown resource"}},
		{"/debug/pprof/", 404, nil},
		{"/metrics", 200, []string{
			`fencepost_stale_writes_rejected_total{database="shop",reason="ZF001",resource="billing"} 1`,
			`fencepost_would_reject_total{database="shop",reason="ZF001",resource="billing"} 1`,
			`fencepost_longest_silence_seconds{database="shop",resource="billing"} 75`,
			`fencepost_stale_writes_discarded_total{database="shop",resource="billing"} 1`,
			`fencepost_writes_refused_total{database="shop",kind="stale",reason="ZF001",resource="billing"} 1`,
			`fencepost_writes_refused_total{database="shop",kind="not_leader",reason="ZF002",resource="billing"} 1`,
			`fencepost_epoch{database="shop",resource="billing"} 8`,
			`fencepost_leaderless_seconds{database="shop",resource="mail"} 5`,
			`fencepost_grant_blocked{database="shop",resource="billing"} 0`,
			`fencepost_grant_blocked{database="shop",resource="mail"} 1`,
			`fencepost_grants_total{database="shop",resource="billing"} 1`,
			`fencepost_worker_timeout_seconds{database="shop",resource="billing"} 90`,
			`fencepost_takeover_seconds_sum{database="shop",resource="billing"} 3`,
			`fencepost_takeover_grant_seconds_sum{database="shop",resource="billing"} 1`,
			`fencepost_lease_margin_seconds{database="shop",resource="billing"} 7`,
			"fencepost_ready 1",
			"fencepost_sessions 1"}},
	} {
		code, body := get(t, h, c.path)
		if code != c.code {
			t.Errorf("%s: status %d, want %d", c.path, code, c.code)
		}
		for _, want := range c.want {
			if !strings.Contains(body, want) {
				t.Errorf("%s does not contain %q:\n%s", c.path, want, body)
			}
		}
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodHead, "/v1/resources/shop/billing/leader", nil))
	if head := rec.Result(); head.StatusCode != 200 || head.Header.Get("Fencepost-Leader") != "host-9:117:q1" || head.Header.Get("Fencepost-Epoch") != "8" {
		t.Errorf("HEAD of the leader: %s, %v", head.Status, head.Header)
	}
	ready.Ready, ready.Draining = false, true
	if code, _ := get(t, h, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz of a draining proxy: status %d", code)
	}
	if _, body := get(t, h, "/metrics"); !strings.Contains(body, "fencepost_ready 0") {
		t.Error("/metrics says that a draining proxy is ready")
	}
	a.Pprof = true
	if code, _ := get(t, a.handler(), "/debug/pprof/"); code != http.StatusOK {
		t.Errorf("/debug/pprof/ when enabled: status %d", code)
	}
}

// TestAResourceThatWasNeverGranted may have an epoch: operators can raise it.
func TestAResourceThatWasNeverGranted(t *testing.T) {
	t.Parallel()
	granted := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	views := resourceViews([]status.Resource{
		{Record: fencing.Record{Epoch: 3}}, {Record: fencing.Record{Epoch: 3, GrantedAt: granted}},
	}, NewMetrics())
	if got := views[0].Since; got != nil {
		t.Errorf("it was granted at %v", got)
	}
	if got := views[1].Since; got == nil || !got.Equal(granted) {
		t.Errorf("the other one was granted at %v, want %v", got, granted)
	}
}
