package proxy

import (
	"errors"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

// Metrics is told what happens; its methods must not block.
type Metrics interface {
	// Sessions is called with +1 and -1.
	Sessions(delta int)
}

// Config is what a Server needs. Zero durations and limits mean the defaults
// named here.
type Config struct {
	// Upstream is the address of Postgres: host:port, or the path of a Unix
	// socket.
	Upstream string
	// UpstreamTLS is how Postgres is spoken to, nil for no TLS.
	UpstreamTLS *pgtls.Upstream
	// TLS is what clients are offered, nil for none.
	TLS        *pgtls.Clients
	Candidates fencing.Candidates
	// Policy decides all that depends on a session's user, database or resource; nil
	// means the default SessionPolicy for all.
	Policy Policy
	// ProxyID names this proxy, in worker ids (IdentityProxy) and audit lines.
	ProxyID string
	// StartupWait bounds how long connecting, or a write during a lapse of the
	// lease, waits for the lease: 2 s.
	StartupWait time.Duration
	// StartupTimeout bounds a startup, from the connection to the first
	// ReadyForQuery, whoever takes the time, but for the wait for the lease: 10 s.
	StartupTimeout time.Duration
	// DialTimeout bounds connecting to Postgres, TLS included: 5 s.
	DialTimeout time.Duration
	// MaxConnections bounds the clients at once: 10000.
	MaxConnections int
	Logger         *zap.Logger
	Metrics        Metrics // may be nil
	// Auditors are told of each refused statement, in this order. Close returns when
	// they were told of all.
	Auditors []fencing.Auditor
	// Observe returns who watches a session's traffic with the server. It is for
	// tests and for debugging; nil means nobody.
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
