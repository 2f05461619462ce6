package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/fencepost/fencepost/election"
)

// Provider awards the leases of one database's resources.
type Provider struct {
	c        *Client
	database string
}

// attempt is a session made to take a lease, until it is known whether it did.
// It has taken nothing, or one award: the value does not change, so the index
// of its entry stays that of the first acquire.
type attempt struct {
	session string
	value   []byte
}

// Source implements election.Provider.
func (p *Provider) Source() string { return Source }

// Close implements election.Provider.
func (p *Provider) Close() error { return nil }

// Acquire implements election.Provider.
func (p *Provider) Acquire(ctx context.Context, bid election.AcquireRequest) (*election.Lease, error) {
	key := p.c.key(p.database, bid.Resource)
	try, err := p.prepare(ctx, key, bid)
	switch {
	case errors.Is(err, election.ErrHeld):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", election.ErrNotSent, err)
	}
	return p.c.lock(ctx, key, bid, try)
}

// prepare looks whether the lease is free, and gives the bid's session, whose TTL
// has just begun anew.
func (p *Provider) prepare(ctx context.Context, key string, bid election.AcquireRequest) (*attempt, error) {
	if err := p.c.begin(ctx); err != nil {
		return nil, err
	}
	try := p.c.pending(bid)
	pair, _, err := p.c.api.KV().Get(key, read(ctx))
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", key, err)
	}
	if pair != nil && pair.Session != "" && (try == nil || pair.Session != try.session) {
		return nil, election.ErrHeld // before a session was made for nothing
	}
	if try == nil {
		return p.c.attempt(ctx, bid)
	}
	switch err := p.c.renewSession(ctx, try.session); {
	case errors.Is(err, election.ErrLost):
		p.c.settle(bid)
		return p.c.attempt(ctx, bid)
	case err != nil:
		return nil, err
	}
	return try, nil
}

// pending returns the attempt of the bid that is not known to have failed.
func (c *Client) pending(bid election.AcquireRequest) *attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.pending[bid.Incarnation]
}

// settle forgets an attempt: it got the lease, or for certain did not.
func (c *Client) settle(bid election.AcquireRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.pending, bid.Incarnation)
}

// attempt makes a session.
func (c *Client) attempt(ctx context.Context, bid election.AcquireRequest) (*attempt, error) {
	session, _, err := c.api.Session().CreateNoChecks(&api.SessionEntry{
		Name: c.sessionName(), TTL: bid.TTL.String(), LockDelay: c.cfg.LockDelay, Behavior: api.SessionBehaviorRelease,
	}, write(ctx))
	if err != nil {
		return nil, fmt.Errorf("make a session: %w", err)
	}
	try := &attempt{session: session, value: c.encode(bid)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.pending[bid.Incarnation] = try
	return try, nil
}

// lock reads the marker and takes the lock in one transaction.
func (c *Client) lock(ctx context.Context, key string, bid election.AcquireRequest, try *attempt) (*election.Lease, error) {
	ops := api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVGet, Key: c.instanceKey()}},
		{KV: &api.KVTxnOp{Verb: api.KVLock, Key: key, Session: try.session, Value: try.value}},
	}
	ok, answer, _, err := c.api.Txn().Txn(ops, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", key, err)
	}
	if ok {
		return c.locked(key, bid, try, answer.Results)
	}
	what := failure(answer.Errors)
	switch {
	case strings.Contains(what, "due to lock delay"):
		return nil, fmt.Errorf("%w: consul keeps it closed for the lock-delay", election.ErrHeld) // the session waits for the next try
	case strings.Contains(what, "lock is already held"):
		c.settle(bid)
		c.dispose(try.session)
		return nil, election.ErrHeld
	case strings.Contains(what, c.instanceKey()) && strings.Contains(what, "doesn't exist"):
		if _, err := c.makeInstanceID(ctx); err != nil {
			return nil, err
		}
		return c.lock(ctx, key, bid, try)
	}
	c.settle(bid) // the transaction was rolled back
	c.dispose(try.session)
	return nil, fmt.Errorf("lock %s: %s", key, what)
}

// locked reads the award from the transaction's results. Without the right to
// read the marker the lock may be ours and its order unknown: the attempt stays
// pending until it is released.
func (c *Client) locked(key string, bid election.AcquireRequest, try *attempt, results api.TxnResults) (*election.Lease, error) {
	lease := &election.Lease{AcquireRequest: bid, Handle: try.session}
	for _, result := range results {
		switch {
		case result.KV == nil:
		case result.KV.Key == c.instanceKey():
			lease.InstanceID = string(result.KV.Value)
		case result.KV.Key == key && result.KV.Session == try.session:
			lease.Index = int64(result.KV.ModifyIndex)
		}
	}
	if lease.InstanceID == "" || lease.Index == 0 {
		return nil, fmt.Errorf("lock %s: consul does not show its entry or %s: the token lacks key:read", key, c.instanceKey())
	}
	c.settle(bid)
	return lease, nil
}

