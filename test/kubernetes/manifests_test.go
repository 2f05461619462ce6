package kubernetes

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fencepost/fencepost/internal/config"
)

// manifests are the objects of one installation.
type manifests struct {
	settings   core.ConfigMap
	deployment apps.Deployment
	service    core.Service
	budget     policy.PodDisruptionBudget
	network    *networking.NetworkPolicy // nil: there is none
	// What the elector kubernetes needs; all are nil with another one.
	account *core.ServiceAccount
	role    *rbac.Role
	binding *rbac.RoleBinding
}

// parse decodes manifests, in which every key must be known, and each kind occurs once.
func parse(t *testing.T, text string) (m manifests) {
	t.Helper()
	m.network = &networking.NetworkPolicy{}
	m.account, m.role, m.binding = &core.ServiceAccount{}, &rbac.Role{}, &rbac.RoleBinding{}
	into := map[string]any{
		"ConfigMap": &m.settings, "Deployment": &m.deployment, "Service": &m.service,
		"PodDisruptionBudget": &m.budget, "NetworkPolicy": m.network,
		"ServiceAccount": m.account, "Role": m.role, "RoleBinding": m.binding,
	}
	for _, document := range strings.Split("\n"+text, "\n---\n") {
		asJSON, err := yaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		var of struct {
			Kind string `json:"kind"`
		}
		if err := json.UnmarshalCaseSensitivePreserveInts(asJSON, &of); err != nil {
			t.Fatal(err)
		}
		if of.Kind == "" && string(asJSON) == "null" {
			continue // the end of a file, or the comment in front of the first document
		}
		object := into[of.Kind]
		if object == nil {
			t.Fatalf("the kind %q is unknown here, or occurs twice", of.Kind)
		}
		delete(into, of.Kind)
		unknown, err := json.UnmarshalStrict(asJSON, object) // as Kubernetes does; it respects case
		if err := errors.Join(append(unknown, err)...); err != nil {
			t.Fatalf("%s: %v", of.Kind, err)
		}
	}
	if _, missing := into["NetworkPolicy"]; missing {
		delete(into, "NetworkPolicy")
		m.network = nil
	}
	if _, missing := into["ServiceAccount"]; missing {
		delete(into, "ServiceAccount")
		m.account = nil
	}
	if _, missing := into["Role"]; missing && m.account == nil {
		delete(into, "Role")
		delete(into, "RoleBinding")
		m.role, m.binding = nil, nil
	}
	for kind := range into {
		t.Errorf("there is no %s", kind)
	}
	if len(m.deployment.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("%d containers", len(m.deployment.Spec.Template.Spec.Containers))
	}
	return m
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
	for name, text := range sources(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parse(t, text).fit(t)
		})
	}
}

