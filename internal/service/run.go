package service

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/internal/admin"
)

// releaseTimeout is the default of Options.ReleaseTimeout.
const releaseTimeout = 5 * time.Second

// Run serves until ctx ends, or a new process has taken over, then drains, releases the leases and returns. The admin
// address is served until the end, or until a new process has it. A process that replaces another one serves when it is able to, and
// returns an error if it is not.
func (s *Server) Run(ctx context.Context) error {
	ctx, s.quit = context.WithCancel(ctx)
	defer s.quit()
	asking, stopAsking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAsking()
	var group errgroup.Group
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	group.Go(func() error { s.reloads(asking, hangups); return nil })
	group.Go(func() error { s.upstream.Run(asking); return nil })
	group.Go(func() error { s.health.Run(asking); return nil })
	group.Go(func() error { s.audit.table.Run(asking); return nil })
	var err error
	if s.options.Replaces != nil {
		err = s.takeOver(ctx)
	}
	serves := err == nil
	if serves {
		err = s.serve(ctx, asking, &group)
		s.log.Info("draining", zap.Stringer("for_at_most", s.current().DrainTimeout))
	} else {
		s.closeListeners()
	}
	s.draining.Store(true)
	err = errors.Join(err, s.drain(context.WithoutCancel(ctx)))
	stopAsking() // not before: the checks notice a database that was dropped, whose leases cannot be released
	err = errors.Join(err, group.Wait())
	err = errors.Join(err, s.leases.Close()) // when nobody uses the leases any more
	if serves {
		s.log.Info("ended", zap.NamedError("error", err))
	}
	return err
}

// serve accepts clients until they are to be drained. What it starts in group ends with asking.
func (s *Server) serve(ctx, asking context.Context, group *errgroup.Group) error {
	stopAdmin := func() {}
	if s.admin != nil {
		l := s.admin
		if s.adminTLS != nil {
			l = tls.NewListener(l, s.adminTLS.Config("http/1.1"))
		}
		administered, stop := context.WithCancel(asking)
		stopAdmin = stop
		group.Go(func() error { defer stop(); return s.newAdmin(asking).Serve(administered, l) })
	}
	fields := []zap.Field{zap.String("version", s.options.Version), zap.String("proxy", s.id), zap.Int("pid", os.Getpid()),
		zap.String("listen", joined(s.Addresses())), zap.String("upstream", strings.Join(s.upstream.Addresses(), ",")),
		zap.String("election", s.current().Election.Provider),
		zap.String("tls", s.current().TLS.Mode), zap.String("upstream_tls", s.current().Upstream.TLS.Mode)}
	if s.admin != nil {
		fields = append(fields, zap.Stringer("admin", s.admin.Addr()))
	}
	if c := s.current().Console; c.Password != "" { // which stands in front of a database of that name
		fields = append(fields, zap.String("console", c.Database))
	}
	s.log.Info("serving", fields...)
	accepting, stopAccepting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAccepting()
	group.Go(func() error { defer stopAccepting(); s.outlast(ctx, accepting); return nil })
	group.Go(func() error {
		s.upgrades(ctx, asking, func() { stopAdmin(); stopAccepting() })
		return nil
	})
	if before := s.options.Replaces; before == nil {
		tellSystemd(s.log, daemon.SdNotifyReady)
	} else {
		if err := before.Serving(s.takeSession); err != nil { // it has ended, so that nobody else serves
			s.log.Warn("the process that this one replaces does not know that it is replaced", zap.Error(err))
		}
		group.Go(func() error { s.awaitPredecessor(asking); return nil })
	}
	err := s.accept(accepting)
	s.draining.Store(true)
	if s.successor.Load() == nil {
		tellSystemd(s.log, daemon.SdNotifyStopping)
		return err
	}
	s.awaitStartups(ctx)
	s.awaitClients(ctx, 0)
	return err
}

// leftFor is for how long no client must have been connected before a shutdown_delay ends early: workers may be between two
// connections.
const leftFor = 3 * time.Second

