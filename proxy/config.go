package proxy

import (
	"errors"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

// UnfencedMode says what a connection without a resource may do.
type UnfencedMode uint8

const (
	// UnfencedReadOnly lets it read; its writes are refused. The default.
	UnfencedReadOnly UnfencedMode = iota
	// UnfencedAllow relays it without any check: for migrations.
	UnfencedAllow
	// UnfencedRefuse ends it at startup.
	UnfencedRefuse
)

// Identity says who the worker is on a connection that names none.
type Identity uint8

const (
	// IdentityConnection: each connection is a worker of its own.
	IdentityConnection Identity = iota
	// IdentityClientAddress: all connections from one address are one worker.
	IdentityClientAddress
	// IdentityProxy: all connections of this proxy are one worker (a sidecar).
	IdentityProxy
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
	// Unfenced gives the mode of a user's connections without a resource; nil
	// means UnfencedReadOnly for all.
	Unfenced func(user string) UnfencedMode
	Identity Identity
	// ProvenReads says for which resources a leader's single reads go unchecked
	// when they are proven harmless; nil means for none.
	ProvenReads func(database, resource string) bool
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
	if c.Unfenced == nil {
		c.Unfenced = func(string) UnfencedMode { return UnfencedReadOnly }
	}
	if c.ProvenReads == nil {
		c.ProvenReads = func(string, string) bool { return false }
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
