package observability

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
)

// manifest decodes a manifest, in which every key must be known.
func manifest(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../etc/kubernetes", name))
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	unknown, err := json.UnmarshalStrict(asJSON, into) // as Kubernetes does; it respects case
	if err := errors.Join(append(unknown, err)...); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// port returns the port of an address.
func port(t *testing.T, address string) int32 {
	t.Helper()
	n, err := strconv.ParseInt(address[strings.LastIndex(address, ":")+1:], 10, 32)
	if err != nil {
		t.Fatalf("address %s: %v", address, err)
	}
	return int32(n)
}

func TestManifestsFitTogether(t *testing.T) {
	t.Parallel()
	var (
		settings   core.ConfigMap
		deployment apps.Deployment
		service    core.Service
		budget     policy.PodDisruptionBudget
	)
	manifest(t, "configmap.yml", &settings)
	manifest(t, "deployment.yml", &deployment)
	manifest(t, "service.yml", &service)
	manifest(t, "pdb.yml", &budget)
	pod, labels := deployment.Spec.Template.Spec, deployment.Spec.Template.Labels
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers", len(pod.Containers))
	}
	c := pod.Containers[0]
	cfg := configOf(t, settings.Data["fencepost.yml"])
	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	for what, holds := range map[string]bool{
		"the selector of the deployment": selects(deployment.Spec.Selector.MatchLabels, labels),
		"the selector of the service":    selects(service.Spec.Selector, labels),
		"the selector of the budget":     selects(budget.Spec.Selector.MatchLabels, labels),
		"the port of the service":        ports[service.Spec.Ports[0].TargetPort.StrVal] == port(t, cfg.Listen.String()),
		"all connections to one proxy":   service.Spec.SessionAffinity == core.ServiceAffinityClientIP,
		"readiness":                      c.ReadinessProbe.HTTPGet.Path == "/readyz" && ports[c.ReadinessProbe.HTTPGet.Port.StrVal] == port(t, cfg.Admin.Address),
		"liveness":                       c.LivenessProbe.HTTPGet.Path == "/healthz" && ports[c.LivenessProbe.HTTPGet.Port.StrVal] == port(t, cfg.Admin.Address),
		"the configuration":              pod.Volumes[0].ConfigMap.Name == settings.Name && strings.HasPrefix(c.Args[2], c.VolumeMounts[0].MountPath+"/"),
		"time to drain":                  cfg.DrainTimeout.D()+10*time.Second < time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second,
		"not root":                       *pod.SecurityContext.RunAsNonRoot && *pod.SecurityContext.RunAsUser == 65532,
		"a read-only file system":        *c.SecurityContext.ReadOnlyRootFilesystem && !*c.SecurityContext.AllowPrivilegeEscalation,
		"a disruption that is possible":  budget.Spec.MaxUnavailable.IntVal > 0 && *deployment.Spec.Replicas > 1,
	} {
		if !holds {
			t.Errorf("the manifests do not fit: %s", what)
		}
	}
	secrets := 0
	for _, e := range c.Env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			secrets++
		}
		if e.Value != "" {
			t.Errorf("the variable %s has a value in the manifest", e.Name)
		}
	}
	if secrets != 1 || cfg.Control.Password != "" {
		t.Errorf("%d variables are from a secret", secrets)
	}
}

// selects reports whether a selector that is not empty matches labels.
func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return len(selector) > 0
}

// configOf returns the configuration in a ConfigMap, which must be valid.
func configOf(t *testing.T, text string) config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fencepost.yml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, nil, []config.Provider{{Name: "postgres", Validate: func(*config.Config, config.Fault) {}}})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}
