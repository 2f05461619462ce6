package observability

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

var program = flag.String("prometheus", "prometheus", "the program prometheus")

func TestMain(m *testing.M) { pgtest.Main(m) }

// prometheus is a Prometheus server that evaluates the rules, and scrapes proxies often.
type prometheus struct {
	t   *testing.T
	url string
}

// settings is its configuration, as docs/alerts.md suggests it, with the file of the rules
// and the addresses of proxies.
const settings = `
global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 500ms}
rule_files: [%q]
scrape_configs:
  - job_name: fencepost
    static_configs:
      - targets: %s
`

func startPrometheus(t *testing.T, rules string, targets ...string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	ruleFile, err := filepath.Abs(rules)
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(targets)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, fmt.Appendf(nil, settings, ruleFile, list), 0o600); err != nil {
		t.Fatal(err)
	}
	listening := regexp.MustCompile(`msg="Listening on" .*address=(127\.0\.0\.1:\d+)`)
	address, once := make(chan string, 1), sync.Once{}
	p := process.StartLogged(t, "prometheus", exec.Command(*program, "--config.file="+file,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0"), func(line string) {
		if found := listening.FindStringSubmatch(line); found != nil {
			once.Do(func() { address <- found[1] })
		}
	})
	select {
	case at := <-address:
		started := &prometheus{t: t, url: "http://" + at}
		process.Eventually(t, process.Patience, "prometheus to be ready", started.ready)
		return started
	case <-p.Done:
		t.Fatalf("prometheus ended with code %d:\n%s", p.Code, process.Tail(p.Log()))
	case <-time.After(process.Patience):
		t.Fatalf("prometheus does not serve:\n%s", process.Tail(p.Log()))
	}
	return nil
}

// client leaves no connections behind.
var client = http.Client{Timeout: process.Patience, Transport: &http.Transport{DisableKeepAlives: true}}

// ready reports whether the server answers queries, which it does some time after it listens.
func (p *prometheus) ready() bool {
	resp, err := client.Get(p.url + "/-/ready")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// get returns the data of an answer of Prometheus' HTTP API, which must be a success.
func (p *prometheus) get(path string, params url.Values, data any) error {
	resp, err := client.Get(p.url + "/api/v1/" + path + "?" + params.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%w in %s", err, body)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", resp.Status, answer.Error)
	}
	return nil
}

// query returns how many series an expression has now, not counting those that are NaN.
func (p *prometheus) query(expr string) (int, error) {
	var data struct {
		Result []struct{ Value [2]any }
	}
	if err := p.get("query", url.Values{"query": {expr}}, &data); err != nil {
		return 0, fmt.Errorf("prometheus does not accept %s: %w", expr, err)
	}
	n := 0
	for _, series := range data.Result {
		if series.Value[1] != "NaN" {
			n++
		}
	}
	return n, nil
}

// evaluated returns the health of each alert, once all of them have been evaluated.
func (p *prometheus) evaluated() map[string]string {
	p.t.Helper()
	health := map[string]string{}
	process.Eventually(p.t, process.Patience, "the rules to be evaluated", func() bool {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		if err := p.get("rules", nil, &data); err != nil {
			p.t.Fatal(err)
		}
		for _, g := range data.Groups {
			for _, r := range g.Rules {
				health[r.Name] = r.Health + r.LastError
				if r.Health == "unknown" {
					return false
				}
			}
		}
		return len(data.Groups) > 0
	})
	return health
}
