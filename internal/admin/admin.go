// Package admin is what a running proxy reports about itself: its metrics, its resources
// and its readiness, and the admin address at which they are served.
package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/upstream"
)

// ResourceView is what this proxy knows about one resource, as the admin address
// returns it at /v1/resources/{database}/{resource}.
type ResourceView struct {
	Database string `json:"database"`
	Resource string `json:"resource"`
	// State says whether anyone leads, as far as this proxy knows: one of status.States, since StateSince. StateReason
	// says why it is unknown or blocked. "led" means that writes can be admitted: the leader's lease is confirmed, and
	// Postgres answers.
	State       string     `json:"state"`
	StateSince  *time.Time `json:"state_since,omitempty"`
	StateReason string     `json:"state_reason,omitempty"`
	// AsOf is when the database has said so, if this proxy knows the state from there alone.
	AsOf *time.Time `json:"as_of,omitempty"`
	// ConfirmedUntil is until when the leader's lease is confirmed; nil unless it is led,
	// and if the lease service does not say that to the proxies without the leader.
	ConfirmedUntil *time.Time `json:"confirmed_until,omitempty"`
	// Leader is the worker that leads, "" unless State is "led". GrantedTo is the worker
	// that was granted Epoch, at Since, whether it still leads or not.
	Leader    string `json:"leader"`
	GrantedTo string `json:"granted_to"`
	// Proxy is the proxy through which GrantedTo is connected, as the database said up to some seconds ago; "" if it is
	// not, or if that is not known.
	Proxy string `json:"proxy"`
	// Here means that the leader is connected to this proxy and that its lease is
	// confirmed.
	Here  bool       `json:"here"`
	Epoch int64      `json:"epoch"`
	Since *time.Time `json:"since,omitempty"`
	// LeaseLeft is how many more seconds the lease is trusted without a renewal; nil
	// unless Here.
	LeaseLeft *float64 `json:"lease_left_seconds,omitempty"`
	// Configured: this proxy's configuration names it under resources.
	Configured bool `json:"configured"`
	// Enforce is "on", or "shadow" if nothing is refused on connections that begin now.
	Enforce string `json:"enforce,omitempty"`
	// OnStale says what becomes of stale writes, on connections that begin now: "reject" or
	// "discard".
	OnStale string `json:"on_stale,omitempty"`
	// Fence says what refuses the writes of those who do not lead, on connections that begin
	// now: "session", or "tables" if only the guards of tables do.
	Fence string `json:"fence,omitempty"`
	// InShadow and InTables are how many connections of this proxy have begun with enforce: shadow and with
	// fence: tables, and keep that until they end, whatever Enforce and Fence are now.
	InShadow int `json:"shadow_connections,omitempty"`
	InTables int `json:"tables_connections,omitempty"`
	// Refused is the number of writes that this proxy has refused since it started.
	Refused uint64 `json:"refused_writes"`
	// Stale is how many of these were stale: their worker had been superseded.
	Stale uint64 `json:"stale_writes"`
	// Discarded is the number of stale writes that this proxy has discarded since it started.
	Discarded uint64 `json:"discarded_writes"`
	// Leaderless is how many seconds no worker has been known to be able to write: since the
	// lease was free or no longer confirmed, and until an epoch is granted. It is 0 while
	// someone leads, and while no one is meant to: in the states "idle" and "paused".
	Leaderless float64 `json:"leaderless_seconds"`
	// FalseAlarms counts the workers that became active again, before anyone else was
	// granted an epoch, after their lease was released for silence.
	FalseAlarms int `json:"false_alarms"`
	// Waiting are the workers that campaign and do not lead: those of this proxy.
	Waiting []string `json:"waiting,omitempty"`
	// Election says why the lease service cannot be watched; "" if it can.
	Election string `json:"election_error,omitempty"`
	// Blocked lists what blocks a takeover and cannot be ended, or what is left of it since the
	// last grant that this proxy attempted.
	Blocked []string `json:"takeover_blocked_by,omitempty"`
	// Awaits lists the backends that a grant of this proxy has waited for for a second or longer, and ends; it is read
	// once a second.
	Awaits []fencing.Awaited `json:"takeover_waits_for,omitempty"`
	// GuardedTables is how many tables the resource guards, without partitions and children,
	// as of the last time that its fence was read.
	GuardedTables int `json:"guarded_tables"`
	// Orders are those of operators that keep workers from leading, as of the last time that the
	// database was asked, and those that a failover or a restore has lost, of which only the
	// proxies that had seen them know.
	Orders []string `json:"orders,omitempty"`
	// Workers are the candidacies at this proxy.
	Workers []WorkerView `json:"workers"`
}

