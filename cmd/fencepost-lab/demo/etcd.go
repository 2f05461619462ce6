package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

// startEtcd starts a cluster of one member.
func startEtcd(ctx context.Context, dir string, o Options) (*leaseService, error) {
	program, err := findProgram("etcd", o.Etcd)
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
	log, err := os.Create(filepath.Join(dir, "etcd.log"))
	if err != nil {
		return nil, fmt.Errorf("create etcd's log: %w", err)
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(program, "--name=demo", "--data-dir="+filepath.Join(dir, "etcd"), "--log-level=warn",
		"--listen-client-urls=http://"+address, "--advertise-client-urls=http://"+address,
		"--listen-peer-urls=http://"+peer, "--initial-advertise-peer-urls=http://"+peer, "--initial-cluster=demo=http://"+peer)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	s := &leaseService{
		what:   "etcd, one member at " + address,
		config: fmt.Sprintf("  etcd:\n    endpoints: %s\n", address), address: address,
	}
	if s.proc, err = scratch.Start("etcd", cmd); err != nil {
		return nil, err
	}
	if err := scratch.WaitFor(ctx, s.proc, 60*time.Second, func() error { return isHealthy(ctx, address) }); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for etcd: %w\n%s", err, scratch.Tail(log.Name(), 10)), s.stop())
	}
	return s, nil
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
