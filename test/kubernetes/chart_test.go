package kubernetes

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var (
	helm      = flag.String("helm", "helm", "the program helm")
	fencepost = flag.String("fencepost", "../../bin/fencepost", "the program fencepost")
	update    = flag.Bool("update", false, "write what the chart renders into etc/kubernetes")
)

const (
	chart = "../../etc/helm/fencepost"
	plain = "../../etc/kubernetes"
	full  = "testdata/full.yml"
	// rights is what the elector kubernetes needs beside etc/kubernetes.
	rights = "../../etc/kubernetes-leases.yml"
)

// template renders the chart, or returns what helm says of its values.
func template(release string, args ...string) (string, error) {
	out, err := exec.Command(*helm, append([]string{"template", release, chart}, args...)...).CombinedOutput()
	return string(out), err
}

func rendered(t *testing.T, release string, args ...string) string {
	t.Helper()
	text, err := template(release, args...)
	if err != nil {
		t.Fatalf("%s template: %v: %s", *helm, err, text)
	}
	return text
}

// sources returns the manifests of all origins.
func sources(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		"etc/kubernetes":             plainManifests(t),
		"the chart's default values": rendered(t, "fencepost"),
		"all values of the chart":    rendered(t, "orders", "--values", full),
		"leases of Kubernetes":       rendered(t, "orders", "--namespace", "shop", "--values", full, "--set", "config.election.provider=kubernetes"),
	}
}

func plainManifests(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(plain, "*.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range files {
		all.WriteString("---\n" + read(t, name))
	}
	return all.String()
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestManifestsAreTheChart: etc/kubernetes is what the chart renders with its default values,
// without the checksum of the configuration, which nobody could keep up to date there.
func TestManifestsAreTheChart(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, document := range strings.Split(rendered(t, "fencepost", "--set", "restartOnConfigChange=false"), "---\n# Source: fencepost/templates/") {
		if document == "" {
			continue
		}
		source, want, _ := strings.Cut(document, "\n")
		name := filepath.Join(plain, strings.TrimSuffix(source, ".yaml")+".yml")
		found[name] = true
		if *update {
			if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := read(t, name); got != want {
			t.Errorf("%s is not what the chart renders: change the chart, and run make helm UPDATE=1. It is\n%s\nand should be\n%s", name, got, want)
		}
	}
	files, err := os.ReadDir(plain)
	if err != nil || len(files) != len(found) {
		t.Errorf("etc/kubernetes has %d files, and the chart renders %d: %v", len(files), len(found), err)
	}
}

// TestRightsAreTheChart: etc/kubernetes-leases.yml is what the chart adds for leases of Kubernetes.
func TestRightsAreTheChart(t *testing.T) {
	t.Parallel()
	out := rendered(t, "fencepost", "--set", "config.election.provider=kubernetes", "--show-only", "templates/leases.yaml")
	// helm names the template before each document.
	want := strings.TrimPrefix(strings.ReplaceAll(out, "# Source: fencepost/templates/leases.yaml\n", ""), "---\n")
	if *update {
		if err := os.WriteFile(rights, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, rights); got != want {
		t.Errorf("%s is not what the chart renders: change the chart, and run make helm UPDATE=1. It is\n%s\nand should be\n%s", rights, got, want)
	}
}

// TestFencepostAcceptsTheConfiguration runs fencepost doctor with the configuration and the
// environment of the container, but without Postgres and Consul. It reports that they do not
// answer, and nothing else; of an invalid configuration it reports nothing at all.
func TestFencepostAcceptsTheConfiguration(t *testing.T) {
	t.Parallel()
	for name, text := range sources(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := parse(t, text)
			path := filepath.Join(t.TempDir(), "fencepost.yml")
			if err := os.WriteFile(path, []byte(m.settings.Data["fencepost.yml"]), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(*fencepost, "doctor", "--json", "--config", path)
			cmd.Env = []string{"FENCEPOST_UPSTREAM_ADDRESS=127.0.0.1:1", "FENCEPOST_ELECTION_CONSUL_ADDRESS=127.0.0.1:1"}
			if m.account != nil { // this is not a pod
				cmd.Env = append(cmd.Env, "FENCEPOST_ELECTION_KUBERNETES_KUBECONFIG="+nobodyConfig(t))
			}
			for _, e := range m.deployment.Spec.Template.Spec.Containers[0].Env {
				cmd.Env = append(cmd.Env, e.Name+"=example")
			}
			accepted(t, cmd)
		})
	}
}

// accepted runs a doctor, and requires that it reports what does not answer, and nothing else.
func accepted(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var report struct {
		Findings []struct{ ID, Seen string }
	}
	if json.Unmarshal(out, &report) != nil {
		t.Fatalf("fencepost does not accept the configuration: %v: %s", err, stderr.String())
	}
	upstream := false
	for _, f := range report.Findings {
		upstream = upstream || f.ID == "upstream"
		if f.ID != "upstream" && f.ID != "lease-service" {
			t.Errorf("the doctor finds %s: %s", f.ID, f.Seen)
		}
	}
	if !upstream {
		t.Errorf("the doctor did not look: %s", out)
	}
}

// nobodyConfig writes a kubeconfig of a cluster that does not answer.
func nobodyConfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	const text = "current-context: a\ncontexts: [{name: a, context: {cluster: a}}]\nclusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAllValuesAreTested: the values that the tests render as all of them leave none out.
func TestAllValuesAreTested(t *testing.T) {
	t.Parallel()
	var defaults, tested map[string]any
	for name, into := range map[string]*map[string]any{chart + "/values.yaml": &defaults, full: &tested} {
		if err := yaml.UnmarshalStrict([]byte(read(t, name)), into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for _, path := range missing("", defaults, tested) {
		t.Errorf("%s has no %s", full, path)
	}
}

func missing(prefix string, defaults, tested map[string]any) (paths []string) {
	for key, value := range defaults {
		other, ok := tested[key]
		below, isMap := value.(map[string]any)
		otherBelow, _ := other.(map[string]any)
		if !ok {
			paths = append(paths, prefix+key)
		} else if isMap {
			paths = append(paths, missing(prefix+key+".", below, otherBelow)...)
		}
	}
	return paths
}

// TestChartRefusesWhatWouldNotWork: it says what to do instead.
func TestChartRefusesWhatWouldNotWork(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{
		"config.listen=0.0.0.0:7000":                            "Set service.port",
		"config.admin.address=0.0.0.0:7000":                     "Set only other settings of admin",
		"config.admin=0.0.0.0:7000":                             "Set only other settings of admin",
		"config.admin.open_reads=false":                         "Use networkPolicy",
		"config.control.password=secret":                        "Put it in a Secret",
		"config.election.consul.token=secret":                   "Put it in a Secret",
		"config.election.etcd.password=secret":                  "Put it in a Secret",
		"config.election.redis.password=secret":                 "Put it in a Secret",
		"config.election.zookeeper.password=secret":             "Put it in a Secret",
		"config.election.kubernetes.kubeconfig=/etc/kubeconfig": "Remove it",
		"replica=3":                             "replica",
		"secrets.control_password.name=control": "control_password",
		"replicas=0":                            "replicas",
	} {
		if out, err := template("fencepost", "--set", set); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v: %s", set, err, out)
		}
	}
}
