// Package postgres is the embedded lease service: a row per resource next to the fence,
// in the database that it protects. Nothing else has to run.
//
// A lease expires by the clock of the database. A candidate also acquires a lease whose
// renewal counter has not changed for a TTL by the candidate's own clock, so that a
// step of the database's clock blocks no one. NOTIFY wakes candidates; a timer does if
// a notification is lost, or is late because another transaction's commit holds up all
// notifications of the server. Leases are acquired and released without it.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/boottime"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/faults"
)

// Source is the name under which the provider's awards are recorded.
const Source = "postgres"

// DefaultRecheck is the default of Config.Recheck.
const DefaultRecheck = 2 * time.Second

// While the database cannot be reached, one connection retries LISTEN with these pauses
// on behalf of all watches. They wait for it, or for recheckDown.
const (
	minListenPause = 50 * time.Millisecond
	maxListenPause = 200 * time.Millisecond
	recheckDown    = 2 * time.Second
)

// errClosed is returned after Close.
var errClosed = errors.New("the elector is closed")

// Config is the configuration of a Provider.
type Config struct {
	// Pool connects to the database as the control role. The provider keeps one of its
	// connections to listen, and does not close the pool.
	Pool   *pgxpool.Pool
	Logger *zap.Logger
	// Now reads CLOCK_BOOTTIME. nil means boottime.Now.
	Now func() time.Duration
	// Recheck is how often a watched lease is read although nothing is due: how late a change
	// is noticed whose notification was lost, or could not be sent. 0 means DefaultRecheck.
	Recheck time.Duration
}

// Provider awards the leases of one database's resources.
type Provider struct {
	pool     *pgxpool.Pool
	log      *zap.Logger
	now      func() time.Duration
	recheck  time.Duration
	notifier *notifier
	renewer  *renewer
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	came     chan struct{} // cap 1; a watch has started
	asked    chan struct{} // cap 1; a lease is to be read at once

	mu struct {
		sync.Mutex
		watching int                    // calls of Watch
		looked   time.Duration          // when the last watch ended
		watched  map[string]*watched    // by resource; those that the reader reads
		down     chan struct{}          // not nil while notifications cannot be received; closed when they can again
		seen     map[string]lastRenewal // by resource
		notify   func(payload string)   // nil unless someone follows the notifications
	}
}

// lastRenewal is since when a held lease has not been renewed, by this process's clock.
type lastRenewal struct {
	award, renewals int64
	since           time.Duration
	ttl             time.Duration
	until           time.Duration // until when it is confirmed
}

var (
	_ elector.Provider = (*Provider)(nil)
	_ elector.Adopter  = (*Provider)(nil)
)

// New returns a provider that listens for changes while there are watches, until Close.
func New(cfg Config) (*Provider, error) {
	if cfg.Pool == nil {
		return nil, errors.New("postgres elector: Config.Pool is nil")
	}
	p := &Provider{
		pool: cfg.Pool, log: cfg.Logger, now: cfg.Now, came: make(chan struct{}, 1), asked: make(chan struct{}, 1),
		recheck: cmp.Or(cfg.Recheck, DefaultRecheck),
	}
	if p.log == nil {
		p.log = zap.NewNop()
	}
	if p.now == nil {
		p.now = boottime.Now
	}
	p.mu.watched = map[string]*watched{}
	p.mu.seen = map[string]lastRenewal{}
	p.notifier, p.renewer = newNotifier(p.pool, p.log), newRenewer(p.pool)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.wg.Add(1)
	go p.listen(ctx)
	p.wg.Go(func() { p.notifier.run(ctx) })
	p.wg.Go(func() { p.renewer.run(ctx) })
	p.wg.Go(func() { p.readWatched(ctx) })
	return p, nil
}

// Close implements elector.Provider.
func (p *Provider) Close() error {
	p.cancel()
	p.wg.Wait()
	return nil
}

// Source implements elector.Provider.
func (p *Provider) Source() string { return Source }