// outlast returns when ctx has ended, and after it no client has been connected for leftFor or the shutdown_delay has
// passed, or when accepting has ended.
func (s *Server) outlast(ctx, accepting context.Context) {
	select {
	case <-ctx.Done():
	case <-accepting.Done():
		return
	}
	s.draining.Store(true)
	s.awaitClients(accepting, leftFor)
}

// awaitClients returns when no client has been connected for so long, when the shutdown_delay has passed, or when ctx has ended.
func (s *Server) awaitClients(ctx context.Context, left time.Duration) {
	delay := s.current().ShutdownDelay.D()
	if delay == 0 {
		return
	}
	s.log.Info("waiting for clients to leave before draining", zap.Int("clients", s.proxy.Clients()), zap.Duration("for_at_most", delay))
	over, tick := time.NewTimer(delay), time.NewTicker(100*time.Millisecond)
	defer over.Stop()
	defer tick.Stop()
	for last := time.Now(); s.proxy.Clients() > 0 || time.Since(last) < left; {
		if s.proxy.Clients() > 0 {
			last = time.Now()
		}
		select {
		case <-tick.C:
		case <-over.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// accept serves the workers of all listeners until ctx ends. If one of them fails, it closes
// the others too.
func (s *Server) accept(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, ln := range s.listeners {
		group.Go(func() error { return s.proxy.Serve(ctx, ln) })
	}
	return group.Wait()
}

// joined returns addresses with commas between them.
func joined(addresses []net.Addr) string {
	texts := make([]string, len(addresses))
	for i, a := range addresses {
		texts[i] = a.String()
	}
	return strings.Join(texts, ",")
}

// drain passes on or ends the sessions, and releases the leases.
func (s *Server) drain(ctx context.Context) error {
	draining, cancel := context.WithTimeout(ctx, s.current().DrainTimeout.D())
	defer cancel()
	shutdown := s.proxy.Shutdown
	if next := s.successor.Load(); next != nil {
		shutdown = func(ctx context.Context) error { return s.passOn(ctx, next) }
	}
	if err := shutdown(draining); err != nil {
		s.log.Warn("closing connections that are still busy")
	}
	s.proxy.Close()
	defer s.audit.close(ctx)() // which takes no longer than what follows
	releasing, cancelRelease := context.WithTimeout(ctx, s.options.ReleaseTimeout)
	defer cancelRelease()
	return s.elections.Close(releasing)
}

// newAdmin returns the server of the admin address, whose reloads end with ctx.
func (s *Server) newAdmin(ctx context.Context) *admin.Server {
	return &admin.Server{
		Proxy:       s.id,
		Resources:   s.resourcesNow,
		Connections: s.proxy.Connections,
		Ready:       s.readiness,
		Metrics:     s.metrics,
		Pprof:       s.current().Pprof,
		Log:         s.log.Named("admin"),
		Access: func() admin.Access {
			c := s.current().Admin
			return admin.Access{OpenReads: c.OpenReads, Token: c.Token, Certificates: c.TLS.ClientCAFile != ""}
		},
		EnforceMode: func(resource string) string { return s.current().Resources[resource].EnforceMode() },
		Configured:  func(resource string) bool { _, ok := s.current().Resources[resource]; return ok },
		StaleMode:   func(resource string) string { return s.current().Resources[resource].StaleMode() },
		FenceMode:   func(resource string) string { return s.current().Resources[resource].FenceMode() },
		Quit: func() {
			s.log.Info("asked to end at the admin address")
			s.quit()
		},
		WorkerTimeout: func(resource string) time.Duration {
			c := s.current()
			return c.LeaseFor(c.Resources[resource]).WorkerTimeout.D()
		},
		History:  s.history,
		Refusals: s.refusals,
		Process:  s.process(),
		Proxies:  s.records.Proxies,
		Reload:   func() (any, bool) { result := s.settings.Reload(ctx); return result, result.OK() },
	}
}

// tellSystemd tells systemd what the state of the process is, as sd_notify(3) defines it,
// if systemd started it as a service of Type=notify. It does nothing elsewhere.
func tellSystemd(log *zap.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("cannot tell systemd the state of the process", zap.String("state", state), zap.Error(err))
	}
}
