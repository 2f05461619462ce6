// Package anyone is the worst lease service possible: it awards the lease to everyone who asks, at
// once, and never says that a lease is over. As many workers as there are hold the lease at the same
// time, and none of them learns of another. Only the fence decides who writes.
//
// It exists to show and to test that nothing which Fencepost guarantees depends on the lease service.
// It is not a choice of election.provider: only fencepost-lab opens it (internal/imports has
// the rule).
package anyone

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost/fencepost/election/elector"
)

// Source is the name under which the provider's awards are recorded. It names their only instance
// too.
const Source = "anyone"

// Provider awards leases to anyone.
type Provider struct{ pool *pgxpool.Pool }

var _ elector.Provider = (*Provider)(nil)

// New returns a provider for one database. pool connects to it as the control role, and remains the
// caller's.
func New(pool *pgxpool.Pool) *Provider { return &Provider{pool} }

// Source implements elector.Provider.
func (p *Provider) Source() string { return Source }

// Close implements elector.Provider.
func (p *Provider) Close() error { return nil }

// Acquire implements elector.Provider. It never returns elector.ErrHeld. Each call is a new award,
// also for an incarnation that has one. The numbers come from the sequence of the embedded elector,
// because they have to grow for as long as the fence's database exists.
func (p *Provider) Acquire(ctx context.Context, bid elector.AcquireRequest) (*elector.Lease, error) {
	l := &elector.Lease{AcquireRequest: bid, InstanceID: Source}
	if err := p.pool.QueryRow(ctx, "SELECT pg_catalog.nextval('fencepost.lease_award')").Scan(&l.Index); err != nil {
		return nil, fmt.Errorf("number an award of resource %q: %w", bid.Resource, err)
	}
	return l, nil
}

// Renew implements elector.Provider. Every lease lasts for ever.
func (p *Provider) Renew(ctx context.Context, _ *elector.Lease) error { return ctx.Err() }

// Release implements elector.Provider.
func (p *Provider) Release(ctx context.Context, _ *elector.Lease, _ elector.Reason, _ time.Duration) error {
	return ctx.Err()
}

// Watch implements elector.Provider. Every lease is free, and nothing ever changes that.
func (p *Provider) Watch(ctx context.Context, _ string, seen elector.Observation) (elector.Observation, error) {
	free := elector.Observation{State: elector.Freed, InstanceID: Source}
	if seen != free {
		return free, ctx.Err()
	}
	<-ctx.Done()
	return elector.Observation{}, ctx.Err()
}
