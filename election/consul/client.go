// Package consul implements the lease service with Consul: each award has a session
// that locks <prefix>/<database>/<resource>.
//
// # Order of awards
//
// The index of an award is the ModifyIndex of the lock's entry at its first acquire. It
// grows throughout the life of one Consul instance, even if the key is deleted in
// between. (LockIndex does not: it starts over with the key, and a plain PUT resets it
// to 0.) The value of <prefix>/.generation, read in the transaction that takes the
// lock, identifies the instance.
//
// # Sessions
//
// Sessions have a TTL and no health checks: a check would tie the lease to the agent's
// node, and a flapping agent would lose it. Each award has a session of its own, so
// that a late unlock of an old term cannot free a new one. A session's name contains
// the proxy's name; a proxy that starts destroys the sessions that it left when it last
// ran.
//
// # Permissions
//
// With ACLs enabled, the token needs key:write on the prefix (which includes reading
// and listing) and session:write on the agent's node. It can do without session:read,
// which is used to find old sessions at startup.
package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/renewal"
	"github.com/fencepost/fencepost/internal/faults"
)

const (
	// Source is the name under which the provider's awards are recorded.
	Source = "consul"
	// DefaultPrefix is the default prefix of all keys.
	DefaultPrefix = "fencepost"
	// DefaultLockDelay is how long Consul blocks a lease whose session was lost.
	// Because of the fence it need not be longer.
	DefaultLockDelay = time.Second
	// maxConns stays well below Consul's limit of 200 connections per client address,
	// which includes renewals.
	maxConns = 64
	// tries is how often each request of a renewal is sent. All go to the same agent, and the next
	// renewal repeats what it has not answered.
	tries = 1
)

// Config is the configuration of a Client.
type Config struct {
	Address string // host:port; default 127.0.0.1:8500
	Scheme  string // http (default) or https
	Token   string
	// CAFile, CertFile, KeyFile and ServerName apply to https.
	CAFile, CertFile, KeyFile, ServerName string

	Prefix string // of all keys; default DefaultPrefix
	// Proxy is this proxy's name. It must be unique among running proxies, because a
	// proxy that starts destroys the sessions under its name.
	Proxy     string
	LockDelay time.Duration // default DefaultLockDelay
	Logger    *zap.Logger
}

// Client is one proxy's connection to Consul. Close it after all Elections that use its
// providers.
type Client struct {
	api       *api.Client
	transport *http.Transport
	cfg       Config
	log       *zap.Logger
	leases    *renewal.Leases // by the id of the session
	cancel    context.CancelFunc
	ctx       context.Context // ends with Close
	wg        sync.WaitGroup

	start struct { // for destroying the sessions of an earlier run
		sync.Mutex
		done bool
	}
	mu struct {
		sync.Mutex
		pending map[string]*attempt // by incarnation: sessions that have a lease or may have one
	}
	seen    observation
	failing *faults.Series // of the watch
}

// New returns a client that watches the prefix until Close. It does not wait until
// Consul is reachable.
func New(cfg Config) (*Client, error) {
	if cfg.Proxy == "" {
		return nil, errors.New("consul elector: Config.Proxy is empty")
	}
	if cfg.Prefix = strings.Trim(cfg.Prefix, "/"); cfg.Prefix == "" {
		cfg.Prefix = DefaultPrefix
	}
	if cfg.LockDelay == 0 {
		cfg.LockDelay = DefaultLockDelay
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxConnsPerHost:     maxConns,
		MaxIdleConnsPerHost: 8,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true, // responses are small, and the agent is near
	}
	client, err := api.NewClient(&api.Config{
		Address: cfg.Address, Scheme: cfg.Scheme, Token: cfg.Token, Transport: transport,
		TLSConfig: api.TLSConfig{Address: cfg.ServerName, CAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile},
	})
	if err != nil {
		return nil, fmt.Errorf("consul elector: %w", err)
	}
	c := &Client{
		api: client, transport: transport, cfg: cfg, log: cfg.Logger,
		leases:  renewal.New(tries, election.Boottime),
		failing: faults.NewSeries(cfg.Logger, "cannot watch leases in consul", 0),
	}
	c.mu.pending = map[string]*attempt{}
	c.seen.init()
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.wg.Add(1)
	go c.watch()
	return c, nil
}

