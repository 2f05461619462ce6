package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ResourceView is one resource as the admin address shows it at
// /v1/resources/{database}/{resource}: what this proxy knows of it.
type ResourceView struct {
	Database string `json:"database"`
	Resource string `json:"resource"`
	// Leader is the worker of the highest grant this proxy knows, "" if there
	// was none.
	Leader string `json:"leader"`
	// Here: the leader is connected to this proxy, and its lease is confirmed.
	Here  bool       `json:"here"`
	Epoch int64      `json:"epoch"`
	Since *time.Time `json:"since,omitempty"`
	// LeaseLeft is how much longer the lease is trusted without a renewal, in
	// seconds; nil unless Here.
	LeaseLeft *float64 `json:"lease_left_seconds,omitempty"`
	// Refused is how many writes this proxy refused since it started.
	Refused uint64 `json:"refused_writes"`
	// Leaderless is for how long nobody has held the lease, in seconds.
	Leaderless float64 `json:"leaderless_seconds"`
	// FalseAlarms counts workers that came back after their lease was released
	// for silence.
	FalseAlarms int `json:"false_alarms"`
	// Election says why the lease service cannot be watched, "" if it can.
	Election string `json:"election_error,omitempty"`
	// Blocked is what a takeover waits for that cannot be ended, as of the last
	// grant that this proxy tried.
	Blocked []string `json:"takeover_blocked_by,omitempty"`
	// Workers are the candidacies at this proxy.
	Workers []WorkerView `json:"workers"`
}

// WorkerView is one candidacy of a resource at this proxy.
type WorkerView struct {
	Worker      string `json:"worker"`
	User        string `json:"user"`
	Incarnation string `json:"incarnation"`
	// Role is what SHOW fencepost.role says, or "lapsed" for a worker whose
	// lease is not confirmed while nobody else was granted one.
	Role         string `json:"role"`
	Epoch        int64  `json:"epoch"`
	Connections  int    `json:"connections"`
	Unresponsive bool   `json:"silent,omitempty"`
	// Observes: none of its connections campaigns.
	Observes bool `json:"observes,omitempty"`
	// WorkerTimeout is how long it may be silent now, in seconds; null is for
	// ever. Its false alarms of the last 24 hours have lengthened it.
	WorkerTimeout *float64 `json:"worker_timeout_seconds"`
	FalseAlarms   int      `json:"false_alarms"`
	Fault         string   `json:"fault,omitempty"` // why the fence cannot be used
}

// Readiness is the body of /readyz.
type Readiness struct {
	Ready    bool   `json:"ready"`
	Upstream string `json:"upstream"` // "ok", or what is wrong
	// Election is "ok", or what is wrong. It does not make a proxy unready: a
	// leader goes on while its lease lasts, and reads pass.
	Election string `json:"election"`
	Draining bool   `json:"draining"`
	// Warnings say what others than Fencepost can do to the fences it has opened.
	// They do not make it unready.
	Warnings []string `json:"warnings,omitempty"`
}

// admin answers questions about a running proxy.
type admin struct {
	proxy     string
	resources func() []ResourceView
	ready     func(ctx context.Context) Readiness
	registry  *prometheus.Registry
	pprof     bool
}

// handler returns the routes of the admin address.
func (a *admin) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ready := a.ready(r.Context())
		status := http.StatusOK
		if !ready.Ready {
			status = http.StatusServiceUnavailable
		}
		writeJSON(w, status, ready)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /v1/resources", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, resourceList{Proxy: a.proxy, Resources: a.resources()})
	})
	mux.HandleFunc("GET /v1/resources/{database}/{resource}", a.oneResource)
	if a.pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// resourceList is the body of /v1/resources.
type resourceList struct {
	Proxy     string         `json:"proxy"`
	Resources []ResourceView `json:"resources"`
}

func (a *admin) oneResource(w http.ResponseWriter, r *http.Request) {
	database, resource := r.PathValue("database"), r.PathValue("resource")
	for _, v := range a.resources() {
		if v.Database == database && v.Resource == resource {
			writeJSON(w, http.StatusOK, v)
			return
		}
	}
	writeJSON(w, http.StatusNotFound, map[string]string{
		"error": fmt.Sprintf("this proxy knows no resource %q in database %q: nobody has connected for it here", resource, database),
	})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	text, err := json.MarshalIndent(body, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // the asker may have gone
}

// serve serves h on l until ctx ends, and waits for requests that are running.
func (a *admin) serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: a.handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the admin address: %w", err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err := server.Shutdown(closing)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close() // a profile that runs for long, say
	}
	<-served
	return err
}
