// Package postgres is the embedded lease service: a row per resource beside the
// fence, in the database that it protects. Nothing else has to run.
//
// A lease ends by the clock of the database. A candidate also takes a lease
// whose renewal counter stood still for a TTL of the candidate's own clock, so
// that a step of the database's clock blocks nobody. NOTIFY wakes candidates; a
// timer beside it does when a notification is lost.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election"
)

// Source is what the provider's awards are recorded under.
const Source = "postgres"

// recheck is how often a lease is looked at though nothing is due: the net
// under a lost notification.
const recheck = 5 * time.Second

// While the database cannot be reached, one connection tries to listen again
// after these pauses, on behalf of all watches: they wait for it, or for a
// recheckDown.
const (
	minListenPause = 50 * time.Millisecond
	maxListenPause = 200 * time.Millisecond
	recheckDown    = 2 * time.Second
)

// Config is what New needs.
type Config struct {
	// Pool connects to the database as the control role. It needs one free
	// connection beside those in use; the provider does not close it.
	Pool   *pgxpool.Pool
	Logger *zap.Logger
	// Now reads CLOCK_BOOTTIME. nil means election.Boottime.
	Now func() time.Duration
}

// Provider awards the leases of one database's resources.
type Provider struct {
	pool   *pgxpool.Pool
	log    *zap.Logger
	now    func() time.Duration
	cancel context.CancelFunc
	wg     sync.WaitGroup
	came   chan struct{} // cap 1; a watch has begun

	mu struct {
		sync.Mutex
		watches map[string]map[chan struct{}]struct{} // by resource
		looked  time.Duration                         // when the last one ended
		down    chan struct{}                         // not nil: nothing can be heard; closed when it can again
		seen    map[string]standstill                 // by resource
	}
}

// standstill is since when a held lease has not been renewed, by our own clock.
type standstill struct {
	award, renewals int64
	since           time.Duration
	ttl             time.Duration
}

var _ election.Provider = (*Provider)(nil)

// New returns a provider that listens for changes while there are watches, until
// Close.
func New(cfg Config) (*Provider, error) {
	if cfg.Pool == nil {
		return nil, errors.New("postgres elector: a pool is missing")
	}
	p := &Provider{pool: cfg.Pool, log: cfg.Logger, now: cfg.Now, came: make(chan struct{}, 1)}
	if p.log == nil {
		p.log = zap.NewNop()
	}
	if p.now == nil {
		p.now = election.Boottime
	}
	p.mu.watches = map[string]map[chan struct{}]struct{}{}
	p.mu.seen = map[string]standstill{}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.wg.Add(1)
	go p.listen(ctx)
	return p, nil
}

// Close implements election.Provider.
func (p *Provider) Close() error {
	p.cancel()
	p.wg.Wait()
	return nil
}

// Source implements election.Provider.
func (p *Provider) Source() string { return Source }

// Acquire implements election.Provider.
func (p *Provider) Acquire(ctx context.Context, bid election.AcquireRequest) (*election.Lease, error) {
	var award *int64
	var marker *string
	staleAward, staleRenewals := p.stale(bid.Resource)
	err := p.pool.QueryRow(ctx, "SELECT award, marker FROM fencepost.lease_acquire($1, $2, $3, $4, $5, $6)",
		bid.Resource, bid.Worker, bid.Incarnation, bid.TTL, staleAward, staleRenewals).Scan(&award, &marker)
	switch {
	case unsent(err):
		return nil, fmt.Errorf("ask for the lease of resource %q: %w: %w", bid.Resource, election.ErrNotSent, err)
	case err != nil:
		return nil, fmt.Errorf("ask for the lease of resource %q: %w", bid.Resource, err)
	case award == nil || marker == nil:
		return nil, election.ErrHeld
	}
	return &election.Lease{AcquireRequest: bid, InstanceID: *marker, Index: *award}, nil
}

// unsent reports that a statement failed before the server could hear of it.
func unsent(err error) bool {
	var connecting *pgconn.ConnectError
	return errors.As(err, &connecting) || pgconn.SafeToRetry(err)
}

// Renew implements election.Provider.
func (p *Provider) Renew(ctx context.Context, l *election.Lease) error {
	var held bool
	err := p.pool.QueryRow(ctx, "SELECT fencepost.lease_renew($1, $2, $3, $4)", l.Resource, l.Index, l.Incarnation, l.TTL).Scan(&held)
	switch {
	case err != nil:
		return fmt.Errorf("renew the lease of resource %q: %w", l.Resource, err)
	case !held:
		return election.ErrLost
	}
	return nil
}

// Release implements election.Provider.
func (p *Provider) Release(ctx context.Context, l *election.Lease, why election.Reason) error {
	_, err := p.pool.Exec(ctx, "SELECT fencepost.lease_release($1, $2, $3, $4)", l.Resource, l.Index, l.Incarnation, why.String())
	if err != nil {
		return fmt.Errorf("release the lease of resource %q: %w", l.Resource, err)
	}
	return nil
}

// BumpGeneration begins a new life of the elector, whose awards are newer than
// all that were made before.
func BumpGeneration(ctx context.Context, conn interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (marker string, err error) {
	if err := conn.QueryRow(ctx, "SELECT fencepost.lease_bump()").Scan(&marker); err != nil {
		return "", fmt.Errorf("begin a new generation of the postgres elector: %w", err)
	}
	return marker, nil
}
