package admin

import (
	"cmp"
	"slices"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// What is kept of resources in shadow is bounded. Nothing is known of a resource beyond maxShadows. A refusal beyond
// maxWould of a resource counts without its worker and user; few kinds of those exist.
const (
	maxShadows = 1000
	maxWould   = 256
)

// ShadowList is the body of /v1/shadow.
type ShadowList struct {
	Proxy     string       `json:"proxy"`
	Resources []ShadowView `json:"resources"`
}

// ShadowView is what this proxy has seen of a resource that is in shadow now. It is kept until the proxy ends.
type ShadowView struct {
	Database string `json:"database"`
	Resource string `json:"resource"`
	// Since is when the first connection in shadow began here, nil if there was none. All counts are since then.
	Since       *time.Time `json:"since"`
	Connections uint64     `json:"connections"`
	// Superseded is how many workers were superseded while they were connected here: what a takeover would refuse
	// shows only then.
	Superseded uint64 `json:"superseded_workers"`
	// LongestSilence is the longest silence, in seconds, after which a worker continued under its epoch.
	LongestSilence float64 `json:"longest_silence_seconds"`
	// WorkerTimeout is how many seconds a worker may be silent, null for unlimited: the shortest timeout of those that
	// are connected here and could lead, or the configured one if there are none. Those that have promised heartbeats
	// do not count: these count for them.
	WorkerTimeout *float64 `json:"worker_timeout_seconds"`
	// WouldRefuse counts the writes that enforce: on would have refused.
	WouldRefuse []WouldRefuse `json:"would_refuse"`
}

// WouldRefuse counts writes that would have been refused and are alike.
type WouldRefuse struct {
	SQLState string `json:"sqlstate"`
	// Statement is the verb of SQL, fencing.VerbFunction or fencing.VerbConnection; empty if it is not known.
	Statement string `json:"statement"`
	// Worker and User are empty for all those together of whom there were too many.
	Worker string    `json:"worker"`
	User   string    `json:"user"`
	Count  uint64    `json:"count"`
	Last   time.Time `json:"last"`
}

// shadowed is what is counted of one resource.
type shadowed struct {
	since                   time.Time
	connections, superseded uint64
	silence                 time.Duration
	would                   map[WouldRefuse]*WouldRefuse // by all but Count and Last
}

// Shadowed implements proxy.Metrics.
func (m *Metrics) Shadowed(database, resource string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := [2]string{database, resource}
	s := m.mu.shadows[key]
	if s == nil {
		if len(m.mu.shadows) >= maxShadows {
			return
		}
		s = &shadowed{since: time.Now(), would: map[WouldRefuse]*WouldRefuse{}}
		m.mu.shadows[key] = s
	}
	s.connections++
}

// note changes what is counted of a resource, if it is in shadow or was.
func (m *Metrics) note(database, resource string, change func(s *shadowed)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.mu.shadows[[2]string{database, resource}]; s != nil {
		change(s)
	}
}

// refuse counts a write that would have been refused.
func (s *shadowed) refuse(r fencing.Rejection) {
	key := WouldRefuse{SQLState: r.SQLState, Statement: r.Verb, Worker: r.Worker, User: r.User}
	if s.would[key] == nil && len(s.would) >= maxWould {
		key.Worker, key.User = "", ""
	}
	if s.would[key] == nil {
		one := key
		s.would[key] = &one
	}
	s.would[key].Count++
	s.would[key].Last = r.Time.UTC().Truncate(time.Millisecond)
}

// view is the ShadowView without what is not counted.
func (s *shadowed) view() ShadowView {
	since := s.since.UTC().Truncate(time.Millisecond)
	v := ShadowView{Since: &since, Connections: s.connections, Superseded: s.superseded, LongestSilence: s.silence.Seconds(), WouldRefuse: []WouldRefuse{}}
	for _, w := range s.would {
		v.WouldRefuse = append(v.WouldRefuse, *w)
	}
	slices.SortFunc(v.WouldRefuse, func(a, b WouldRefuse) int {
		return cmp.Or(cmp.Compare(a.SQLState, b.SQLState), cmp.Compare(a.Statement, b.Statement), cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.User, b.User))
	})
	return v
}

// shadows returns what was seen of the resources that are in shadow now. One that has not been seen in shadow is
// listed while workers are connected.
func (a *Server) shadows() []ShadowView {
	byName := map[[2]string]ShadowView{}
	a.Metrics.mu.Lock()
	for key, s := range a.Metrics.mu.shadows {
		byName[key] = s.view()
	}
	a.Metrics.mu.Unlock()
	workers := map[[2]string][]WorkerView{}
	for _, r := range a.Views() {
		key := [2]string{r.Database, r.Resource}
		workers[key] = r.Workers
		if _, ok := byName[key]; !ok && len(r.Workers) > 0 {
			byName[key] = ShadowView{WouldRefuse: []WouldRefuse{}}
		}
	}
	list := []ShadowView{}
	for key, v := range byName {
		if a.EnforceMode == nil || a.EnforceMode(key[1]) != "shadow" {
			continue
		}
		v.Database, v.Resource = key[0], key[1]
		v.WorkerTimeout = a.workerTimeout(key[1], workers[key])
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b ShadowView) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.Resource, b.Resource))
	})
	return list
}

// workerTimeout returns ShadowView.WorkerTimeout of a resource with these workers.
func (a *Server) workerTimeout(resource string, workers []WorkerView) (shortest *float64) {
	connected := false
	for _, w := range workers {
		if w.Observes || w.Role == fencing.Superseded.String() {
			continue
		}
		connected = true
		if w.Heartbeat == nil && w.WorkerTimeout != nil && (shortest == nil || *w.WorkerTimeout < *shortest) {
			shortest = w.WorkerTimeout
		}
	}
	if !connected && a.WorkerTimeout != nil {
		if configured := a.WorkerTimeout(resource).Seconds(); configured > 0 {
			return &configured
		}
	}
	return shortest
}