// WorkerView is one candidacy of a resource at this proxy.
type WorkerView struct {
	Worker      string `json:"worker"`
	User        string `json:"user"`
	Incarnation string `json:"incarnation"`
	// Role is what SHOW fencepost.role returns, or "lapsed" for a worker whose lease is
	// not confirmed while no one else has been granted one.
	Role         string `json:"role"`
	Epoch        int64  `json:"epoch"`
	Connections  int    `json:"connections"`
	Unresponsive bool   `json:"silent,omitempty"`
	// Silence is for how many seconds the worker has been silent; 0 if nothing watches that.
	Silence float64 `json:"silence_seconds"`
	// Observes means that none of its connections campaigns.
	Observes bool `json:"observes,omitempty"`
	// WorkerTimeout is how many seconds the worker may currently be silent; null means
	// unlimited. Its heartbeats may have shortened it, and its false alarms have extended
	// it, until an hour has passed without one.
	WorkerTimeout *float64 `json:"worker_timeout_seconds"`
	FalseAlarms   int      `json:"false_alarms"`
	// Heartbeat is after how many seconds at most the worker has promised to send something;
	// null if it has promised nothing.
	Heartbeat *float64 `json:"heartbeat_seconds"`
	// LongestSilence is how many seconds the worker was silent at most; 0 if the worker
	// timeout is unlimited.
	LongestSilence float64 `json:"longest_silence_seconds"`
	Fault          string  `json:"fault,omitempty"`  // why the fence cannot be used
	Barred         string  `json:"barred,omitempty"` // which order of an operator keeps it from leading
}

// Readiness is the body of /readyz.
type Readiness struct {
	Ready    bool   `json:"ready"`
	Upstream string `json:"upstream"` // "ok", or the problem
	// Hosts are the servers of upstream.address if it has several.
	Hosts []upstream.HostStatus `json:"hosts,omitempty"`
	// Election is "ok", or the problem. A problem does not make the proxy unready: a
	// leader continues while its lease lasts, and reads pass.
	Election string `json:"election"`
	Draining bool   `json:"draining"`
	// Faults are what is wrong at present, and what to do. They do not make the proxy
	// unready, except that the control role must have logged in once.
	Faults []faults.Active `json:"faults"`
	// Warnings say what other roles can do to the fences that this proxy has opened.
	// They do not make it unready.
	Warnings []string `json:"warnings,omitempty"`
	// RestartPending are the settings that have changed in the configuration, as of its last reload, and that only a
	// restart applies.
	RestartPending []string `json:"restart_pending,omitempty"`
	// ReloadFailed is when the last reload was that has failed, nil if the last one has succeeded. Why is for those
	// only who may reload.
	ReloadFailed *time.Time `json:"reload_failed,omitempty"`
}