// Acquire implements elector.Provider.
func (p *Provider) Acquire(ctx context.Context, bid elector.AcquireRequest) (*elector.Lease, error) {
	var award *int64
	var instanceID *string
	staleAward, staleRenewals, err := p.mayTake(ctx, bid)
	if err != nil {
		return nil, fmt.Errorf("read the lease of resource %q: %w: %w", bid.Resource, elector.ErrNotSent, denied(err))
	}
	err = p.pool.QueryRow(ctx, "SELECT award, marker FROM fencepost.lease_take($1, $2, $3, $4, $5, $6)",
		bid.Resource, bid.Worker, bid.Incarnation, bid.TTL, staleAward, staleRenewals).Scan(&award, &instanceID)
	switch {
	case unsent(err):
		return nil, fmt.Errorf("acquire the lease of resource %q: %w: %w", bid.Resource, elector.ErrNotSent, denied(err))
	case err != nil:
		return nil, fmt.Errorf("acquire the lease of resource %q: %w", bid.Resource, standby(err))
	case award == nil || instanceID == nil:
		return nil, elector.ErrHeld
	}
	p.notifier.add(bid.Resource)
	return &elector.Lease{AcquireRequest: bid, InstanceID: *instanceID, Index: *award}, nil
}

// mayTake returns the award and the renewal counter of a held lease that the request may take: one
// that has not been renewed for a TTL, or that of bid.From. A renewal in the meantime, or another
// award, changes them, and then the request takes nothing. They are nil if there is none.
func (p *Provider) mayTake(ctx context.Context, bid elector.AcquireRequest) (award, renewals *int64, err error) {
	if bid.From == "" {
		award, renewals = p.stale(bid.Resource)
		return award, renewals, nil
	}
	err = p.pool.QueryRow(ctx, "SELECT l.award, l.renewals FROM fencepost.lease l WHERE l.resource = $1 AND l.incarnation = $2 AND l.vacancy = 'held'",
		bid.Resource, bid.From).Scan(&award, &renewals)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil, nil
	}
	return award, renewals, err
}

// unsent reports whether a statement failed before it was sent to the server.
func unsent(err error) bool {
	var connecting *pgconn.ConnectError
	return errors.As(err, &connecting) || pgconn.SafeToRetry(err)
}

// standby returns err, and says that the server is a standby if that is what it means: the
// connections set read-only mode themselves.
func standby(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "25006" {
		return fmt.Errorf("the server is a standby, where nobody can lead: %w", err)
	}
	return err
}

// denied returns err as an *elector.DeniedError if the server has refused the login of the
// control role.
func denied(err error) error {
	var connecting *pgconn.ConnectError
	var pg *pgconn.PgError
	if !errors.As(err, &connecting) || !errors.As(err, &pg) || !strings.HasPrefix(pg.Code, "28") {
		return err
	}
	return &elector.DeniedError{
		Kind: faults.ControlLogin, Answer: pg.Code + " " + pg.Message, Err: err,
		Remedy: "Make sure that the control role can log in: control.password (FENCEPOST_CONTROL_PASSWORD) and pg_hba.conf.",
	}
}

// Release implements elector.Provider.
func (p *Provider) Release(ctx context.Context, l *elector.Lease, why elector.Reason, silent time.Duration) error {
	var changed bool
	err := p.pool.QueryRow(ctx, "SELECT fencepost.lease_end($1, $2, $3, $4, $5)", l.Resource, l.Index, l.Incarnation, why.String(), silent).Scan(&changed)
	if err != nil {
		return fmt.Errorf("release the lease of resource %q: %w", l.Resource, standby(err))
	}
	if changed {
		p.notifier.add(l.Resource)
	}
	return nil
}

// Position returns which instance of the elector awards leases in the database of conn. Its awards
// are numbered next to the fence, above those that are recorded there.
func Position(ctx context.Context, conn querier) (elector.Position, error) {
	p := elector.Position{Source: Source, Index: math.MaxInt64}
	err := conn.QueryRow(ctx, "SELECT coalesce(max(m.marker), '') FROM fencepost.lease_marker m").Scan(&p.InstanceID)
	if err != nil {
		return p, fmt.Errorf("read the generation of the postgres elector: %w", err)
	}
	return p, nil
}

// BumpGeneration gives the elector a new instance id, whose awards are newer than all
// earlier ones.
func BumpGeneration(ctx context.Context, conn querier) (instanceID string, err error) {
	if err := conn.QueryRow(ctx, "SELECT fencepost.lease_bump()").Scan(&instanceID); err != nil {
		return "", fmt.Errorf("begin a new generation of the postgres elector: %w", err)
	}
	_ = notify(ctx, conn, "") // otherwise the proxies notice when they next look
	return instanceID, nil
}
