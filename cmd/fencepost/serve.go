package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/electors"
	"github.com/fencepost/fencepost/internal/service"
	"github.com/fencepost/fencepost/internal/service/upgrade"
)

const serveAbout = `
Usage: fencepost serve [--config FILE]

Runs the proxy until SIGTERM or SIGINT. It then waits for its clients to leave
(shutdown_delay), accepts no new connections, lets running transactions end
(drain_timeout), releases its leases and exits. A second
signal ends it at once; its leases then expire with their TTL. SIGHUP reloads the
configuration, as fencepost reload does. At SIGUSR2, a new process of the program file
takes the listening sockets over, and this one ends as at SIGTERM when the new one
serves; if that cannot serve, this one goes on.

Exit code 78: the command line or the configuration is wrong, so that a restart is of no
use.

Every setting can also be set by an environment variable: lease.ttl is
FENCEPOST_LEASE_TTL. etc/fencepost.yml is an annotated sample.`

func runServe(ctx context.Context, t terminal, args []string) (err error) {
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	path := fs.String("config", t.getenv("FENCEPOST_CONFIG"), "configuration `file`; by default only defaults and environment variables apply")
	if err := parseFlags(t, fs, serveAbout, args, 0); err != nil {
		return err
	}
	if err := refuseUnfenced(t); err != nil {
		return err
	}
	if t.getenv("GOGC") == "" {
		limitGarbage()
	}
	upgrades := make(chan os.Signal, 1)
	signal.Notify(upgrades, syscall.SIGUSR2) // before anything else: the signal must not end the process
	defer signal.Stop(upgrades)
	replaces, err := upgrade.Inherited()
	if err != nil {
		return err
	}
	defer func() { replaces.Failed(err) }()
	cfg, err := loadServed(*path, t.environ())
	if err != nil {
		return err
	}
	ctx, logs, closeLog, err := service.LogInBackground(ctx, cfg, t.stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeLog()) }()
	s, err := service.New(cfg, service.Options{
		Version: versionText(),
		Logs:    logs,
		Open:    unless(ctx, kinds.Serve),
		Load:    func() (config.Config, error) { return loadServed(*path, t.environ()) },

		Upgrades: upgrades, Replaces: replaces,
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// limitGarbage lets half as much garbage wait for its collection as Go does by default. Most of the memory belongs to
// idle connections, and logins leave garbage, while relaying leaves none. A small process does not collect more often
// for that.
var limitGarbage = sync.OnceFunc(func() {
	debug.SetGCPercent(50)
	unwritten = make([]byte, 16<<20)
})

// unwritten counts as memory in use when Go decides how much garbage there may be. It takes none, because nothing is
// written there.
var unwritten []byte

// refuseUnfenced refuses to serve in a build that fences nothing, except in tests.
func refuseUnfenced(t terminal) error {
	if !fencing.Checking && t.getenv("FENCEPOST_TEST_UNFENCED") != "1" {
		return errors.New("this build fences nothing (tag fencepost_unfenced): it is only for tests, which set FENCEPOST_TEST_UNFENCED=1")
	}
	return nil
}

// loadServed reads the configuration, and what it names in other files and is no
// certificate.
func loadServed(path string, environ []string) (config.Config, error) {
	cfg, err := loadConfig(path, environ)
	if err != nil {
		return cfg, err
	}
	if err := cfg.Admin.ReadToken(); err != nil {
		return cfg, usageError{err.Error()}
	}
	return cfg, nil
}

// unless returns an opener that returns when the context ends: one that waits for a disk that hangs must not
// keep a proxy from ending at the first signal.
func unless(ctx context.Context, open service.Opener) service.Opener {
	return func(cfg config.Config, proxy string, log *zap.Logger) (electors.Service, error) {
		type opened struct {
			leases electors.Service
			err    error
		}
		done := make(chan opened, 1)
		go func() { // which nobody waits for, since it may never end
			leases, err := open(cfg, proxy, log)
			done <- opened{leases, err}
		}()
		select {
		case o := <-done:
			return o.leases, o.err
		case <-ctx.Done():
			return nil, fmt.Errorf("asked to end while the lease service was opened: %w", context.Cause(ctx))
		}
	}
}
