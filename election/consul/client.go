// Package consul awards leases by Consul: one session per award, and a lock on
// <prefix>/<database>/<resource>.
//
// # Order of awards
//
// The index of an award is the ModifyIndex of the lock's entry at its first
// acquire: it grows in one Consul's life, also when the key was deleted in
// between. (LockIndex does not: it begins anew with the key, and a plain PUT
// sets it to 0.) The marker <prefix>/.generation, read in the transaction that
// takes the lock, names the Consul's life.
//
// # Sessions
//
// Sessions have a TTL and no health checks: a check ties the lease to the
// agent's node, and an agent that blinks would take it away. Each award has a
// session of its own, so that a late unlock of an old term cannot free a new
// one. The names of sessions tell the proxy; a proxy that starts destroys those
// it finds of an earlier life of itself.
//
// # Rights
//
// With ACLs on, the token needs key:write below the prefix (which includes
// reading and listing) and session:write on the agent's node; session:read, to
// find its old sessions at start, may be missing.
package consul

import (
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
)

const (
	// Source is what the provider's awards are recorded under.
	Source = "consul"
	// DefaultPrefix is where the keys are.
	DefaultPrefix = "fencepost"
	// DefaultLockDelay is how long Consul keeps a lease closed whose session
	// was lost. The fence makes a longer one needless.
	DefaultLockDelay = time.Second
	// maxConns leaves room below Consul's limit of 200 connections per client
	// address, which counts renewals too.
	maxConns = 64
)

// Config is what New needs.
type Config struct {
	Address string // host:port; default 127.0.0.1:8500
	Scheme  string // http (default) or https
	Token   string
	// CAFile, CertFile, KeyFile and ServerName are for https.
	CAFile, CertFile, KeyFile, ServerName string

	Prefix string // of all keys; default DefaultPrefix
	// Proxy names this proxy. No two that run at once may have the same name:
	// a starting one destroys the sessions of its name.
	Proxy     string
	LockDelay time.Duration // default DefaultLockDelay
	Logger    *zap.Logger
}

// Client is one proxy's connection to Consul. Close ends it, after all
// Elections that use its providers.
type Client struct {
	api       *api.Client
	transport *http.Transport
	cfg       Config
	log       *zap.Logger
	cancel    context.CancelFunc
	ctx       context.Context // ends with Close
	wg        sync.WaitGroup

	start struct { // destroying the sessions of an earlier life
		sync.Mutex
		done bool
	}
	mu struct {
		sync.Mutex
		pending map[string]*attempt // by incarnation: awards that may have been made
	}
	seen observation
}

// New returns a client that watches the prefix until Close. It does not wait
// for Consul to be there.
func New(cfg Config) (*Client, error) {
	if cfg.Proxy == "" {
		return nil, errors.New("consul elector: the name of the proxy is missing")
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
		DisableCompression:  true, // answers are small, and the agent is near
	}
	client, err := api.NewClient(&api.Config{
		Address: cfg.Address, Scheme: cfg.Scheme, Token: cfg.Token, Transport: transport,
		TLSConfig: api.TLSConfig{Address: cfg.ServerName, CAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile},
	})
	if err != nil {
		return nil, fmt.Errorf("consul elector: %w", err)
	}
	c := &Client{api: client, transport: transport, cfg: cfg, log: cfg.Logger}
	c.mu.pending = map[string]*attempt{}
	c.seen.init()
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.wg.Add(1)
	go c.watch()
	return c, nil
}

// Close ends the watch and waits for what is under way. It releases nothing.
func (c *Client) Close() error {
	c.cancel()
	c.wg.Wait()
	c.transport.CloseIdleConnections()
	return nil
}

// Database returns the provider of one database's leases. Closing it does not
// close the client.
func (c *Client) Database(name string) *Provider { return &Provider{c: c, database: name} }

// Healthy returns why the prefix cannot be watched now, nil if it can.
func (c *Client) Healthy() error { return c.seen.failure() }

// BumpGeneration begins a new life of the lease service, whose awards are newer
// than all that were made before: the operator's way on after Consul was
// restored or rebuilt.
func (c *Client) BumpGeneration(ctx context.Context) (marker string, err error) {
	marker = newInstanceID()
	_, err = c.api.KV().Put(&api.KVPair{Key: c.instanceKey(), Value: []byte(marker)}, write(ctx))
	if err != nil {
		return "", fmt.Errorf("begin a new generation in consul: %w", err)
	}
	return marker, nil
}

// makeInstanceID makes the marker if there is none. Of two that try, one succeeds;
// both are content.
func (c *Client) makeInstanceID(ctx context.Context) (made bool, err error) {
	made, _, err = c.api.KV().CAS(&api.KVPair{Key: c.instanceKey(), Value: []byte(newInstanceID())}, write(ctx))
	if err != nil {
		return false, fmt.Errorf("make the generation marker: %w", err)
	}
	return made, nil
}

func (c *Client) sessionName() string { return "fencepost/" + c.cfg.Proxy }

// begin destroys, once, the sessions of an earlier life of this proxy. No
// session of this life can be among them: none is made before.
func (c *Client) begin(ctx context.Context) error {
	c.start.Lock()
	defer c.start.Unlock()
	if c.start.done {
		return nil
	}
	sessions, _, err := c.api.Session().List(read(ctx))
	switch {
	case isStatus(err, http.StatusForbidden):
		c.log.Warn("cannot look for sessions of an earlier life: the token lacks session:read", zap.Error(err))
	case err != nil:
		return fmt.Errorf("list sessions: %w", err)
	}
	for _, s := range sessions {
		if s.Name != c.sessionName() {
			continue
		}
		if _, err := c.api.Session().Destroy(s.ID, write(ctx)); err != nil {
			return fmt.Errorf("destroy a session of an earlier life: %w", err)
		}
		c.log.Info("destroyed a session of an earlier life", zap.String("session", s.ID))
	}
	c.start.done = true
	return nil
}

// dispose destroys a session that holds nothing, in the background. What is
// left of it ends with its TTL.
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

// read asks for an answer that a quorum stands behind.
func read(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

func write(ctx context.Context) *api.WriteOptions { return (&api.WriteOptions{}).WithContext(ctx) }

func isStatus(err error, code int) bool {
	var status api.StatusError
	return errors.As(err, &status) && status.Code == code
}

var _ election.Provider = (*Provider)(nil)
