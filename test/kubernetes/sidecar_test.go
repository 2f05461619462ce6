package kubernetes

import (
	"errors"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fencepost/fencepost/internal/config"
)

// TestTheSidecarFitsItsWorker: etc/kubernetes-sidecar.yml has a native sidecar, which only its pod reaches, and which has
// the time to release its lease when the worker has ended. Fencepost accepts its settings.
func TestTheSidecarFitsItsWorker(t *testing.T) {
	t.Parallel()
	asJSON, err := yaml.YAMLToJSONStrict([]byte(read(t, "../../etc/kubernetes-sidecar.yml")))
	if err != nil {
		t.Fatal(err)
	}
	var deployment apps.Deployment
	unknown, err := json.UnmarshalStrict(asJSON, &deployment)
	if err := errors.Join(append(unknown, err)...); err != nil {
		t.Fatal(err)
	}
	pod := deployment.Spec.Template.Spec
	if len(pod.InitContainers) != 1 || len(pod.Containers) != 1 {
		t.Fatalf("%d init containers and %d containers", len(pod.InitContainers), len(pod.Containers))
	}
	sidecar, worker := pod.InitContainers[0], map[string]string{}
	for _, e := range pod.Containers[0].Env {
		worker[e.Name] = e.Value
	}
	var environ []string
	for _, e := range sidecar.Env {
		if e.Value != "" {
			environ = append(environ, e.Name+"="+e.Value)
		}
	}
	valid := func(*config.Config, config.Fault) {}
	cfg, err := config.Load("", environ, []config.Provider{{Name: "postgres", Validate: valid}})
	if err != nil {
		t.Fatal(err)
	}
	host, _, err := net.SplitHostPort(cfg.Admin.Address)
	if err != nil {
		t.Fatal(err)
	}
	for what, holds := range map[string]bool{
		"the selector":                selects(deployment.Spec.Selector.MatchLabels, deployment.Spec.Template.Labels),
		"a native sidecar":            sidecar.RestartPolicy != nil && *sidecar.RestartPolicy == core.ContainerRestartPolicyAlways,
		"the worker waits for it":     slices.Equal(sidecar.StartupProbe.Exec.Command, []string{"/usr/local/bin/fencepost", "status", "--ready"}),
		"the program of the image":    strings.Contains(read(t, "../../Dockerfile"), `ENTRYPOINT ["`+sidecar.StartupProbe.Exec.Command[0]+`"]`),
		"its command":                 slices.Equal(sidecar.Args, []string{"serve"}),
		"the worker's address":        cfg.Listen.String() == net.JoinHostPort(worker["PGHOST"], worker["PGPORT"]),
		"for the pod only":            net.ParseIP(worker["PGHOST"]).IsLoopback() && net.ParseIP(host).IsLoopback(),
		"one worker":                  cfg.Worker.Identity == "proxy",
		"a database":                  cfg.Control.ProbeDatabase == worker["PGDATABASE"],
		"time to drain":               cfg.ShutdownDelay == 0 && cfg.DrainTimeout.D()+10*time.Second < time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second,
		"not root":                    *sidecar.SecurityContext.RunAsNonRoot && *sidecar.SecurityContext.RunAsUser == 65532,
		"a read-only file system":     *sidecar.SecurityContext.ReadOnlyRootFilesystem && !*sidecar.SecurityContext.AllowPrivilegeEscalation,
		"the name of the proxy":       variable(sidecar, "FENCEPOST_PROXY_ID").FieldRef != nil,
		"the control role's password": variable(sidecar, "FENCEPOST_CONTROL_PASSWORD").SecretKeyRef != nil && cfg.Control.Password == "",
	} {
		if !holds {
			t.Errorf("the sidecar does not fit: %s", what)
		}
	}
	cmd := exec.Command(*fencepost, "doctor", "--json")
	cmd.Env = append(environ, "FENCEPOST_UPSTREAM_ADDRESS=127.0.0.1:1", "FENCEPOST_PROXY_ID=example", "FENCEPOST_CONTROL_PASSWORD=example")
	accepted(t, cmd)
}
