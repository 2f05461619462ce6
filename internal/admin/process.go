package admin

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencepost/fencepost/proxy"
)

// Process is what the metrics show of the process itself and of its clients.
type Process struct {
	Version string
	// Certificates returns when the certificates in use expire, by what they are for.
	Certificates func() map[string]time.Time
	// LastReload returns when the configuration was last read, and whether that has succeeded.
	LastReload func() (at time.Time, ok bool)
	// Traffic returns the traffic of each database.
	Traffic func() map[string]proxy.Traffic
}

var (
	buildDesc = prometheus.NewDesc("fencepost_build_info",
		"1, with the version of the program and of Go.", []string{"version", "goversion"}, nil)
	notAfterDesc = prometheus.NewDesc("fencepost_certificate_not_after_seconds",
		"When a certificate that is in use expires, in seconds since 1970.", []string{"which"}, nil)
	reloadOKDesc = prometheus.NewDesc("fencepost_config_last_reload_successful",
		"1 if the configuration and the files of TLS could be used when they were last read, 0 otherwise.", nil, nil)
	reloadAtDesc = prometheus.NewDesc("fencepost_config_last_reload_timestamp_seconds",
		"When the configuration was last read, in seconds since 1970, whether or not that has succeeded.", nil, nil)
	receivedDesc = prometheus.NewDesc("fencepost_received_bytes_total",
		"Bytes from clients.", []string{"database"}, nil)
	sentDesc = prometheus.NewDesc("fencepost_sent_bytes_total",
		"Bytes to clients.", []string{"database"}, nil)
	transactionsDesc = prometheus.NewDesc("fencepost_transactions_total",
		"Transactions of clients that have ended, also those of one statement.", []string{"database"}, nil)
)

// WatchProcess adds the metrics that are read from p at each scrape.
func (m *Metrics) WatchProcess(p Process) { m.registry.MustRegister(p) }

// Describe implements prometheus.Collector.
func (p Process) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{buildDesc, notAfterDesc, reloadOKDesc, reloadAtDesc, receivedDesc, sentDesc, transactionsDesc} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (p Process) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	gauge(buildDesc, 1, label(p.Version), runtime.Version())
	for which, at := range p.Certificates() {
		gauge(notAfterDesc, float64(at.Unix()), which)
	}
	at, ok := p.LastReload()
	successful := 0.0
	if ok {
		successful = 1
	}
	gauge(reloadOKDesc, successful)
	gauge(reloadAtDesc, float64(at.Unix()))
	for database, t := range p.Traffic() {
		for desc, n := range map[*prometheus.Desc]uint64{receivedDesc: t.Received, sentDesc: t.Sent, transactionsDesc: t.Transactions} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), label(database))
		}
	}
}
