package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencepost/fencepost/upstream"
)

var hostDesc = prometheus.NewDesc("fencepost_upstream_host",
	"1 for the state in which a host of upstream.address is, 0 for the others, if there are several hosts.", []string{"address", "state"}, nil)

// WatchHosts adds the metric that shows the hosts at each scrape.
func (m *Metrics) WatchHosts(hosts func() []upstream.HostStatus) {
	m.registry.MustRegister(hostScrape(hosts))
}

// hostScrape is a prometheus.Collector over the hosts of upstream.address.
type hostScrape func() []upstream.HostStatus

func (s hostScrape) Describe(ch chan<- *prometheus.Desc) { ch <- hostDesc }

func (s hostScrape) Collect(ch chan<- prometheus.Metric) {
	for _, h := range s() {
		for _, state := range upstream.States() {
			value := 0.0
			if h.State == state {
				value = 1
			}
			ch <- prometheus.MustNewConstMetric(hostDesc, prometheus.GaugeValue, value, h.Address, string(state))
		}
	}
}
