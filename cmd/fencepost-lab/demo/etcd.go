package demo

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

// startEtcd starts a cluster of one member.
func startEtcd(ctx context.Context, dir string, o Options) (*leaseService, error) {
	program, err := findProgram("etcd", "etcd", o.Etcd)
	if err != nil {
		return nil, err
	}
	address, err := scratch.FreeAddress()
	if err != nil {
		return nil, err
	}
	peer, err := scratch.FreeAddress()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, "--name=demo", "--data-dir="+filepath.Join(dir, "etcd"), "--log-level=warn",
		"--listen-client-urls=http://"+address, "--advertise-client-urls=http://"+address,
		"--listen-peer-urls=http://"+peer, "--initial-advertise-peer-urls=http://"+peer, "--initial-cluster=demo=http://"+peer)
	s := &leaseService{
		what:   "etcd, one member at " + address,
		config: fmt.Sprintf("  etcd:\n    endpoints: %s\n", address), address: address,
	}
	return s.start(ctx, dir, "etcd", cmd, func() error { return isHealthy(ctx, address) })
}

// isHealthy returns nil if the member says that it can serve.
func isHealthy(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/health", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd is not ready: %s", resp.Status)
	}
	return nil
}
