package admin

import (
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/audit/rejections"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/proxy/refusals"
)

// Metrics are the metrics of one proxy, in a registry of their own. Their names are a
// contract: docs/observability.md lists them.
type Metrics struct {
	registry    *prometheus.Registry
	stale       *prometheus.CounterVec
	discarded   *prometheus.CounterVec
	would       *prometheus.CounterVec
	refused     *prometheus.CounterVec
	grants      *prometheus.CounterVec
	takeover    *prometheus.HistogramVec
	granting    *prometheus.HistogramVec
	falseAlarms *prometheus.CounterVec
	lost        *prometheus.CounterVec
	failures    *prometheus.CounterVec

	sessions    prometheus.Gauge
	connections *prometheus.CounterVec // that were refused
	unrecorded  *prometheus.CounterVec

	mu struct {
		sync.Mutex
		stopped map[[2]string]stopped // by database and resource
		awaited map[[2]string][]fencing.Awaited
		shadows map[[2]string]*shadowed
		// silences are the newest ends of leases because of silence, the oldest first.
		silences []silence
	}
}

// mostSilences is how many of them are kept.
const mostSilences = 1000

// silence is a Silence, and whose it was.
type silence struct {
	key [2]string // database and resource
	Silence
}

// stopped counts the writes of a resource that were not executed.
type stopped struct{ refused, stale, discarded uint64 } // the stale ones are refused, too

var (
	_ proxy.Metrics   = (*Metrics)(nil)
	_ fencing.Auditor = (*Metrics)(nil)
)

// NewMetrics returns metrics in a new registry.
func NewMetrics() *Metrics {
	byResource := []string{"database", "resource"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "fencepost", Name: name, Help: help}, labels)
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		stale: counter("stale_writes_rejected_total",
			"Writes of an epoch, a role or a snapshot that is over, by SQLSTATE.", "database", "resource", "reason"),
		discarded: counter("stale_writes_discarded_total",
			"Stale writes that were answered as if they had changed nothing, and not executed.", byResource...),
		would: counter("would_reject_total",
			"Writes that enforce: shadow let pass and enforce: on would have refused, by SQLSTATE.", "database", "resource", "reason"),
		refused: counter("writes_refused_total",
			"All refused writes, by kind and SQLSTATE.", "database", "resource", "kind", "reason"),
		grants: counter("grants_total", "Epochs granted to workers at this proxy.", byResource...),
		takeover: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "fencepost", Name: "takeover_seconds",
			Help:    "Time from when the last leader was last confirmed to the grant of a new epoch.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 17)}, byResource),
		granting: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "fencepost", Name: "takeover_grant_seconds",
			Help:    "The part of a takeover after the lease was free: from when that was first seen to the grant of a new epoch.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 13)}, byResource),
		falseAlarms: counter("false_alarms_total",
			"Workers that became active again after their lease was released for silence.", byResource...),
		lost:     counter("leases_lost_total", "Leases that the lease service took away.", byResource...),
		failures: counter("election_failures_total", "Requests to the lease service or the fence that failed.", byResource...),
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "fencepost", Name: "sessions",
			Help: "Client connections."}),
		connections: counter("connections_refused_total", "Connections that were refused before their first statement.", "reason"),
		unrecorded: counter("rejections_unrecorded_total",
			"Refused and discarded statements that the audit log has and the table fencepost.rejections does not.", "reason"),
	}
	for _, reason := range rejections.Reasons() {
		m.unrecorded.WithLabelValues(string(reason))
	}
	for _, reason := range refusals.Reasons() {
		m.connections.WithLabelValues(reason)
	}
	m.mu.stopped = map[[2]string]stopped{}
	m.mu.awaited = map[[2]string][]fencing.Awaited{}
	m.mu.shadows = map[[2]string]*shadowed{}
	m.registry.MustRegister(m.stale, m.discarded, m.would, m.refused, m.grants, m.takeover, m.granting, m.falseAlarms, m.lost, m.failures, m.sessions, m.connections, m.unrecorded,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Sessions implements proxy.Metrics.
func (m *Metrics) Sessions(delta int) { m.sessions.Add(float64(delta)) }

// Refused implements proxy.Metrics.
func (m *Metrics) Refused(reason string) { m.connections.WithLabelValues(reason).Inc() }

// Unrecorded counts rejections that are in the audit log only.
func (m *Metrics) Unrecorded(why rejections.Reason, n int64) {
	m.unrecorded.WithLabelValues(string(why)).Add(float64(n))
}

// Audit implements fencing.Auditor: it counts refused and discarded writes. A refused read is
// not counted.
func (m *Metrics) Audit(r fencing.Rejection) {
	if !r.Write {
		return
	}
	database, resource := label(r.Database), label(r.Resource)
	if r.Shadow {
		m.would.WithLabelValues(database, resource, r.SQLState).Inc()
		m.note(r.Database, r.Resource, func(s *shadowed) { s.refuse(r) })
		return
	}
	if r.Kind == fencing.KindDiscarded {
		m.discarded.WithLabelValues(database, resource).Inc()
		m.count(r, stopped{discarded: 1})
		return
	}
	more := stopped{refused: 1}
	if r.Kind == fencing.KindStale {
		more.stale = 1
		m.stale.WithLabelValues(database, resource, r.SQLState).Inc()
	}
	m.refused.WithLabelValues(database, resource, r.Kind.String(), r.SQLState).Inc()
	m.count(r, more)
}

// count adds to what StoppedSoFar returns.
func (m *Metrics) count(r fencing.Rejection, more stopped) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := [2]string{r.Database, r.Resource}
	sum := m.mu.stopped[key]
	m.mu.stopped[key] = stopped{sum.refused + more.refused, sum.stale + more.stale, sum.discarded + more.discarded}
}