// Server serves the admin address of a running proxy.
type Server struct {
	Proxy     string // the id of the proxy
	Resources func() []status.Resource
	// Connections returns the clients of the proxy; it may be nil.
	Connections func() []proxy.Connection
	Ready       func(ctx context.Context) Readiness
	Metrics     *Metrics
	Pprof       bool // serve profiles too
	// Access says who may use the address, now. nil means the zero Access with OpenReads.
	Access func() Access
	// Log is for what goes wrong with connections; it may be nil.
	Log *zap.Logger
	// EnforceMode returns whether the checks of a resource are enforced; it may be nil.
	EnforceMode func(resource string) string
	// Configured reports whether the configuration names a resource; it may be nil.
	Configured func(resource string) bool
	// StaleMode returns what becomes of the stale writes of a resource; it may be nil.
	StaleMode func(resource string) string
	// FenceMode returns what refuses those who do not lead a resource; it may be nil.
	FenceMode func(resource string) string
	// WorkerTimeout returns the configured worker timeout of a resource, 0 for unlimited; it may be nil.
	WorkerTimeout func(resource string) time.Duration
	// Reload reads the configuration again. It returns the body of the response, and false
	// if the configuration is invalid.
	Reload func() (body any, ok bool)
	// Quit ends the proxy as SIGTERM does, and returns at once.
	Quit func()
	// History returns what a database records of a resource in a time, with what may go into JSON as it is, and
	// Refusals the newest refusals of all databases. ErrUnknown means that there is no such database. They may be nil.
	History  func(ctx context.Context, database, resource string, since, until time.Time) (any, error)
	Refusals func(ctx context.Context) (any, error)
	// Process says what else is known of the process, and Proxies returns what the databases know of all proxies; it
	// may be nil.
	Process Process
	Proxies func() []OtherProxy

	live          live
	answerTimeout time.Duration // 0: the constant
}

// handler returns the routes of the admin address.
func (a *Server) handler() http.Handler {
	access := a.Access
	if access == nil {
		access = func() Access { return Access{OpenReads: true} }
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ready := a.Ready(r.Context())
		status := http.StatusOK
		if !ready.Ready {
			status = http.StatusServiceUnavailable
		}
		writeJSON(w, status, ready)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.Metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /v1/resources", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, ResourceList{Proxy: a.Proxy, Resources: a.Views()})
	})
	mux.HandleFunc("GET /v1/resources/{database}/{resource}", func(w http.ResponseWriter, r *http.Request) {
		a.oneResource(w, r, func(*ResourceView) int { return http.StatusOK })
	})
	mux.HandleFunc("GET /v1/resources/{database}/{resource}/leader", func(w http.ResponseWriter, r *http.Request) {
		a.oneResource(w, r, func(v *ResourceView) int {
			w.Header().Set("Fencepost-Leader", url.PathEscape(v.Leader)) // a worker's id may have any character
			w.Header().Set("Fencepost-Epoch", strconv.FormatInt(v.Epoch, 10))
			if v.Here {
				return http.StatusOK
			}
			return http.StatusServiceUnavailable
		})
	})
	mux.HandleFunc("GET /v1/connections", a.connections)
	mux.HandleFunc("GET /v1/shadow", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, ShadowList{Proxy: a.Proxy, Resources: a.shadows()})
	})
	mux.Handle("POST /v1/reload", http.HandlerFunc(a.reload))
	mux.HandleFunc("POST /v1/quit", func(w http.ResponseWriter, r *http.Request) {
		if !access().knows(r) { // no credential is configured: any user of the host could end the proxy
			writeJSON(w, http.StatusForbidden, map[string]string{"error": "this request needs a credential, also from the host itself: set admin.token or admin.tls.client_ca_file, or send SIGTERM"})
			return
		}
		a.Quit()
		writeJSON(w, http.StatusAccepted, map[string]bool{"draining": true})
	})
	a.addPage(mux)
	if a.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return bounded(cmp.Or(a.answerTimeout, answerTimeout), guarded(access, mux))
}

// ResourceList is the body of /v1/resources.
type ResourceList struct {
	Proxy     string         `json:"proxy"`
	Resources []ResourceView `json:"resources"`
}

// ConnectionList is the body of /v1/connections.
type ConnectionList struct {
	Proxy       string             `json:"proxy"`
	Connections []proxy.Connection `json:"connections"`
	// Matching is how many clients match what was asked for, if that is more than are listed.
	Matching int `json:"matching,omitempty"`
}

