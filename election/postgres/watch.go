package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election"
)

// Watch implements election.Provider.
func (p *Provider) Watch(ctx context.Context, resource string, seen election.LeaseObservation) (election.LeaseObservation, error) {
	wake := p.subscribe(resource)
	defer p.unsubscribe(resource, wake)
	if err := p.awaitUp(ctx); err != nil {
		return election.LeaseObservation{}, err
	}
	for {
		obs, due, err := p.poll(ctx, resource)
		if err != nil {
			return election.LeaseObservation{}, err
		}
		if obs != seen {
			return obs, nil
		}
		timer := time.NewTimer(due)
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return election.LeaseObservation{}, ctx.Err()
		}
	}
}

// Look reads a lease once. Unlike Watch it does not make the provider listen for changes.
func (p *Provider) Look(ctx context.Context, resource string) (election.LeaseObservation, error) {
	obs, _, err := p.poll(ctx, resource)
	return obs, err
}

// ConfirmedUntil returns until when a lease is confirmed that was last read as held, as a
// reading of CLOCK_BOOTTIME; 0 if it was not.
func (p *Provider) ConfirmedUntil(resource string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.seen[resource].until
}

// awaitUp waits while the database is known to be unreachable.
func (p *Provider) awaitUp(ctx context.Context) error {
	p.mu.Lock()
	down := p.mu.down
	p.mu.Unlock()
	if down == nil {
		return nil
	}
	timer := time.NewTimer(recheckDown)
	defer timer.Stop()
	select {
	case <-down:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// setDown records whether notifications can be received. It reports whether that has
// changed.
func (p *Provider) setDown(down bool) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case down && p.mu.down == nil:
		p.mu.down = make(chan struct{})
	case !down && p.mu.down != nil:
		close(p.mu.down)
		p.mu.down = nil
	default:
		return false
	}
	return true
}

// poll reads the lease, and returns when to read it again if no notification arrives.
func (p *Provider) poll(ctx context.Context, resource string) (election.LeaseObservation, time.Duration, error) {
	var (
		award, renewals     int64
		incarnation         *string
		vacancy, instanceID string
		ttl, left, silent   time.Duration
	)
	asked := p.now()
	err := p.pool.QueryRow(ctx, `SELECT m.marker, coalesce(l.award, 0), coalesce(l.renewals, 0), l.incarnation, coalesce(l.vacancy, 'left'),
		coalesce(l.ttl, '0'), coalesce(least(l.expires_at - clock_timestamp(), l.ttl), '0'),
		coalesce(l.silent, '0')
		FROM fencepost.lease_marker m LEFT JOIN fencepost.lease l ON l.resource = $1 AND isfinite(l.expires_at)`, resource).
		Scan(&instanceID, &award, &renewals, &incarnation, &vacancy, &ttl, &left, &silent)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return election.LeaseObservation{}, 0, errors.New(`the elector's instance id is missing (fencepost.lease_marker): run "fencepost generation bump --database"`)
	case err != nil:
		return election.LeaseObservation{}, 0, fmt.Errorf("read the lease of resource %q: %w", resource, err)
	}
	obs := election.LeaseObservation{State: election.Freed, Index: award, InstanceID: instanceID}
	if incarnation != nil {
		obs.Incarnation = *incarnation
	}
	switch vacancy {
	case "silence":
		obs.State, obs.Unconfirmed = election.Unresponsive, silent
	case "held":
		left = min(left, p.patience(resource, standstill{award: award, renewals: renewals, ttl: ttl}, asked))
		if left > 0 {
			obs.State = election.Held
			p.confirm(resource, asked+left)
			return obs, min(left+5*time.Millisecond, p.recheck), nil
		}
		obs.Unconfirmed = ttl
		return obs, p.recheck, nil
	}
	p.forget(resource)
	return obs, p.recheck, nil
}

// patience returns how much longer the lease may go without renewal, by this process's
// clock.
func (p *Provider) patience(resource string, now standstill, asked time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.mu.seen[resource]
	if !ok || known.award != now.award || known.renewals != now.renewals {
		// The renewal may have been sent as late as just before the response.
		known = now
		known.since = p.now()
		p.mu.seen[resource] = known
	}
	return known.since + known.ttl - asked
}

func (p *Provider) confirm(resource string, until time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.mu.seen[resource]; ok {
		known.until = until
		p.mu.seen[resource] = known
	}
}

func (p *Provider) forget(resource string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.seen, resource)
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

func (p *Provider) subscribe(resource string) chan struct{} {
	wake := make(chan struct{}, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.watches[resource] == nil {
		p.mu.watches[resource] = map[chan struct{}]struct{}{}
	}
	p.mu.watches[resource][wake] = struct{}{}
	select {
	case p.came <- struct{}{}:
	default:
	}
	return wake
}

func (p *Provider) unsubscribe(resource string, wake chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.watches[resource], wake)
	if len(p.mu.watches[resource]) == 0 {
		delete(p.mu.watches, resource)
	}
	p.mu.looked = p.now()
}

// watched reports whether somebody watches a lease, or has until a moment ago.
func (p *Provider) watched() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.watches) > 0 || p.now()-p.mu.looked < closeIdleAfter
}

// wake makes the watches of a resource read its lease again; "" means all resources.
func (p *Provider) wake(resource string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, watches := range p.mu.watches {
		if resource != "" && resource != name {
			continue
		}
		for ch := range watches {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}
}

// closeIdleAfter is how long there must be no watch before the provider stops
// listening, so that an unused database can be dropped. It is not zero, because a watch
// ends and starts again with everything that it observes.
const closeIdleAfter = time.Second

// listen receives notifications while somebody watches, until Close.
func (p *Provider) listen(ctx context.Context) {
	defer p.wg.Done()
	for {
		select {
		case <-p.came:
		case <-ctx.Done():
			return
		}
		if !p.watched() {
			continue // sent by a watch that has already ended
		}
		listening, stop := context.WithCancel(ctx)
		p.wg.Add(1)
		go p.stopAtRest(listening, stop)
		p.listenOn(listening)
		stop()
	}
}

// stopAtRest calls stop when nobody watches any more.
func (p *Provider) stopAtRest(ctx context.Context, stop context.CancelFunc) {
	defer p.wg.Done()
	defer stop()
	tick := time.NewTicker(closeIdleAfter / 2)
	defer tick.Stop()
	for p.watched() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// listenOn keeps a listening connection open until ctx ends.
func (p *Provider) listenOn(ctx context.Context) {
	defer p.setDown(false)
	pause := minListenPause
	for {
		heard, err := p.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if heard {
			pause = minListenPause
		}
		if p.setDown(true) {
			p.log.Warn("cannot listen for lease changes: retrying", zap.Error(err))
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		pause = min(2*pause, maxListenPause)
	}
}

// listenOnce returns when the connection fails; heard reports whether it had been
// listening.
func (p *Provider) listenOnce(ctx context.Context) (heard bool, err error) {
	pooled, err := p.pool.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	conn := pooled.Hijack() // the pool may open another connection in its place
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, "SELECT fencepost.lease_listen()"); err != nil {
		return false, fmt.Errorf("listen: %w", err)
	}
	if p.setDown(false) {
		p.log.Info("listening for lease changes again")
	}
	p.wake("") // earlier changes were not notified
	for {
		note, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true, fmt.Errorf("wait for a notification: %w", err)
		}
		p.wake(note.Payload)
	}
}
