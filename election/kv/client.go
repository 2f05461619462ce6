// Package kv is a lease service over anything that keeps records: what differs between such
// services is their Store. Packages consul, etcd, kubernetes, redis and zookeeper have one each.
//
// # Record and life
//
// Each lease has a record under <prefix>/<database>/<resource>, which says who has it or had it
// last, and why it is free. It stays for ever, and is only changed by comparing and swapping. An
// award is the Swap that writes the holder into the record and ties the record to a life, which
// the service ends by itself unless the holder's proxy keeps it alive. Each award has a life of
// its own, so that a late request of an old term cannot disturb a new one.
//
// A lease is held while the life that its record was written with continues. Whatever an operator
// does to the record, or to the life, frees the lease and never leaves it held by no one. The
// holder notices when it renews the lease, or at its deadline.
//
// # Order of awards
//
// The index of an award is the version of its record. A random marker, read in the step that
// awards the lease, identifies the instance of the service within which versions grow. It is
// lost with the state of the service, and comes back with an older one; nothing that a service
// itself calls its identity does both. If it comes back, the fence refuses the awards that
// repeat earlier indexes, until an operator begins a new generation.
//
// # Lost answers
//
// A second Acquire of a candidacy finds in the record whether the first has got the lease. A
// release ends the life of a request of unknown outcome: if the request arrives later, the
// service refuses it.
package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/faults"
)

// DefaultPrefix is the default prefix of all keys of a service.
const DefaultPrefix = "fencepost"

// Prefix returns a prefix without slashes at its ends, or the default if nothing is left.
func Prefix(prefix string) string { return cmp.Or(strings.Trim(prefix, "/"), DefaultPrefix) }

// disposeTimeout bounds the attempt to end a life that holds nothing. If it fails, the life
// expires.
const disposeTimeout = 2 * time.Second

// Config is the configuration of a Client.
type Config struct {
	Store Store // Client.Close closes it
	// Source is the name under which awards are recorded.
	Source string
	// Service names the service in errors, with its address: "etcd at 127.0.0.1:2379".
	Service string
	Proxy   string // this proxy's name, for people who read a record
	Logger  *zap.Logger
}

// Client is one proxy's use of a lease service. Close it after all Elections that use its
// providers.
type Client struct {
	store  Store
	cfg    Config
	log    *zap.Logger
	cancel context.CancelFunc
	ctx    context.Context // ends with Close
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		attempts map[string]*attempt // by incarnation: those that have a lease or may have one
	}
	seen    observation
	failing *faults.Series // of the watch
}

// New returns a client that watches the prefix until Close. It does not wait until the service
// is reachable.
func New(cfg Config) (*Client, error) {
	if cfg.Store == nil || cfg.Source == "" || cfg.Proxy == "" {
		return nil, errors.New("kv: Config.Store, Source or Proxy is missing")
	}
	cfg.Service, cfg.Logger = cmp.Or(cfg.Service, cfg.Source), cmp.Or(cfg.Logger, zap.NewNop())
	c := &Client{
		store: cfg.Store, cfg: cfg, log: cfg.Logger,
		failing: faults.NewSeries(cfg.Logger, "cannot watch leases in "+cfg.Source, 0),
	}
	c.mu.attempts = map[string]*attempt{}
	c.seen.changed = make(chan struct{})
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.wg.Go(c.watch)
	return c, nil
}

// Close stops the watch, waits for requests in progress, and closes the store. It releases no
// lease.
func (c *Client) Close() error {
	c.cancel()
	c.wg.Wait()
	return c.store.Close()
}

// Database returns the provider of one database's leases. Closing it does not close the
// client.
func (c *Client) Database(name string) *Provider { return &Provider{c: c, database: name} }

// Healthy returns why the prefix cannot be watched at the moment, or nil if it can.
func (c *Client) Healthy() error { return c.seen.failure() }

// BumpGeneration gives the lease service a new instance id, whose awards are newer than all
// earlier ones. An operator uses it after the service was restored or rebuilt.
func (c *Client) BumpGeneration(ctx context.Context) (instanceID string, err error) {
	instanceID = newMarker()
	if err := c.store.Mark(ctx, instanceID, true); err != nil {
		return "", fmt.Errorf("begin a new generation: %w", err)
	}
	return instanceID, nil
}

// Check tries what an election needs: it writes below the prefix, and begins a life with each
// TTL. It returns an *elector.DeniedError if the service denies some of it, and another error
// if the service does not answer.
func (c *Client) Check(ctx context.Context, ttls []time.Duration) error {
	if err := c.store.Mark(ctx, newMarker(), false); err != nil { // which writes nothing if there is one
		return err
	}
	if checker, ok := c.store.(Checker); ok {
		if err := checker.Check(ctx); err != nil {
			return err
		}
	}
	for _, ttl := range ttls {
		life, err := c.store.Begin(ctx, ttl)
		if err != nil {
			return err
		}
		c.endInBackground(life.ID)
		if life.TTL < ttl {
			return tooLong(ttl, life.TTL)
		}
	}
	return nil
}

// Position does what Check does, and returns how far the service has counted.
func (c *Client) Position(ctx context.Context, ttls []time.Duration) (elector.Position, error) {
	p := elector.Position{Source: c.cfg.Source}
	err := c.Check(ctx, ttls)
	if err == nil {
		p.InstanceID, p.Index, err = c.store.Position(ctx)
	}
	return p, err
}

// tooLong says that the service grants less than a TTL. That is safe, but the lease lapses
// sooner than the operator expects.
func tooLong(ttl, granted time.Duration) error {
	answer := fmt.Sprintf("granted %s instead of %s", granted, ttl)
	return &elector.DeniedError{
		Kind: faults.LeaseTTL, Answer: answer, Err: errors.New("the lease service has " + answer),
		Remedy: fmt.Sprintf("Set lease.ttl, and the ttl of each resource that has one, to %s or less, or let the service accept more.", granted),
	}
}

// pending returns the attempt of the incarnation that is not known to be over, or nil.
func (c *Client) pending(incarnation string) *attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.attempts[incarnation]
}

func (c *Client) startAttempt(incarnation string, try *attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.attempts[incarnation] = try
}

// attemptOver removes the attempt with this life, which is over. The incarnation may have a later
// one by now.
func (c *Client) attemptOver(incarnation, life string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if try := c.mu.attempts[incarnation]; try != nil && try.life.ID == life {
		delete(c.mu.attempts, incarnation)
	}
}

// endInBackground ends a life that holds nothing, in the background.
func (c *Client) endInBackground(life string) {
	c.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), disposeTimeout)
		defer cancel()
		if err := c.store.End(ctx, life); err != nil {
			c.log.Debug("cannot end a life that holds no lease", zap.Error(err))
		}
	})
}

// await waits for a change.
func (c *Client) await(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-c.ctx.Done():
		return c.closed()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Client) closed() error { return fmt.Errorf("the client of %s is closed", c.cfg.Source) }
