package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/unpinged"
)

const (
	// readTimeout bounds a read of leases. After that, the watches get an error.
	readTimeout = 3 * time.Second
	// afterExpiry is how much later than it expires a lease is read, so that it has expired by then.
	afterExpiry = 5 * time.Millisecond
	// together is how far apart the expiries of leases may be that are read together.
	together = 10 * time.Millisecond
)

// watched is a lease that someone watches.
type watched struct {
	watches map[watch]struct{}
	asked   bool          // it is to be read at once
	due     time.Duration // otherwise: when
}

// watch is one call of Watch. It has the newest reading, if that is new. Its capacity is 1.
type watch chan reading

// reading is what a read of a lease has shown.
type reading struct {
	obs elector.Observation
	err error
	due time.Duration // when to read the lease again if no notification arrives
}

// subscribe makes the provider read a lease at once, and then whenever it may have changed.
func (p *Provider) subscribe(resource string) watch {
	w := make(watch, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	lease := p.mu.watched[resource]
	if lease == nil {
		lease = &watched{watches: map[watch]struct{}{}}
		p.mu.watched[resource] = lease
	}
	lease.watches[w], lease.asked = struct{}{}, true
	poke(p.asked)
	return w
}

func (p *Provider) unsubscribe(resource string, w watch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lease := p.mu.watched[resource]
	delete(lease.watches, w)
	if len(lease.watches) == 0 {
		delete(p.mu.watched, resource)
	}
}

// wake makes the provider read the lease of a resource if it is watched; "" means all resources.
func (p *Provider) wake(resource string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, lease := range p.mu.watched {
		lease.asked = lease.asked || resource == "" || resource == name
	}
	poke(p.asked)
}

// poke wakes the reader of a channel with capacity 1.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// readWatched reads the leases that are watched whenever they are due, all that are due in one
// statement, until ctx ends. There is one statement at a time; what becomes due meanwhile waits for it.
func (p *Provider) readWatched(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, wait := p.takeDue()
		if len(due) > 0 {
			p.readDue(ctx, due)
			continue
		}
		timer.Reset(wait)
		select {
		case <-p.asked:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// takeDue returns the leases that are due, with those who watch them now. If none is, it returns how long
// that will be so.
func (p *Provider) takeDue() (due map[string][]watch, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	due, wait = map[string][]watch{}, p.recheck
	for name, lease := range p.mu.watched {
		if !lease.asked && lease.due > now {
			wait = min(wait, lease.due-now)
			continue
		}
		lease.asked, lease.due = false, p.nextRead(now)
		due[name] = slices.Collect(maps.Keys(lease.watches))
	}
	return due, wait
}

// nextRead returns when leases are read for which nothing else is due: at the same time for all, so that
// they are read together.
func (p *Provider) nextRead(now time.Duration) time.Duration { return (now/p.recheck + 1) * p.recheck }

// readDue reads leases and notifies those who watch them. Who has begun to watch meanwhile needs a newer
// reading.
func (p *Provider) readDue(ctx context.Context, due map[string][]watch) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	all, err := p.read(ctx, slices.Collect(maps.Keys(due)))
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, watches := range due {
		next := all[name]
		if next.err = err; err == nil && p.mu.watched[name] != nil {
			p.mu.watched[name].due = next.due
		}
		for _, w := range watches {
			select {
			case <-w: // an older one
			default:
			}
			w <- next
		}
	}
}

// row is a lease as the database has it.
type row struct {
	resource, instanceID string
	incarnation          *string
	vacancy              string
	silent               time.Duration
	left                 time.Duration // until it expires by the clock of the database, and at most the TTL
	lastRenewal
}

// read reads leases, each once.
func (p *Provider) read(ctx context.Context, resources []string) (map[string]reading, error) {
	asked := p.now()
	var rows []row
	err := unpinged.Run(ctx, func(ctx context.Context) (err error) {
		rows, err = p.rows(ctx, resources)
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the leases: %w", err)
	case len(rows) == 0:
		return nil, errors.New(`the elector's instance id is missing (fencepost.lease_marker): run fencepost generation bump --database DATABASE`)
	}
	answered := p.now()
	all := make(map[string]reading, len(rows))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range rows {
		all[r.resource] = p.observedLocked(r, asked, answered)
	}
	return all, nil
}

// rows returns what the database has of leases.
func (p *Provider) rows(ctx context.Context, resources []string) ([]row, error) {
	rows, err := p.pool.Query(ctx, `SELECT r.resource, m.marker, coalesce(l.award, 0), coalesce(l.renewals, 0), l.incarnation, coalesce(l.vacancy, 'left'),
		coalesce(l.ttl, '0'), coalesce(least(l.expires_at - clock_timestamp(), l.ttl), '0'),
		coalesce(l.silent, '0')
		FROM unnest($1::text[]) r (resource) CROSS JOIN fencepost.lease_marker m
		LEFT JOIN fencepost.lease l ON l.resource = r.resource AND isfinite(l.expires_at)`, resources)
	if err != nil {
		return nil, err
	}
	var r row
	all := make([]row, 0, len(resources))
	_, err = pgx.ForEachRow(rows, []any{&r.resource, &r.instanceID, &r.award, &r.renewals, &r.incarnation, &r.vacancy, &r.ttl, &r.left, &r.silent}, func() error {
		all = append(all, r)
		return nil
	})
	return all, err
}

// observedLocked returns what a row shows that was read between these times. p.mu is held.
func (p *Provider) observedLocked(r row, asked, answered time.Duration) reading {
	next := reading{obs: elector.Observation{State: elector.Freed, Index: r.award, InstanceID: r.instanceID}, due: p.nextRead(answered)}
	if r.incarnation != nil {
		next.obs.Incarnation = *r.incarnation
	}
	switch r.vacancy {
	case "silence":
		next.obs.State, next.obs.Unconfirmed = elector.Unresponsive, r.silent
	case "held":
		left := min(r.left, p.unrenewedForLocked(r.resource, r.lastRenewal, asked, answered))
		if left <= 0 {
			next.obs.Unconfirmed = r.ttl
			return next
		}
		next.obs.State = elector.Held
		p.confirmLocked(r.resource, asked+left)
		expired := answered + left + afterExpiry
		next.due = min(next.due, (expired/together+1)*together)
		return next
	}
	delete(p.mu.seen, r.resource)
	return next
}

// unrenewedForLocked returns how much longer than asked the lease may go without renewal, by this process's
// clock. p.mu is held.
func (p *Provider) unrenewedForLocked(resource string, now lastRenewal, asked, answered time.Duration) time.Duration {
	known, ok := p.mu.seen[resource]
	if !ok || known.award != now.award || known.renewals != now.renewals {
		// The renewal may have been sent as late as just before the response.
		known = now
		known.since = answered
		p.mu.seen[resource] = known
	}
	return known.since + known.ttl - asked
}

func (p *Provider) confirmLocked(resource string, until time.Duration) {
	if known, ok := p.mu.seen[resource]; ok {
		known.until = until
		p.mu.seen[resource] = known
	}
}

// stale returns the award and the renewal counter of a lease that has not been renewed
// for a TTL, or nils.
func (p *Provider) stale(resource string) (award, renewals *int64) {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.mu.seen[resource]; ok && now-known.since >= known.ttl {
		return &known.award, &known.renewals
	}
	return nil, nil
}
