// Package service is a proxy that serves: it wires the sessions, the elections, the fences and the admin address
// together, and says whether it is ready, reads its configuration again, and ends in order.
package service

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/election/token"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/handover"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/audit/auditlog"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/electors"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/service/health"
	"github.com/fencepost/fencepost/internal/service/hosts"
	"github.com/fencepost/fencepost/internal/service/recorded"
	"github.com/fencepost/fencepost/internal/service/reload"
	"github.com/fencepost/fencepost/internal/service/upgrade"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/upstream"
)

// Server is one proxy.
type Server struct {
	settings  reload.Reloader
	id        string
	log       *zap.Logger
	metrics   *admin.Metrics
	audit     auditing
	leases    electors.Service
	elections *election.Elections
	proxy     *proxy.Server
	tls       *pgtls.Clients // nil if clients are not offered TLS
	adminTLS  *pgtls.Clients // nil if the admin address is not under TLS
	upstream  *upstream.Servers
	listeners []net.Listener // for workers, in the order of the setting
	admin     net.Listener   // nil if disabled
	draining  atomic.Bool
	options   Options
	quit      context.CancelFunc                // ends what Run was given, as SIGTERM does
	successor atomic.Pointer[upgrade.Successor] // the process that has taken over, nil if none has

	faults  *faults.Register // what is wrong at present
	records *recorded.Reader // what the databases know of resources
	health  *health.Checker
	fences  databases            // the databases that were opened
	reached remembered[error]    // whether Postgres is reachable
	warned  remembered[[]string] // warnings about privileges in the databases
	reread  remembered[struct{}] // what databases know was read again
}

// Opener opens the lease service of the named proxy.
type Opener func(cfg config.Config, proxy string, log *zap.Logger) (electors.Service, error)

// Options are what a Server needs besides its configuration.
type Options struct {
	Version string // of the program
	Logs    Loggers
	Open    Opener
	// Load reads the configuration again.
	Load func() (config.Config, error)
	// Upgrades has a signal for each time that a new process is to take over; nil if none ever is. Replaces is the
	// process that this one takes over from; nil if there is none.
	Upgrades <-chan os.Signal
	Replaces *upgrade.Predecessor
	// ReleaseTimeout bounds the release of all leases at the end. 0 stands for 5 s. Leases that are not released expire
	// with their TTL.
	ReleaseTimeout time.Duration
}

// New listens and wires the packages together. Run must be called on the result.
func New(cfg config.Config, o Options) (_ *Server, err error) {
	log, logs := o.Logs.Log, o.Logs
	if o.Replaces != nil && isRaftNode(&cfg) {
		return nil, errRaftNode
	}
	o.ReleaseTimeout = cmp.Or(o.ReleaseTimeout, releaseTimeout)
	if err := warnOfFewDescriptors(log, cfg.Limits.MaxConnections); err != nil {
		return nil, err
	}
	s := &Server{options: o, log: log, metrics: admin.NewMetrics(), faults: faults.NewRegister(log.Named("faults"), 0), records: recorded.NewReader()}
	s.audit = s.newAuditing(logs)
	s.settings.Load = o.Load
	s.settings.Log, s.settings.Apply = log.Named("reload"), func(c *config.Config) { s.apply(c, logs) }
	s.settings.Start(cfg)
	if err := s.listen(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.closeListeners()
			if s.proxy != nil {
				s.proxy.Close()
			}
			if s.elections != nil {
				_ = s.elections.Close(context.Background()) // it has no lease to release
			}
		}
	}()
	if s.id, err = proxyID(cfg, s.listeners); err != nil {
		return nil, err
	}
	if err = s.newSides(cfg); err != nil {
		return nil, err
	}
	if s.elections, err = s.newElections(); err != nil {
		return nil, err
	}
	s.settings.Note, s.settings.Before = s.noteChange, s.readFilesAgain
	s.showMetrics()
	s.health = s.newHealth()
	s.proxy, err = proxy.NewServer(proxy.Config{
		Upstream:       s.upstream,
		ControlUser:    cfg.Control.User,
		TLS:            s.tls,
		TrustedProxies: cfg.ProxyProtocol.Trusted.Prefixes(),
		Console:        s.newConsole(),
		Candidates:     s.elections,
		Policy:         policy{s.current}.session,
		ProxyID:        s.id,

		CancelElsewhere: func(ctx context.Context, pid uint32, secret []byte) {
			ctx, stop := context.WithTimeout(ctx, cfg.StartupTimeout.D())
			defer stop()
			o.Replaces.Cancel(ctx, pid, secret)
		},
		StartupWait:    cfg.StartupWait.D(),
		StartupTimeout: cfg.StartupTimeout.D(),
		MaxConnections: cfg.Limits.MaxConnections,

		ResourcesPerConnection: func() int { return s.current().Limits.ResourcesPerConnection },
		LogConnections:         func() bool { return s.current().Log.Connections },

		Logger: log.Named("proxy"),
		// The metrics come first, so that whoever sees the line also sees the count.
		Auditors: []fencing.Auditor{s.metrics, auditlog.Recorders{s.audit.log, s.audit.table}},
		Metrics:  s.metrics,
	})
	if err != nil {
		return nil, err
	}
	// Last, because it may start to watch the lease service, or be a part of it.
	s.leases, err = o.Open(cfg, s.id, log)
	return s, err
}