// fit checks that the objects fit together.
func (m manifests) fit(t *testing.T) {
	t.Helper()
	pod, labels := m.deployment.Spec.Template.Spec, m.deployment.Spec.Template.Labels
	c := pod.Containers[0]
	cfg := configOf(t, m.settings.Data["fencepost.yml"])
	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	probes := func(probe *core.Probe, path string) bool {
		get, scheme := probe.HTTPGet, core.URISchemeHTTP
		if cfg.Admin.TLS.CertFile != "" {
			scheme = core.URISchemeHTTPS
		}
		return get.Path == path && get.Scheme == scheme && ports[get.Port.StrVal] == port(t, cfg.Admin.Address)
	}
	for what, holds := range map[string]bool{
		"the selector of the deployment": selects(m.deployment.Spec.Selector.MatchLabels, labels),
		"the selector of the service":    selects(m.service.Spec.Selector, labels),
		"the selector of the budget":     selects(m.budget.Spec.Selector.MatchLabels, labels),
		"the spread of the pods":         selects(pod.TopologySpreadConstraints[0].LabelSelector.MatchLabels, labels),
		"the port of the service":        ports[m.service.Spec.Ports[0].TargetPort.StrVal] == port(t, cfg.Listen.String()),
		"all connections to one proxy":   m.service.Spec.SessionAffinity == core.ServiceAffinityClientIP,
		"the addresses of workers":       m.service.Spec.Type == core.ServiceTypeClusterIP || m.service.Spec.ExternalTrafficPolicy == core.ServiceExternalTrafficPolicyLocal,
		"readiness":                      probes(c.ReadinessProbe, "/readyz"),
		"liveness":                       probes(c.LivenessProbe, "/healthz"),
		"the configuration":              pod.Volumes[0].ConfigMap.Name == m.settings.Name && strings.HasPrefix(c.Args[2], c.VolumeMounts[0].MountPath+"/"),
		"the volumes":                    len(pod.Volumes) == len(c.VolumeMounts),
		"time to drain":                  cfg.DrainTimeout.D()+10*time.Second < time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second,
		"not root":                       *pod.SecurityContext.RunAsNonRoot && *pod.SecurityContext.RunAsUser == 65532,
		"a read-only file system":        *c.SecurityContext.ReadOnlyRootFilesystem && !*c.SecurityContext.AllowPrivilegeEscalation,
		"a disruption that is possible":  m.budget.Spec.MaxUnavailable.IntVal > 0 && *m.deployment.Spec.Replicas > 1,
		"the name of the proxy":          variable(c, "FENCEPOST_PROXY_ID").FieldRef != nil,
		"the control role's password":    variable(c, "FENCEPOST_CONTROL_PASSWORD").SecretKeyRef != nil && cfg.Control.Password == "",
	} {
		if !holds {
			t.Errorf("the manifests do not fit: %s", what)
		}
	}
	for _, e := range c.Env {
		if e.Value != "" {
			t.Errorf("the variable %s has a value in the manifest", e.Name)
		}
	}
	if byKubernetes := cfg.Election.Provider == "kubernetes"; byKubernetes != m.mayUseLeases() || byKubernetes != *pod.AutomountServiceAccountToken {
		t.Errorf("the manifests do not fit: the elector is %s, and may the pods use leases? %v", cfg.Election.Provider, m.mayUseLeases())
	}
	if m.network != nil && !admits(*m.network, labels, ports) {
		t.Error("the manifests do not fit: the network policy")
	}
}

// mayUseLeases reports whether the service account of the pods has the rights that the elector
// kubernetes needs, and no others.
func (m manifests) mayUseLeases() bool {
	if m.account == nil || m.role == nil || m.binding == nil || len(m.role.Rules) != 1 || len(m.binding.Subjects) != 1 {
		return false
	}
	rule, subject := m.role.Rules[0], m.binding.Subjects[0]
	return m.deployment.Spec.Template.Spec.ServiceAccountName == m.account.Name &&
		subject.Kind == "ServiceAccount" && subject.Name == m.account.Name &&
		m.binding.RoleRef.Kind == "Role" && m.binding.RoleRef.Name == m.role.Name && m.binding.Namespace == m.role.Namespace &&
		slices.Equal(rule.APIGroups, []string{"coordination.k8s.io"}) && slices.Equal(rule.Resources, []string{"leases"}) &&
		slices.Equal(rule.Verbs, []string{"get", "list", "watch", "create", "update"})
}

// admits reports whether a network policy is about pods with these labels, and admits some
// peers, but not all, to each of their ports.
func admits(n networking.NetworkPolicy, labels map[string]string, ports map[string]int32) bool {
	for _, rule := range n.Spec.Ingress {
		for _, p := range rule.Ports {
			if p.Port.Type != intstr.String || ports[p.Port.StrVal] == 0 || len(rule.From) == 0 {
				return false
			}
		}
	}
	return len(n.Spec.Ingress) == len(ports) && selects(n.Spec.PodSelector.MatchLabels, labels)
}

// variable returns where the value of a variable comes from.
func variable(c core.Container, name string) core.EnvVarSource {
	for _, e := range c.Env {
		if e.Name == name && e.ValueFrom != nil {
			return *e.ValueFrom
		}
	}
	return core.EnvVarSource{}
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
	valid := func(*config.Config, config.Fault) {}
	cfg, err := config.Load(path, nil, []config.Provider{{Name: "postgres", Validate: valid}, {Name: "consul", Validate: valid}, {Name: "kubernetes", Validate: valid}})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}
