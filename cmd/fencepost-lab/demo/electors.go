package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

// leaseService is a lease service that the demo has started.
type leaseService struct {
	proc    *scratch.Process
	what    string        // what it is, and where
	config  string        // its part of Fencepost's configuration, which begins below election
	address string        // of its interface for clients
	beneath *leaseService // in which it stores what it has; nil if it does that itself
}

// start starts its program, which is called name, in dir, and returns when it is ready.
func (s *leaseService) start(ctx context.Context, dir, name string, cmd *exec.Cmd, ready func() error) (*leaseService, error) {
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("create the log of %s: %w", name, err)
	}
	defer log.Close() // the child has its own
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	if s.proc, err = scratch.Start(name, cmd); err != nil {
		return nil, err
	}
	if err := scratch.WaitFor(ctx, s.proc, readyWithin, ready); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for %s: %w\n%s", name, err, scratch.Tail(log.Name(), 10)), s.proc.Stop(syscall.SIGKILL))
	}
	return s, nil
}

// readyWithin bounds the start of a lease service.
const readyWithin = 2 * time.Minute

// stop ends it. What it rests on ends afterwards, because it could not end in order without that.
func (s *leaseService) stop() error {
	err := s.proc.Stop(syscall.SIGTERM)
	if s.beneath != nil {
		err = errors.Join(err, s.beneath.stop())
	}
	return err
}

// Elections are the lease services that a demo can use. The first one needs no service.
var Elections = []string{"postgres", "consul", "etcd", "kubernetes", "raft", "redis", "zookeeper"}

// starters start the lease services that are not in the database.
var starters = map[string]func(ctx context.Context, dir string, o Options) (*leaseService, error){
	"consul": startConsul, "etcd": startEtcd, "kubernetes": startKubernetes, "raft": startRaft, "redis": startRedis, "zookeeper": startZooKeeper,
}

// startElector starts the lease service that the options name; nil is the embedded one.
func startElector(ctx context.Context, dir string, o Options) (*leaseService, error) {
	if start := starters[o.Election]; start != nil {
		return start(ctx, dir, o)
	}
	return nil, nil
}

// findProgram returns the path of the program of a lease service, which a target of make builds or installs; program is
// what the user has given.
func findProgram(name, target, program string) (string, error) {
	candidates := []string{name, filepath.Join(".cache", name)}
	if program != "" {
		candidates = []string{program}
	}
	for _, candidate := range candidates {
		if path, err := exec.LookPath(candidate); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("%s program not found: add it to PATH, build it with make %s, or pass its path with --%s", name, target, name)
}