// ID returns the name of this proxy.
func (s *Server) ID() string { return s.id }

// Addresses returns where workers connect.
func (s *Server) Addresses() []net.Addr {
	all := make([]net.Addr, len(s.listeners))
	for i, ln := range s.listeners {
		all[i] = ln.Addr()
	}
	return all
}

// AdminAddress returns the address of the admin server, nil if there is none.
func (s *Server) AdminAddress() net.Addr {
	if s.admin == nil {
		return nil
	}
	return s.admin.Addr()
}

// Resources returns the state of the elections of this proxy.
func (s *Server) Resources() []status.Resource { return s.elections.Resources() }

// Reload reads the configuration again, as SIGHUP does.
func (s *Server) Reload(ctx context.Context) reload.Result { return s.settings.Reload(ctx) }

// showMetrics adds the metrics that are read at each scrape.
func (s *Server) showMetrics() {
	s.metrics.Watch(s.resources)
	s.metrics.WatchFaults(s.faults.Active)
	s.metrics.WatchReady(s.readiness)
	s.metrics.WatchHosts(s.upstream.Statuses)
	s.metrics.WatchProcess(s.process())
}

// process is what is shown of the process itself.
func (s *Server) process() admin.Process {
	return admin.Process{
		Version: s.options.Version, Certificates: s.certificates, LastReload: s.settings.Last,
		Traffic: func() map[string]proxy.Traffic { return s.proxy.Traffic() }, // there may be no proxy yet
	}
}

// newElections connects the elections to the fence tables and to the lease service.
func (s *Server) newElections() (*election.Elections, error) {
	return election.New(election.Config{
		Open:             s.openDatabase,
		Idle:             s.current().Limits.ResourceIdle.D(),
		ResourcesPerUser: func() int { return s.current().Limits.ResourcesPerUser },
		Observe:          s.observe,
		Logger:           s.log.Named("election"),
		Settings:         policy{s.current}.election,
	})
}

// observe is called with every event of the elections.
func (s *Server) observe(e election.Event) {
	s.metrics.Observe(e)
	s.health.Observe(e)
}

// listener is a lease service that receives all that is sent on the channel by which proxies also notify each other of
// grants that wait.
type listener interface {
	FollowNotifications(ctx context.Context, heard func(payload string))
}

// openDatabase opens a database's fence and lease service when the first worker
// connects to that database.
func (s *Server) openDatabase(ctx context.Context, database string) (election.Backend, error) {
	db, err := hosts.Open(ctx, *s.current(), s.upstream, database, s.log, func(c *fence.Config) {
		c.Awaited = func(resource string, backends []fencing.Awaited) { s.metrics.Awaited(database, resource, backends) }
		c.Draining = func(d fencing.Drain) { s.elections.Draining(database, d) }
		c.PresenceID = rand.Text()[:16] // 80 bits
	})
	s.health.Examined(database, err)
	if err != nil {
		return election.Backend{}, err
	}
	s.fences.add(database, db.Store)
	closed := func() {
		s.fences.remove(database)
		db.Close()
	}
	orders := operator.New(db)
	backend := election.Backend{
		Fence:        newFences(db, database, s.current, s.log).open,
		Catalog:      db,
		FollowDrains: db.FollowDrains,
		Orders:       orders.Orders,
		Tokens:       token.New(db.Pool()),
		Fences:       db.Fences,
		InForce:      orders.InForce,
		Handovers:    handover.New(db.Pool(), s.id, db.PresenceID()),
		Presence:     db,
		CloseIdle:    db.CloseIdle,
		Close:        closed,
	}
	if s.current().Election.Provider != electors.Postgres.Name { // leases in the database itself are not confirmed while it is silent
		backend.Answers = db.Answers
	}
	if backend.Provider, err = s.leases.Database(database, db); err != nil {
		closed()
		return election.Backend{}, err
	}
	if leases, ok := backend.Provider.(listener); ok { // one connection listens for both
		backend.FollowDrains = func(ctx context.Context, told func(fencing.Drain)) error {
			leases.FollowNotifications(ctx, func(payload string) {
				if err := db.Drain(ctx, payload, told); err != nil && ctx.Err() == nil {
					s.log.Warn("cannot follow the grants of other proxies", zap.String("database", database), zap.Error(err))
				}
			})
			return context.Cause(ctx)
		}
	}
	return backend, nil
}

// proxyID returns the configured name, or the host's name and the first port, or the first
// socket's path if there is no port.
func proxyID(cfg config.Config, listeners []net.Listener) (string, error) {
	if cfg.Proxy.ID != "" {
		return cfg.Proxy.ID, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("determine this proxy's id (set proxy.id to choose one): %w", err)
	}
	for _, ln := range listeners {
		if tcp, ok := ln.Addr().(*net.TCPAddr); ok {
			return fmt.Sprintf("%s:%d", host, tcp.Port), nil
		}
	}
	return fmt.Sprintf("%s:%s", host, listeners[0].Addr()), nil
}
