package observability

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/upstream"
)

// series are the label sets of each metric, by its name in queries.
type series map[string][]map[string]string

// addedByPrometheus are the labels that each scraped series has in addition.
var addedByPrometheus = []string{"job", "instance"}

// exported scrapes the metrics that a proxy has exported after everything has happened once.
func exported(t *testing.T) series {
	t.Helper()
	m := admin.NewMetrics()
	m.Watch(func() []status.Resource {
		return []status.Resource{{
			Database: "shop", Resource: "billing", Holds: true, Margin: 7 * time.Second, Record: fencing.Record{Epoch: 8},
			Candidacies: []status.Candidacy{{Worker: "w", Status: fencing.Status{Role: fencing.Leader, Epoch: 8}, WorkerTimeout: time.Minute}},
		}}
	})
	m.WatchFaults(func() []faults.Active { return nil })
	m.WatchHosts(func() []upstream.HostStatus {
		return []upstream.HostStatus{{Address: "db1:5432", State: upstream.States()[0]}}
	})
	m.WatchProcess(admin.Process{
		Certificates: func() map[string]time.Time { return map[string]time.Time{"tls": time.Now()} },
		LastReload:   func() (time.Time, bool) { return time.Now(), true },
		Traffic:      func() map[string]proxy.Traffic { return map[string]proxy.Traffic{"shop": {}} },
	})
	ready := func(context.Context) admin.Readiness { return admin.Readiness{Ready: true} }
	m.WatchReady(ready)
	for _, kind := range []election.EventKind{election.EventGranted, election.EventFalseAlarm, election.EventLost, election.EventFailed} {
		m.Observe(election.Event{Kind: kind, Database: "shop", Resource: "billing", Takeover: true, Took: time.Second, Grant: time.Second})
	}
	m.Audit(fencing.Rejection{Database: "shop", Resource: "billing", SQLState: fencing.StateSuperseded, Kind: fencing.KindStale, Write: true})
	return scrape(t, &admin.Server{Metrics: m, Ready: ready, Resources: func() []status.Resource { return nil }})
}

func scrape(t *testing.T, server *admin.Server) series {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	resp, err := http.Get(fmt.Sprintf("http://%s/metrics", l.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := series{"up": {{}}} // which Prometheus makes itself
	for name, family := range families {
		for _, metric := range family.Metric {
			all.add(name, family.GetType(), metric)
		}
	}
	return all
}

// add adds a metric under the names by which queries ask for it.
func (s series) add(name string, kind dto.MetricType, metric *dto.Metric) {
	labels := map[string]string{}
	for _, l := range metric.Label {
		labels[l.GetName()] = l.GetValue()
	}
	if kind != dto.MetricType_HISTOGRAM {
		s[name] = append(s[name], labels)
		return
	}
	s[name+"_sum"] = append(s[name+"_sum"], labels)
	s[name+"_count"] = append(s[name+"_count"], labels)
	for _, b := range metric.GetHistogram().Bucket {
		bucket := map[string]string{"le": fmt.Sprint(b.GetUpperBound())}
		for k, v := range labels {
			bucket[k] = v
		}
		s[name+"_bucket"] = append(s[name+"_bucket"], bucket)
	}
}

// ours reports whether a metric is one of Fencepost's own.
func ours(name string) bool { return strings.HasPrefix(name, "fencepost_") }
