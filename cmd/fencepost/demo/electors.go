package demo

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
)

// leaseService is a lease service that the demo has started.
type leaseService struct {
	proc   *process
	what   string // what it is, and where
	config string // its part of Fencepost's configuration, below election
}

func (s *leaseService) stop() error { return s.proc.stop(syscall.SIGTERM) }

// Elections are the lease services that a demo can use. The first one needs no service.
var Elections = []string{"postgres", "consul", "etcd"}

// startElector starts the lease service that the options name; nil is the embedded one.
func startElector(ctx context.Context, dir string, o Options) (*leaseService, error) {
	switch o.Election {
	case "consul":
		return startConsul(ctx, dir, o.Consul)
	case "etcd":
		return startEtcd(ctx, dir, o.Etcd)
	}
	return nil, nil
}

// findProgram returns the path of the program of a lease service; program is what the user has
// given.
func findProgram(name, program string) (string, error) {
	candidates := []string{name, filepath.Join(".cache", name)}
	if program != "" {
		candidates = []string{program}
	}
	for _, candidate := range candidates {
		if path, err := exec.LookPath(candidate); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("%s program not found: add it to PATH, build it with make %s, or pass its path with --%s", name, name, name)
}
