package demo

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

// startConsul starts a dev agent, a single in-memory server. It allows sessions of one second,
// so that the demo does not have to wait for Consul's usual ten seconds.
func startConsul(ctx context.Context, dir string, o Options) (*leaseService, error) {
	program, err := findProgram("consul", "consul", o.Consul)
	if err != nil {
		return nil, err
	}
	address, err := scratch.FreeAddress()
	if err != nil {
		return nil, err
	}
	ports := []string{"dns = -1", "grpc = -1", "grpc_tls = -1", "http = " + scratch.Port(address)}
	for _, name := range []string{"serf_lan", "serf_wan", "server"} {
		other, err := scratch.FreeAddress()
		if err != nil {
			return nil, err
		}
		ports = append(ports, name+" = "+scratch.Port(other))
	}
	config := filepath.Join(dir, "consul.hcl")
	text := fmt.Sprintf("session_ttl_min = \"1s\"\ndisable_update_check = true\nports {\n  %s\n}\n", strings.Join(ports, "\n  "))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write Consul's configuration: %w", err)
	}
	cmd := exec.Command(program, "agent", "-dev", "-bind=127.0.0.1", "-client=127.0.0.1", "-config-file="+config)
	s := &leaseService{
		what:   "Consul, a dev agent at " + address,
		config: fmt.Sprintf("  consul:\n    address: %s\n", address),
	}
	return s.start(ctx, dir, "consul", cmd, func() error { return hasLeader(ctx, address) })
}

// hasLeader returns nil if the agent's one-server cluster has elected its leader.
func hasLeader(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/v1/status/leader", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1024))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || len(strings.Trim(string(body), "\"\n")) == 0 {
		return fmt.Errorf("Consul has no leader yet (%s)", resp.Status)
	}
	return nil
}
