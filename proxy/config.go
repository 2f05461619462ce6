package proxy

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/console"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/proxy/proxyheader"
	"github.com/fencepost/fencepost/upstream"
)

// Metrics receives what a Server counts. Its methods must not block.
type Metrics interface {
	// Sessions is called with +1 when a session begins, and with -1 when it ends.
	Sessions(delta int)
	// Refused is called for each connection that is refused before it is ready for its
	// first statement. The reason is one of refusals.Reasons.
	Refused(reason string)
	// Shadowed is called for each connection of a resource in shadow.
	Shadowed(database, resource string)
}

// Config is what a Server needs. Zero durations and limits mean the defaults
// named here.
type Config struct {
	// Upstream says which server clients are connected to.
	Upstream *upstream.Servers
	// ControlUser is the role of Fencepost's own connections. No client is let in as that role.
	ControlUser string
	// TLS configures TLS with clients; nil means that they are offered none. Clients on Unix
	// sockets are offered none either, and are admitted without it, and without a certificate.
	TLS *pgtls.Clients
	// TrustedProxies are the load balancers whose connections begin with a PROXY header, and
	// who thereby say what their clients' addresses are. Nil means that there are none.
	TrustedProxies proxyheader.Trusted
	// Console serves the clients that name its database; nil means that there is none.
	Console *console.Console
	// Candidates has the candidacies that sessions join.
	Candidates fencing.Candidates
	// Policy decides everything that depends on a session's user, database or resource;
	// nil means the zero SessionPolicy for every session.
	Policy Policy
	// CancelElsewhere, if not nil, is called with the key of a cancel request that is not the key of a client of this
	// proxy. It returns when it has done what it can.
	CancelElsewhere func(ctx context.Context, pid uint32, secret []byte)
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
	// WaitNotice is how often a client that waits to lead gets a notice of the reason: 10 s.
	WaitNotice time.Duration
	// DepartedWait bounds how long what a client has sent waits for the server after the
	// client has ended its output, while no byte moves: one minute.
	DepartedWait time.Duration
	// MaxConnections bounds the number of clients at one time: 10000.
	MaxConnections int
	// ResourcesPerConnection returns how many resources a client may choose on one connection,
	// in addition to that of its startup; 0 means any number, as does nil.
	ResourcesPerConnection func() int
	// LogConnections reports whether the begin and the end of each session are logged; nil means that they are not.
	LogConnections func() bool
	Logger         *zap.Logger
	Metrics        Metrics // may be nil
	// Auditors receive each refused statement, in this order. Close returns when they have
	// received all of them.
	Auditors []fencing.Auditor
}

func (c *Config) setDefaults() error {
	if c.Upstream == nil {
		return errors.New("proxy: no upstream")
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
	if c.DepartedWait == 0 {
		c.DepartedWait = time.Minute
	}
	if c.WaitNotice == 0 {
		c.WaitNotice = 10 * time.Second
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = 10000
	}
	if c.ResourcesPerConnection == nil {
		c.ResourcesPerConnection = func() int { return 0 }
	}
	if c.LogConnections == nil {
		c.LogConnections = func() bool { return false }
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

func (noMetrics) Sessions(int)            {}
func (noMetrics) Refused(string)          {}
func (noMetrics) Shadowed(string, string) {}
