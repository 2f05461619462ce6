package proxy

import (
	"errors"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

// Metrics receives what a Server counts. Its methods must not block.
type Metrics interface {
	// Sessions is called with +1 when a session begins, and with -1 when it ends.
	Sessions(delta int)
}

// Config is what a Server needs. Zero durations and limits mean the defaults
// named here.
type Config struct {
	// Upstream is the address of Postgres: host:port, or the path of a Unix
	// socket.
	Upstream string
	// UpstreamTLS configures TLS to Postgres; nil means no TLS.
	UpstreamTLS *pgtls.Upstream
	// TLS configures TLS with clients; nil means that they are offered none.
	TLS *pgtls.Clients
	// Candidates has the candidacies that sessions join.
	Candidates fencing.Candidates
	// Policy decides everything that depends on a session's user, database or resource;
	// nil means the zero SessionPolicy for every session.
	Policy Policy
	// ProxyID names this proxy, in worker ids (IdentityProxy) and audit lines.
	ProxyID string
	// StartupWait bounds how long connecting, or a write during a lapse of the
	// lease, waits for the lease: 2 s.
	StartupWait time.Duration
	// StartupTimeout bounds a startup, from the client's connection to the first
	// ReadyForQuery, without the time in which the client waits for the lease: 10 s.
	StartupTimeout time.Duration
	// DialTimeout bounds connecting to Postgres, including the TLS handshake: 5 s.
	DialTimeout time.Duration
	// MaxConnections bounds the number of clients at one time: 10000.
	MaxConnections int
	Logger         *zap.Logger
	Metrics        Metrics // may be nil
	// Auditors receive each refused statement, in this order. Close returns when they have
	// received all of them.
	Auditors []fencing.Auditor
	// Observe returns the observer of a session's traffic with the server. It is for tests
	// and for debugging; nil means that sessions are not observed.
	Observe func(Observed) Observer
}

func (c *Config) setDefaults() error {
	if c.Upstream == "" {
		return errors.New("proxy: no upstream address")
	}
	if c.UpstreamTLS != nil && strings.HasPrefix(c.Upstream, "/") {
		return errors.New("proxy: Postgres speaks no TLS on a Unix socket")
	}
	if c.Candidates == nil {
		return errors.New("proxy: no candidates")
	}
	if c.Policy == nil {
		c.Policy = func(fencing.JoinRequest) SessionPolicy { return SessionPolicy{} }
	}
	if c.StartupWait == 0 {
		c.StartupWait = 2 * time.Second
	}
	if c.StartupTimeout == 0 {
		c.StartupTimeout = 10 * time.Second
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 5 * time.Second
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = 10000
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	return nil
}

type noMetrics struct{}

func (noMetrics) Sessions(int) {}
