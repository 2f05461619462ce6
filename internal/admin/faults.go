package admin

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencepost/fencepost/internal/faults"
)

var faultsDesc = prometheus.NewDesc("fencepost_faults",
	"1 while something is wrong that keeps Fencepost from its work, by kind.", []string{"kind"}, nil)

// WatchFaults adds the metric that shows the faults that last at each scrape.
func (m *Metrics) WatchFaults(lasting func() []faults.Active) {
	m.registry.MustRegister(faultScrape(lasting))
}

// faultScrape is a prometheus.Collector over the faults of a proxy. It returns every
// kind, so that an alert finds a 0 when a fault is over.
type faultScrape func() []faults.Active

func (s faultScrape) Describe(ch chan<- *prometheus.Desc) { ch <- faultsDesc }

func (s faultScrape) Collect(ch chan<- prometheus.Metric) {
	last := map[faults.Kind]float64{}
	for _, f := range s() {
		last[f.Kind] = 1
	}
	for _, kind := range faults.Kinds() {
		ch <- prometheus.MustNewConstMetric(faultsDesc, prometheus.GaugeValue, last[kind], string(kind))
	}
}

// WatchReady adds the metric that shows at each scrape what /readyz would answer.
func (m *Metrics) WatchReady(ready func(ctx context.Context) Readiness) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "fencepost", Name: "ready", Help: "1 while the proxy is ready, as /readyz says, 0 otherwise.",
	}, func() float64 {
		if ready(context.Background()).Ready {
			return 1
		}
		return 0
	}))
}