// Close stops the watch and waits for requests in progress. It releases no lease.
func (c *Client) Close() error {
	c.cancel()
	c.wg.Wait()
	c.transport.CloseIdleConnections()
	return nil
}

// Database returns the provider of one database's leases. Closing it does not
// close the client.
func (c *Client) Database(name string) *Provider { return &Provider{c: c, database: name} }

// Healthy returns why the prefix cannot be watched at the moment, or nil if it can.
func (c *Client) Healthy() error { return c.seen.failure() }

// BumpGeneration gives the lease service a new instance id, whose awards are newer than
// all earlier ones. An operator uses it after Consul was restored or rebuilt.
func (c *Client) BumpGeneration(ctx context.Context) (instanceID string, err error) {
	instanceID = newInstanceID()
	_, err = c.api.KV().Put(&api.KVPair{Key: c.instanceKey(), Value: []byte(instanceID)}, write(ctx))
	if err != nil {
		return "", fmt.Errorf("begin a new generation: %w", c.denied(err))
	}
	return instanceID, nil
}

// unanswered returns err with the address of Consul if Consul did not answer in time.
func (c *Client) unanswered(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("Consul at %s does not answer: %w", cmp.Or(c.cfg.Address, "127.0.0.1:8500"), err)
}

// makeInstanceID creates the instance id if there is none. If two proxies try, one
// succeeds, and both may go on.
func (c *Client) makeInstanceID(ctx context.Context) (made bool, err error) {
	made, _, err = c.api.KV().CAS(&api.KVPair{Key: c.instanceKey(), Value: []byte(newInstanceID())}, write(ctx))
	if err != nil {
		return false, fmt.Errorf("create the instance id: %w", err)
	}
	return made, nil
}

func (c *Client) sessionName() string { return "fencepost/" + c.cfg.Proxy }

// begin destroys the sessions of an earlier run of this proxy, once. None of the
// present run can be among them, because all are created later.
func (c *Client) begin(ctx context.Context) error {
	c.start.Lock()
	defer c.start.Unlock()
	if c.start.done {
		return nil
	}
	sessions, _, err := c.api.Session().List(read(ctx))
	switch {
	case isStatus(err, http.StatusForbidden):
		c.log.Warn("cannot list sessions of an earlier run: the token lacks session:read", zap.Error(err))
	case err != nil:
		return fmt.Errorf("list sessions: %w", err)
	}
	for _, s := range sessions {
		if s.Name != c.sessionName() {
			continue
		}
		if _, err := c.api.Session().Destroy(s.ID, write(ctx)); err != nil {
			return fmt.Errorf("destroy a session of an earlier run: %w", err)
		}
		c.log.Info("destroyed a session of an earlier run", zap.String("session", s.ID))
	}
	c.start.done = true
	return nil
}

// dispose destroys a session that holds nothing, in the background. If that fails, the
// session expires with its TTL.
func (c *Client) dispose(session string) {
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), 2*time.Second)
		defer cancel()
		if _, err := c.api.Session().Destroy(session, write(ctx)); err != nil {
			c.log.Debug("cannot destroy an unused session", zap.Error(err))
		}
	}()
}

// read requests a consistent read, confirmed by a quorum.
func read(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

func write(ctx context.Context) *api.WriteOptions { return (&api.WriteOptions{}).WithContext(ctx) }

func isStatus(err error, code int) bool {
	var status api.StatusError
	return errors.As(err, &status) && status.Code == code
}

var _ election.Provider = (*Provider)(nil)
