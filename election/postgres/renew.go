package postgres

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/unpinged"
)

const (
	// gatherPause is how long a renewal waits for another one, to be sent with it. If there is one, they wait
	// for the next one, but none for longer than this share of its TTL.
	gatherPause = 25 * time.Millisecond
	gatherShare = 50
)

// RenewsTogether makes the candidacies of a proxy renew their leases at the same time, because that is one
// statement.
func (p *Provider) RenewsTogether() bool { return true }

// Renew implements elector.Provider.
func (p *Provider) Renew(ctx context.Context, l *elector.Lease) error {
	done, err := p.renewer.renew(ctx, l)
	if err == nil && !done {
		done, err = p.renewAlone(ctx, l)
	}
	switch {
	case err != nil:
		return fmt.Errorf("renew the lease of resource %q: %w", l.Resource, standby(denied(err)))
	case !done:
		return elector.ErrLost
	}
	return nil
}

// Adopt implements elector.Adopter.
func (p *Provider) Adopt(ctx context.Context, l *elector.Lease) error { return p.Renew(ctx, l) }

// renewAlone renews one lease. It waits for whoever has locked its row. It reports false if the term is
// over.
func (p *Provider) renewAlone(ctx context.Context, l *elector.Lease) (held bool, err error) {
	err = p.pool.QueryRow(ctx, "SELECT fencepost.lease_renew($1, $2, $3, $4)", l.Resource, l.Index, l.Incarnation, l.TTL).Scan(&held)
	return held, err
}

// renewer renews leases together: those whose renewals come within a moment, in one statement.
//
// A statement waits for no row: whoever cannot be renewed at once, because a row is locked or the term is
// over, is left out. So no lease waits for another one, and the statements of two proxies cannot block each
// other. Nor does a statement wait for the one before, which may hang.
type renewer struct {
	pool *pgxpool.Pool
	asks chan *renewal
	over chan struct{} // closed when nothing is renewed any more
}

// renewal is one lease that someone wants renewed, until ctx ends.
type renewal struct {
	ctx    context.Context
	lease  *elector.Lease
	answer chan outcome // cap 1
}

// outcome is the result of a renewal: whether the lease was renewed, if err is nil.
type outcome struct {
	done bool
	err  error
}

func newRenewer(pool *pgxpool.Pool) *renewer {
	return &renewer{pool: pool, asks: make(chan *renewal), over: make(chan struct{})}
}

// renew reports whether a lease was renewed. If it was not, and there is no error, either its term is over
// or its row is locked.
func (r *renewer) renew(ctx context.Context, l *elector.Lease) (done bool, err error) {
	one := &renewal{ctx: ctx, lease: l, answer: make(chan outcome, 1)}
	select {
	case r.asks <- one:
	case <-ctx.Done():
		return false, ctx.Err()
	case <-r.over:
		return false, errClosed
	}
	select {
	case got := <-one.answer:
		return got.done, got.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// run sends what is asked for, until ctx ends.
func (r *renewer) run(ctx context.Context) {
	var sent sync.WaitGroup
	defer sent.Wait()
	defer close(r.over)
	for {
		select {
		case first := <-r.asks:
			all := r.gather(ctx, first)
			sent.Go(func() { r.send(ctx, all) })
		case <-ctx.Done():
			return
		}
	}
}

// gather returns the renewals that come within a moment of each other.
func (r *renewer) gather(ctx context.Context, first *renewal) []*renewal {
	all := []*renewal{first}
	until := time.Now().Add(first.lease.TTL / gatherShare)
	timer := time.NewTimer(min(gatherPause, time.Until(until)))
	defer timer.Stop()
	for {
		select {
		case next := <-r.asks:
			all = append(all, next)
			if sooner := time.Now().Add(next.lease.TTL / gatherShare); sooner.Before(until) {
				until = sooner
			}
			timer.Reset(min(gatherPause, time.Until(until)))
		case <-timer.C:
			return all
		case <-ctx.Done():
			return all
		}
	}
}

// send renews leases in one statement, and answers all who wait. It gives up when no one does any more.
func (r *renewer) send(ctx context.Context, all []*renewal) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var waiting atomic.Int64
	waiting.Store(int64(len(all)))
	for _, one := range all {
		defer context.AfterFunc(one.ctx, func() {
			if waiting.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	var done []bool
	err := unpinged.Run(ctx, func(ctx context.Context) (err error) {
		done, err = r.renewAll(ctx, all)
		return err
	})
	for i, one := range all {
		one.answer <- outcome{done[i], err}
	}
}

// renewAll returns which of the leases it has renewed. The rows are locked in the order of their names, and
// none is waited for. What a crash loses only shortens a lease, so nothing waits for the disk.
func (r *renewer) renewAll(ctx context.Context, all []*renewal) (done []bool, err error) {
	done = make([]bool, len(all))
	resources, awards := make([]string, len(all)), make([]int64, len(all))
	incarnations, ttls := make([]string, len(all)), make([]time.Duration, len(all))
	for i, one := range all {
		resources[i], awards[i] = one.lease.Resource, one.lease.Index
		incarnations[i], ttls[i] = one.lease.Incarnation, one.lease.TTL
	}
	rows, err := r.pool.Query(ctx, `WITH free AS MATERIALIZED (
			SELECT t.i, l.resource, t.ttl, s.flushes
			FROM (SELECT set_config('synchronous_commit', 'off', true)) s (flushes)
			CROSS JOIN unnest($1::text[], $2::bigint[], $3::text[], $4::interval[]) WITH ORDINALITY t (resource, award, incarnation, ttl, i)
			JOIN fencepost.lease l ON l.resource = t.resource AND l.award = t.award AND l.incarnation = t.incarnation AND l.vacancy = 'held'
			ORDER BY l.resource FOR NO KEY UPDATE OF l SKIP LOCKED)
		UPDATE fencepost.lease l SET renewals = l.renewals + 1, ttl = free.ttl, expires_at = clock_timestamp() + free.ttl
		FROM free WHERE l.resource = free.resource RETURNING free.i`, resources, awards, incarnations, ttls)
	if err != nil {
		return done, err
	}
	var i int64
	_, err = pgx.ForEachRow(rows, []any{&i}, func() error { done[i-1] = true; return nil })
	return done, err
}
