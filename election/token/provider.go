// Package token is the provider of resources whose workers are elected elsewhere: the
// application's own elector gives each leader a token that is higher than all before, and the
// worker brings it. There is no lease. The fence alone decides: an award is the token itself,
// and a grant refuses one that is lower than the recorded one.
//
// Tokens count within a generation. An operator begins another one if a token was too high by
// mistake, or if the elector has started to count from the beginning. The generations are those of the
// fence (fencepost.generations); the newest of the source "token" is in force.
package token

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

// recheck is how often a watch looks for a higher token that another proxy was brought.
const recheck = time.Second

// Provider awards to every candidacy the token that it brings.
type Provider struct{ pool *pgxpool.Pool }

var _ elector.TokenProvider = (*Provider)(nil)

// New returns a provider for one database. pool connects to it as the control role, and
// remains the caller's.
func New(pool *pgxpool.Pool) *Provider { return &Provider{pool} }

// Source implements elector.Provider.
func (p *Provider) Source() string { return fencing.SourceToken }

// Close implements elector.Provider.
func (p *Provider) Close() error { return nil }

// generation is one of tokens. The marker is its name in the fence, the number its place among
// all generations of all sources.
type generation struct {
	number int64
	marker string
}

const newest = "SELECT g.number, g.marker FROM fencepost.generations g WHERE g.source = $1 ORDER BY g.number DESC LIMIT 1"

// current returns the generation in force. The first one begins when it is asked for.
func (p *Provider) current(ctx context.Context) (g generation, err error) {
	err = p.pool.QueryRow(ctx, newest, fencing.SourceToken).Scan(&g.number, &g.marker)
	if errors.Is(err, pgx.ErrNoRows) {
		g.marker = "1" // the same for all proxies that find none
		err = p.pool.QueryRow(ctx, "SELECT fencepost.generation($1, $2)", fencing.SourceToken, g.marker).Scan(&g.number)
	}
	if err != nil {
		return g, fmt.Errorf("read the generation of tokens: %w", err)
	}
	return g, nil
}

// Generation implements elector.TokenProvider.
func (p *Provider) Generation(ctx context.Context) (int64, error) {
	g, err := p.current(ctx)
	return g.number, err
}

// Acquire implements elector.Provider. It returns ErrLost if the generation in which the
// candidacy began is over.
func (p *Provider) Acquire(ctx context.Context, bid elector.AcquireRequest) (*elector.Lease, error) {
	g, err := p.current(ctx)
	var connecting *pgconn.ConnectError
	switch {
	case errors.As(err, &connecting):
		return nil, fmt.Errorf("%w: %w", elector.ErrNotSent, err)
	case err != nil:
		return nil, err
	case bid.Incarnation != fencing.TokenIncarnation(g.number, bid.Token):
		return nil, elector.ErrLost
	}
	return &elector.Lease{AcquireRequest: bid, InstanceID: g.marker, Index: bid.Token}, nil
}

// Renew implements elector.Provider: a token counts for as long as its generation.
func (p *Provider) Renew(ctx context.Context, l *elector.Lease) error {
	g, err := p.current(ctx)
	if err != nil {
		return err
	}
	if l.Incarnation != fencing.TokenIncarnation(g.number, l.Token) {
		return elector.ErrLost
	}
	return nil
}

// Release implements elector.Provider. There is nothing to release: who may lead next is
// decided elsewhere.
func (p *Provider) Release(ctx context.Context, _ *elector.Lease, _ elector.Reason, _ time.Duration) error {
	return ctx.Err()
}

// Watch implements elector.Provider. A resource counts as held by whoever brought the highest
// token of the generation, whether or not that worker is connected.
func (p *Provider) Watch(ctx context.Context, resource string, seen elector.Observation) (elector.Observation, error) {
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for {
		obs, err := p.Look(ctx, resource)
		if err != nil || obs != seen {
			return obs, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return elector.Observation{}, ctx.Err()
		}
	}
}

// Look reads once what Watch waits for.
func (p *Provider) Look(ctx context.Context, resource string) (elector.Observation, error) {
	g, err := p.current(ctx)
	if err != nil {
		return elector.Observation{}, err
	}
	obs := elector.Observation{State: elector.Freed, InstanceID: g.marker}
	var incarnation string
	var index int64
	err = p.pool.QueryRow(ctx, "SELECT coalesce(f.incarnation, ''), f.source_index FROM fencepost.fence f WHERE f.resource = $1 AND f.source = $2 AND f.source_generation = $3 AND f.incarnation IS NOT NULL",
		resource, fencing.SourceToken, g.number).Scan(&incarnation, &index)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return obs, nil
	case err != nil:
		return elector.Observation{}, fmt.Errorf("read the token of resource %q: %w", resource, err)
	}
	obs.State, obs.Incarnation, obs.Index = elector.Held, incarnation, index
	return obs, nil
}

// BumpGeneration begins another generation, in which every token counts as higher than all
// those before, and returns its number.
func BumpGeneration(ctx context.Context, conn interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (number int64, err error) {
	err = conn.QueryRow(ctx, "SELECT fencepost.generation($1, pg_catalog.gen_random_uuid()::text)", fencing.SourceToken).Scan(&number)
	if err != nil {
		return 0, fmt.Errorf("begin a new generation of tokens: %w", err)
	}
	return number, nil
}
