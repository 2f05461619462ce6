package kv

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
)

// tries is how often a request that someone else's write has overtaken is tried again.
const tries = 5

// Provider awards the leases of one database's resources.
type Provider struct {
	c        *Client
	database string
}

var (
	_ elector.Provider = (*Provider)(nil)
	_ elector.Adopter  = (*Provider)(nil)
)

// attempt is the life of a request that asks for the lease, or has it. It belongs to at most
// one award.
type attempt struct {
	life   Life
	marker string // under which the lease was asked for
}

// lease returns the award of the attempt. version is that of its record.
func (a *attempt) lease(bid elector.AcquireRequest, version int64) *elector.Lease {
	l := &elector.Lease{AcquireRequest: bid, InstanceID: a.marker, Index: version, Handle: a.life.ID}
	if a.life.TTL != bid.TTL {
		l.Granted = a.life.TTL
	}
	return l
}

// Source implements elector.Provider.
func (p *Provider) Source() string { return p.c.cfg.Source }

// Close implements elector.Provider.
func (p *Provider) Close() error { return nil }

// Acquire implements elector.Provider.
func (p *Provider) Acquire(ctx context.Context, bid elector.AcquireRequest) (*elector.Lease, error) {
	key := keyOf(p.database, bid.Resource)
	for range tries {
		entry, err := p.c.store.Read(ctx, key)
		if err != nil {
			return nil, notSent(err)
		}
		lease, err := p.acquire(ctx, key, bid, entry)
		if !errors.Is(err, ErrConflict) {
			return lease, err
		}
	}
	return nil, elector.ErrHeld // others take it and leave it all the time
}

// notSent returns the error of an Acquire that asked for nothing yet.
func notSent(err error) error { return fmt.Errorf("%w: %w", elector.ErrNotSent, err) }

// acquire asks once for the lease under a key that holds this. It returns ErrConflict if the key
// must be read again.
func (p *Provider) acquire(ctx context.Context, key string, bid elector.AcquireRequest, entry Entry) (*elector.Lease, error) {
	if try := p.c.pending(bid.Incarnation); try != nil {
		if entry.Life == try.life.ID { // the answer of an earlier request was lost
			return p.confirm(ctx, key, bid, try, entry.Version)
		}
		if err := p.c.store.End(ctx, try.life.ID); err != nil {
			return nil, notSent(err)
		}
		p.c.attemptOver(bid.Incarnation, try.life.ID)
	}
	switch {
	case entry.Life != "" && (bid.From == "" || decode(entry.Record).Incarnation != bid.From):
		return nil, elector.ErrHeld
	case entry.Marker == "":
		if err := p.c.store.Mark(ctx, newMarker(), false); err != nil {
			return nil, notSent(err)
		}
		return nil, ErrConflict
	case !isMarker(entry.Marker):
		return nil, notSent(p.c.overwritten(entry.Marker))
	}
	life, err := p.c.store.Begin(ctx, bid.TTL)
	if err != nil {
		return nil, notSent(err)
	}
	try := &attempt{life: life, marker: entry.Marker}
	p.c.startAttempt(bid.Incarnation, try)
	version, err := p.c.store.Swap(ctx, key, entry, recordOf(bid, p.c.cfg.Proxy, time.Now()).encode(), life.ID)
	switch {
	case err == nil:
		if entry.Life != "" { // it was the life of bid.From, and holds nothing any more
			p.c.endInBackground(entry.Life)
		}
		return try.lease(bid, version), nil
	case errors.Is(err, ErrConflict), errors.Is(err, elector.ErrHeld):
		p.c.attemptOver(bid.Incarnation, life.ID)
		p.c.endInBackground(life.ID)
		return nil, err
	case errors.Is(err, elector.ErrLost): // the lease was given back meanwhile, or the request took long
		p.c.attemptOver(bid.Incarnation, life.ID)
		return nil, fmt.Errorf("%w: its life was over when it arrived", elector.ErrNotSent)
	}
	return nil, err
}

// confirm returns the award of an earlier request. Its life began with that request, and the
// lease is trusted from this one on.
func (p *Provider) confirm(ctx context.Context, key string, bid elector.AcquireRequest, try *attempt, version int64) (*elector.Lease, error) {
	err := p.c.store.Beat(ctx, key, try.life.ID)
	switch {
	case errors.Is(err, elector.ErrLost):
		return nil, ErrConflict
	case err != nil:
		return nil, err
	}
	return try.lease(bid, version), nil
}

// Renew implements elector.Provider.
func (p *Provider) Renew(ctx context.Context, l *elector.Lease) error {
	err := p.c.store.Beat(ctx, keyOf(p.database, l.Resource), l.Handle)
	if errors.Is(err, elector.ErrLost) {
		p.c.attemptOver(l.Incarnation, l.Handle)
		p.c.endInBackground(l.Handle) // it may continue, without the lease
	}
	return err
}

// Adopt implements elector.Adopter. A store that keeps what it knows of a life in memory knows only its own.
func (p *Provider) Adopt(ctx context.Context, l *elector.Lease) error {
	return p.c.store.Beat(ctx, keyOf(p.database, l.Resource), l.Handle)
}

// Release implements elector.Provider. It writes why the lease is free, and then ends the
// life, so that nothing that is still under way can take the lease. If the service denies the
// write, as one that is full does, the end of the life frees the lease all the same.
func (p *Provider) Release(ctx context.Context, l *elector.Lease, why elector.Reason, silent time.Duration) error {
	life := l.Handle
	if life == "" {
		try := p.c.pending(l.Incarnation)
		if try == nil {
			return nil
		}
		life = try.life.ID
	}
	err := p.vacate(ctx, l, life, why, silent)
	var denied *elector.DeniedError
	if err != nil && !errors.As(err, &denied) {
		return err
	}
	if ended := p.c.store.End(ctx, life); ended != nil {
		return errors.Join(err, ended)
	}
	p.c.attemptOver(l.Incarnation, life)
	if err != nil {
		p.c.log.Warn("lease released, but the reason is not recorded", zap.String("resource", l.Resource), zap.Error(err))
	}
	return nil
}

// vacate writes why a lease is free, if this life holds it, or if its candidacy was the last
// that held it and no longer keeps others from it.
func (p *Provider) vacate(ctx context.Context, l *elector.Lease, life string, why elector.Reason, silent time.Duration) error {
	key := keyOf(p.database, l.Resource)
	for range tries {
		entry, err := p.c.store.Read(ctx, key)
		if err != nil {
			return err
		}
		r := decode(entry.Record)
		left := why == elector.ReasonLeft && entry.Life == "" && r.State == stateSilent && r.Incarnation == l.Incarnation
		if entry.Life != life && !left {
			return nil
		}
		if _, err = p.c.store.Swap(ctx, key, entry, r.vacated(why, silent).encode(), ""); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("release %s: %w", key, ErrConflict)
}

// Watch implements elector.Provider. All watches of a proxy share one watch of the prefix.
func (p *Provider) Watch(ctx context.Context, resource string, seen elector.Observation) (elector.Observation, error) {
	key := keyOf(p.database, resource)
	for {
		obs, changed, err := p.c.seen.poll(key)
		switch {
		case err != nil:
			return elector.Observation{}, err
		case obs != seen && obs.State != elector.Unseen:
			return obs, nil
		}
		if err := p.c.await(ctx, changed); err != nil {
			return elector.Observation{}, err
		}
	}
}