// StoppedSoFar returns how many writes of a resource have been refused, how many of these because they were stale, and
// how many discarded.
func (m *Metrics) StoppedSoFar(database, resource string) (refused, stale, discarded uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.mu.stopped[[2]string{database, resource}]
	return sum.refused, sum.stale, sum.discarded
}

// Awaited records which backends the grant of a resource waits for and ends; an empty list means that none does.
func (m *Metrics) Awaited(database, resource string, backends []fencing.Awaited) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(backends) == 0 {
		delete(m.mu.awaited, [2]string{database, resource})
		return
	}
	m.mu.awaited[[2]string{database, resource}] = backends
}

// AwaitedBy returns what Awaited last recorded.
func (m *Metrics) AwaitedBy(database, resource string) []fencing.Awaited {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.awaited[[2]string{database, resource}]
}

// label returns a name as the value of a label. Prometheus accepts only UTF-8 and
// panics on other bytes, which a database's name may contain. Such a name is quoted, so
// that two databases remain distinct.
func label(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	return strconv.QuoteToASCII(name)
}

// Observe counts election events. It does not block.
func (m *Metrics) Observe(e election.Event) {
	switch e.Kind {
	case election.EventGranted:
		m.grants.WithLabelValues(label(e.Database), label(e.Resource)).Inc()
		if e.Takeover {
			m.takeover.WithLabelValues(label(e.Database), label(e.Resource)).Observe(e.Took.Seconds())
			m.granting.WithLabelValues(label(e.Database), label(e.Resource)).Observe(e.Grant.Seconds())
		}
	case election.EventFalseAlarm:
		m.falseAlarms.WithLabelValues(label(e.Database), label(e.Resource)).Inc()
	case election.EventSuperseded:
		m.note(e.Database, e.Resource, func(s *shadowed) { s.superseded++ })
	case election.EventResumed:
		m.note(e.Database, e.Resource, func(s *shadowed) { s.silence = max(s.silence, e.Took) })
	case election.EventLost:
		m.lost.WithLabelValues(label(e.Database), label(e.Resource)).Inc()
	case election.EventFailed:
		m.failures.WithLabelValues(label(e.Database), label(e.Resource)).Inc()
	case election.EventReleased:
		if e.Reason == elector.ReasonUnresponsive {
			m.silent(e)
		}
	case election.EventForgotten:
		m.forget(e.Database, e.Resource)
	}
}

// silent keeps that a lease was released for silence.
func (m *Metrics) silent(e election.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.silences = append(m.mu.silences, silence{[2]string{e.Database, e.Resource}, Silence{time.Now().UTC(), e.Worker, int64(e.Epoch)}})
	if len(m.mu.silences) > mostSilences {
		m.mu.silences = slices.Clone(m.mu.silences[len(m.mu.silences)-mostSilences/2:]) // not for each one
	}
}

// silencesOf returns those of a resource.
func (m *Metrics) silencesOf(database, resource string) []Silence {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := []Silence{}
	for _, s := range m.mu.silences {
		if s.key == [2]string{database, resource} {
			all = append(all, s.Silence)
		}
	}
	return all
}