func failure(errs api.TxnErrors) string {
	texts := make([]string, 0, len(errs))
	for _, err := range errs {
		texts = append(texts, err.What)
	}
	return strings.Join(texts, "; ")
}

// Renew implements election.Provider. A renewed session proves nothing about
// the lock (Consul renews it also when the key was deleted), so a consistent
// read goes with it.
func (p *Provider) Renew(ctx context.Context, l *election.Lease) error {
	if err := p.c.renewSession(ctx, l.Handle); err != nil {
		return err
	}
	key := p.c.key(p.database, l.Resource)
	pair, _, err := p.c.api.KV().Get(key, read(ctx))
	switch {
	case err != nil:
		return fmt.Errorf("look at %s: %w", key, err)
	case pair == nil:
		return fmt.Errorf("%w: %s was deleted", election.ErrLost, key)
	case pair.Session != l.Handle:
		return fmt.Errorf("%w: %s is not locked by its session any more", election.ErrLost, key)
	}
	return nil
}

// renewSession returns ErrLost if Consul does not know the session.
func (c *Client) renewSession(ctx context.Context, session string) error {
	var sessions []*api.SessionEntry
	_, err := c.api.Raw().Write("/v1/session/renew/"+url.PathEscape(session), nil, &sessions, write(ctx))
	switch {
	case isStatus(err, http.StatusNotFound):
		return fmt.Errorf("%w: consul does not know the session any more", election.ErrLost)
	case err != nil:
		return fmt.Errorf("renew the session: %w", err)
	}
	return nil
}

// Release implements election.Provider: unlock (which begins no lock-delay, and
// frees nobody else's lock), then destroy.
func (p *Provider) Release(ctx context.Context, l *election.Lease, why election.Reason) error {
	session := l.Handle
	if session == "" {
		try := p.c.pending(l.AcquireRequest)
		if try == nil {
			return nil
		}
		session = try.session
	}
	key := p.c.key(p.database, l.Resource)
	unlock := &api.KVTxnOp{Verb: api.KVUnlock, Key: key, Session: session, Value: p.c.encode(l.AcquireRequest)}
	if why == election.ReasonUnresponsive {
		unlock.Flags = flagUnresponsive
	}
	unlocked, _, _, err := p.c.api.Txn().Txn(api.TxnOps{{KV: unlock}}, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("unlock %s: %w", key, err)
	}
	if !unlocked && why == election.ReasonLeft {
		if err := p.clearUnresponsive(ctx, key, l.AcquireRequest); err != nil {
			return err
		}
	}
	if _, err := p.c.api.Session().Destroy(session, write(ctx)); err != nil {
		return fmt.Errorf("destroy the session: %w", err)
	}
	p.c.settle(l.AcquireRequest)
	return nil
}

// clearUnresponsive turns a vacancy by silence that the bid's candidacy left, and that
// nobody has filled since, into one that anybody may fill.
func (p *Provider) clearUnresponsive(ctx context.Context, key string, bid election.AcquireRequest) error {
	pair, _, err := p.c.api.KV().Get(key, read(ctx))
	if err != nil {
		return fmt.Errorf("look at %s: %w", key, err)
	}
	sight := observationOf(pair, "")
	if sight.State != election.Unresponsive || sight.Incarnation != bid.Incarnation {
		return nil
	}
	pair.Flags = 0
	if _, _, err := p.c.api.KV().CAS(pair, write(ctx)); err != nil {
		return fmt.Errorf("mark %s as free: %w", key, err)
	}
	return nil
}

// Watch implements election.Provider. All watches of a proxy share one request
// to Consul.
func (p *Provider) Watch(ctx context.Context, resource string, seen election.LeaseObservation) (election.LeaseObservation, error) {
	key := p.c.key(p.database, resource)
	for {
		sight, changed, err := p.c.seen.poll(key)
		switch {
		case err != nil:
			return election.LeaseObservation{}, err
		case sight != seen && sight.State != election.Unseen:
			return sight, nil
		}
		select {
		case <-changed:
		case <-p.c.ctx.Done():
			return election.LeaseObservation{}, errors.New("the consul client is closed")
		case <-ctx.Done():
			return election.LeaseObservation{}, ctx.Err()
		}
	}
}