// connections answers with the clients of the proxy: with those of a resource, those in which a text occurs, and no
// more than a limit, if the request says so.
func (a *Server) connections(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, err := strconv.Atoi(cmp.Or(q.Get("limit"), "0"))
	if err != nil || limit < 0 {
		writeJSON(w, http.StatusBadRequest, map[string]string{"error": "limit must be a number that is not negative"})
		return
	}
	list := ConnectionList{Proxy: a.Proxy, Connections: []proxy.Connection{}}
	if a.Connections != nil {
		list.Connections = a.Connections()
	}
	list.Connections = slices.DeleteFunc(list.Connections, func(c proxy.Connection) bool {
		texts := append([]string{c.Database, c.User, c.Client, c.ApplicationName, c.Resource, c.Worker, c.Role, c.State}, c.Chosen...)
		return q.Has("database") && c.Database != q.Get("database") ||
			q.Has("resource") && c.Resource != q.Get("resource") && !slices.Contains(c.Chosen, q.Get("resource")) ||
			!slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, q.Get("match")) })
	})
	if n := len(list.Connections); limit > 0 && n > limit {
		list.Matching, list.Connections = n, list.Connections[:limit]
	}
	writeJSON(w, http.StatusOK, list)
}

// Views returns what the proxy knows about each resource.
func (a *Server) Views() []ResourceView {
	views := resourceViews(a.Resources(), a.Metrics)
	type begun struct{ database, resource, fence string }
	counts := map[begun]int{}
	if a.Connections != nil {
		for _, c := range a.Connections() {
			counts[begun{c.Database, c.Resource, c.Fence}]++
		}
	}
	for i := range views {
		views[i].InShadow = counts[begun{views[i].Database, views[i].Resource, "shadow"}]
		views[i].InTables = counts[begun{views[i].Database, views[i].Resource, "tables"}]
		if views[i].Here { // the database may not know yet
			views[i].Proxy = a.Proxy
		}
		if a.EnforceMode != nil {
			views[i].Enforce = a.EnforceMode(views[i].Resource)
		}
		if a.Configured != nil {
			views[i].Configured = a.Configured(views[i].Resource)
		}
		if a.StaleMode != nil {
			views[i].OnStale = a.StaleMode(views[i].Resource)
		}
		if a.FenceMode != nil {
			views[i].Fence = a.FenceMode(views[i].Resource)
		}
	}
	return views
}

// oneResource answers with the resource of the path, and the status that status returns for it.
func (a *Server) oneResource(w http.ResponseWriter, r *http.Request, status func(*ResourceView) int) {
	database, resource := r.PathValue("database"), r.PathValue("resource")
	for _, v := range a.Views() {
		if v.Database == database && v.Resource == resource {
			writeJSON(w, status(&v), v)
			return
		}
	}
	writeJSON(w, http.StatusNotFound, map[string]string{
		"error": fmt.Sprintf("unknown resource %q in database %q: no worker uses it through this proxy, and none has led it", resource, database),
	})
}

func (a *Server) reload(w http.ResponseWriter, _ *http.Request) {
	body, ok := a.Reload()
	status := http.StatusOK
	if !ok {
		status = http.StatusUnprocessableEntity
	}
	writeJSON(w, status, body)
}

// Serve serves the admin address on l until ctx ends, and waits for requests in
// progress.
func (a *Server) Serve(ctx context.Context, l net.Listener) error {
	errorLog, err := zap.NewStdLogAt(cmp.Or(a.Log, zap.NewNop()), zap.DebugLevel)
	if err != nil {
		return fmt.Errorf("log of the admin address: %w", err)
	}
	server := &http.Server{Handler: a.handler(), ErrorLog: errorLog, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	server.RegisterOnShutdown(a.live.close) // a stream does not end by itself
	defer a.live.asks.Wait()                // which takes as long as /readyz at most
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the admin address: %w", err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err = server.Shutdown(closing)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close() // for example a long profile
	}
	<-served
	return err
}