// forget drops the series of a resource, so that names made up by clients do not
// accumulate. Its counters restart at 0 if the resource is used again. Those of /v1/shadow stay: only
// configured resources are in shadow.
func (m *Metrics) forget(database, resource string) {
	labels := prometheus.Labels{"database": label(database), "resource": label(resource)}
	for _, v := range []interface{ DeletePartialMatch(prometheus.Labels) int }{
		m.stale, m.discarded, m.would, m.refused, m.grants, m.takeover, m.granting, m.falseAlarms, m.lost, m.failures,
	} {
		v.DeletePartialMatch(labels)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.stopped, [2]string{database, resource})
}

var (
	epochDesc = prometheus.NewDesc("fencepost_epoch",
		"The highest epoch that this proxy knows of.", []string{"database", "resource"}, nil)
	leaderlessDesc = prometheus.NewDesc("fencepost_leaderless_seconds",
		"How long no worker has been known to be able to write; 0 while somebody leads, and while nobody is meant to.", []string{"database", "resource"}, nil)
	stateDesc = prometheus.NewDesc("fencepost_resource_state",
		"1 for the state that the resource has, 0 for the others.", []string{"database", "resource", "state"}, nil)
	marginDesc = prometheus.NewDesc("fencepost_lease_margin_seconds",
		"How much longer the lease that a worker here holds is trusted unless it is renewed.", []string{"database", "resource"}, nil)
	timeoutDesc = prometheus.NewDesc("fencepost_worker_timeout_seconds",
		"How long the leader may currently be silent, if it is connected here; +Inf means unlimited.", []string{"database", "resource"}, nil)
	silenceDesc = prometheus.NewDesc("fencepost_longest_silence_seconds",
		"The longest silence of a worker that is connected here, while it had a worker timeout.", []string{"database", "resource"}, nil)
	blockedDesc = prometheus.NewDesc("fencepost_grant_blocked",
		"1 while a takeover waits for a transaction that the control role cannot end.", []string{"database", "resource"}, nil)
)

// Watch adds the metrics that are read from the elections at each scrape.
func (m *Metrics) Watch(resources func() []status.Resource) {
	m.registry.MustRegister(scrape{m, resources})
}

// scrape is a prometheus.Collector over the resources of a proxy.
type scrape struct {
	metrics   *Metrics
	resources func() []status.Resource
}

func (s scrape) Describe(ch chan<- *prometheus.Desc) {
	ch <- epochDesc
	ch <- leaderlessDesc
	ch <- stateDesc
	ch <- marginDesc
	ch <- timeoutDesc
	ch <- silenceDesc
	ch <- blockedDesc
}

func (s scrape) Collect(ch chan<- prometheus.Metric) {
	for _, r := range s.resources() {
		database, resource := label(r.Database), label(r.Resource)
		ch <- prometheus.MustNewConstMetric(epochDesc, prometheus.GaugeValue, float64(r.Record.Epoch), database, resource)
		ch <- prometheus.MustNewConstMetric(leaderlessDesc, prometheus.GaugeValue, r.Leaderless.Seconds(), database, resource)
		for _, state := range status.States() {
			is := 0.0
			if state == r.State {
				is = 1
			}
			ch <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, is, database, resource, state.String())
		}
		if r.Holds {
			ch <- prometheus.MustNewConstMetric(marginDesc, prometheus.GaugeValue, r.Margin.Seconds(), database, resource)
		}
		silence := time.Duration(0)
		for _, c := range r.Candidacies {
			silence = max(silence, c.LongestSilence)
		}
		ch <- prometheus.MustNewConstMetric(silenceDesc, prometheus.GaugeValue, silence.Seconds(), database, resource)
		for _, c := range r.Candidacies {
			if c.Status.Role != fencing.Leader {
				continue
			}
			timeout := c.WorkerTimeout.Seconds()
			if timeout == 0 {
				timeout = math.Inf(1)
			}
			ch <- prometheus.MustNewConstMetric(timeoutDesc, prometheus.GaugeValue, timeout, database, resource)
			break // two metrics with the same labels would fail the scrape
		}
		blocked := 0.0
		if waits(r) && len(r.BlockedBy) > 0 {
			blocked = 1
		}
		ch <- prometheus.MustNewConstMetric(blockedDesc, prometheus.GaugeValue, blocked, database, resource)
	}
}
