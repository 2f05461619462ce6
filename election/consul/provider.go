package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fencepost/fencepost/election"
)

// Provider awards the leases of one database's resources.
type Provider struct {
	c        *Client
	database string
}

// attempt is a session that was created to acquire a lease, until it is known that it did
// not, or that the term is over. It can have at most one award: its value does not
// change, so the index of the entry remains that of the first acquire.
type attempt struct {
	session string
	value   []byte
	// lease is the award, nil while it is not known. A second Acquire returns it again,
	// because its caller may not have got the answer of the first.
	lease *election.Lease
}

// Source implements election.Provider.
func (p *Provider) Source() string { return Source }

// Close implements election.Provider.
func (p *Provider) Close() error { return nil }

// Acquire implements election.Provider.
func (p *Provider) Acquire(ctx context.Context, bid election.AcquireRequest) (*election.Lease, error) {
	key := p.c.key(p.database, bid.Resource)
	try, former, err := p.prepare(ctx, key, bid)
	switch {
	case errors.Is(err, election.ErrHeld):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", election.ErrNotSent, p.c.denied(err))
	case try.lease != nil:
		return try.lease, nil
	}
	lease, err := p.c.lock(ctx, key, bid, try, former)
	if err == nil && former != nil {
		p.c.dispose(former.Session)
	}
	return lease, p.c.denied(err)
}

// prepare tests whether the lease is free, and returns the session for the request,
// whose TTL has just been renewed. former is the entry of a lease that is to be taken away from
// bid.From, nil if it is free.
func (p *Provider) prepare(ctx context.Context, key string, bid election.AcquireRequest) (try *attempt, former *api.KVPair, err error) {
	if err := p.c.begin(ctx); err != nil {
		return nil, nil, err
	}
	pair, _, err := p.c.api.KV().Get(key, read(ctx))
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", key, err)
	}
	if held := observationOf(pair, ""); bid.From != "" && held.State == election.Held && held.Incarnation == bid.From {
		former = pair
	}
	try, err = p.session(ctx, bid, pair, former != nil)
	return try, former, err
}

// session returns the session for a request, whose TTL has just been renewed. pair is what stands
// under the key, nil if nothing does; takes says that its lease is to be taken away.
func (p *Provider) session(ctx context.Context, bid election.AcquireRequest, pair *api.KVPair, takes bool) (*attempt, error) {
	try := p.c.pending(bid)
	locked := pair != nil && pair.Session != "" && !takes
	holds := locked && try != nil && pair.Session == try.session
	if try != nil && try.lease != nil && !holds { // a session has one award, and this term is over
		p.c.settle(bid, try.session)
		p.c.dispose(try.session)
		try = nil
	}
	if locked && !holds {
		return nil, election.ErrHeld // do not create a session in vain
	}
	if try == nil {
		return p.c.attempt(ctx, bid)
	}
	switch err := p.c.renewSession(ctx, try.session); {
	case errors.Is(err, election.ErrLost):
		p.c.settle(bid, try.session)
		return p.c.attempt(ctx, bid)
	case err != nil:
		return nil, err
	}
	return try, nil
}

// pending returns the attempt of the request that is not known to be over, or nil.
func (c *Client) pending(bid election.AcquireRequest) *attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.pending[bid.Incarnation]
}

// settle removes the attempt of this session, which is over. The request may have a later
// one by now.
func (c *Client) settle(bid election.AcquireRequest, session string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if try := c.mu.pending[bid.Incarnation]; try != nil && try.session == session {
		delete(c.mu.pending, bid.Incarnation)
	}
	c.leases.Forget(session)
}

// awarded notes the award of an attempt, for a second Acquire.
func (c *Client) awarded(try *attempt, lease *election.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.pending[lease.Incarnation] == try {
		c.mu.pending[lease.Incarnation] = &attempt{session: try.session, value: try.value, lease: lease}
	}
}

// attempt creates a session.
func (c *Client) attempt(ctx context.Context, bid election.AcquireRequest) (*attempt, error) {
	session, _, err := c.api.Session().CreateNoChecks(&api.SessionEntry{
		Name: c.sessionName(), TTL: bid.TTL.String(), LockDelay: c.cfg.LockDelay, Behavior: api.SessionBehaviorRelease,
	}, write(ctx))
	if err != nil {
		return nil, fmt.Errorf("create a session: %w", err)
	}
	c.leases.Begin(session, bid.TTL)
	try := &attempt{session: session, value: c.encode(bid, false, 0)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.pending[bid.Incarnation] = try
	return try, nil
}

// lock reads the instance id and takes the lock in one transaction. If former is not nil, it first
// takes the lock from the session of that entry, provided that the entry is as it was.
func (c *Client) lock(ctx context.Context, key string, bid election.AcquireRequest, try *attempt, former *api.KVPair) (*election.Lease, error) {
	ops := api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVGet, Key: c.instanceKey()}}}
	if former != nil {
		ops = append(ops,
			&api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: former.ModifyIndex}},
			&api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVUnlock, Key: key, Session: former.Session, Value: former.Value}})
	}
	ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVLock, Key: key, Session: try.session, Value: try.value}})
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
		return nil, fmt.Errorf("%w: consul blocks it during the lock delay", election.ErrHeld) // the session is kept for the next attempt
	case strings.Contains(what, "lock is already held"):
		c.settle(bid, try.session)
		c.dispose(try.session)
		return nil, election.ErrHeld
	case strings.Contains(what, c.instanceKey()) && strings.Contains(what, "doesn't exist"):
		if _, err := c.makeInstanceID(ctx); err != nil {
			return nil, err
		}
		return c.lock(ctx, key, bid, try, former)
	}
	c.settle(bid, try.session) // the transaction was rolled back
	c.dispose(try.session)
	if former != nil && (strings.Contains(what, "failed to unlock") || strings.Contains(what, "check")) {
		return nil, election.ErrHeld // somebody else has taken or left it meanwhile
	}
	return nil, fmt.Errorf("lock %s: %s", key, what)
}

// locked reads the award from the transaction's results. Without permission to read the
// instance id, the lock may have been taken with an unknown order. The attempt then
// stays pending until it is released.
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
		return nil, fmt.Errorf("lock %s: consul does not return its entry or %s: the token lacks key:read", key, c.instanceKey())
	}
	c.awarded(try, lease)
	return lease, nil
}

func failure(errs api.TxnErrors) string {
	texts := make([]string, 0, len(errs))
	for _, err := range errs {
		texts = append(texts, err.What)
	}
	return strings.Join(texts, "; ")
}

// Renew implements election.Provider. A renewed session proves nothing about the lock,
// because Consul renews it even if the key was deleted. So Renew also does a consistent
// read.
func (p *Provider) Renew(ctx context.Context, l *election.Lease) error {
	err := p.c.leases.Renew(ctx, l.Handle,
		func(ctx context.Context) error { return p.c.denied(p.c.renewSession(ctx, l.Handle)) },
		func(ctx context.Context) error { return p.c.denied(p.confirm(ctx, l)) })
	if errors.Is(err, election.ErrLost) {
		p.c.settle(l.AcquireRequest, l.Handle)
	}
	return err
}

// confirm reads whether the session of a term holds the lock.
func (p *Provider) confirm(ctx context.Context, l *election.Lease) error {
	key := p.c.key(p.database, l.Resource)
	pair, _, err := p.c.api.KV().Get(key, read(ctx))
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", key, err)
	case pair == nil:
		return fmt.Errorf("%w: %s was deleted", election.ErrLost, key)
	case pair.Session != l.Handle:
		return fmt.Errorf("%w: %s is no longer locked by its session", election.ErrLost, key)
	}
	return nil
}

// renewSession returns ErrLost if Consul does not know the session.
func (c *Client) renewSession(ctx context.Context, session string) error {
	var sessions []*api.SessionEntry
	_, err := c.api.Raw().Write("/v1/session/renew/"+url.PathEscape(session), nil, &sessions, write(ctx))
	switch {
	case isStatus(err, http.StatusNotFound):
		return fmt.Errorf("%w: consul no longer knows the session", election.ErrLost)
	case err != nil:
		return fmt.Errorf("renew the session: %w", err)
	}
	return nil
}

// Release implements election.Provider. It unlocks the key, which starts no lock delay
// and frees no other session's lock, and then destroys the session.
func (p *Provider) Release(ctx context.Context, l *election.Lease, why election.Reason, silent time.Duration) error {
	session := l.Handle
	if session == "" {
		try := p.c.pending(l.AcquireRequest)
		if try == nil {
			return nil
		}
		session = try.session
	}
	key := p.c.key(p.database, l.Resource)
	unlock := &api.KVTxnOp{Verb: api.KVUnlock, Key: key, Session: session, Value: p.c.encode(l.AcquireRequest, true, silent)}
	if why == election.ReasonUnresponsive {
		unlock.Flags = flagUnresponsive
	}
	unlocked, _, _, err := p.c.api.Txn().Txn(api.TxnOps{{KV: unlock}}, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return p.c.denied(fmt.Errorf("unlock %s: %w", key, err))
	}
	if !unlocked && why == election.ReasonLeft {
		if err := p.clearUnresponsive(ctx, key, l.AcquireRequest); err != nil {
			return err
		}
	}
	if _, err := p.c.api.Session().Destroy(session, write(ctx)); err != nil {
		return p.c.denied(fmt.Errorf("destroy the session: %w", err))
	}
	p.c.settle(l.AcquireRequest, session)
	return nil
}

// clearUnresponsive makes a lease available to everybody that this candidacy released
// as unresponsive and that nobody has acquired since.
func (p *Provider) clearUnresponsive(ctx context.Context, key string, bid election.AcquireRequest) error {
	pair, _, err := p.c.api.KV().Get(key, read(ctx))
	if err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	obs := observationOf(pair, "")
	if obs.State != election.Unresponsive || obs.Incarnation != bid.Incarnation {
		return nil
	}
	pair.Flags = 0
	if _, _, err := p.c.api.KV().CAS(pair, write(ctx)); err != nil {
		return fmt.Errorf("mark %s as free: %w", key, err)
	}
	return nil
}

// Watch implements election.Provider. All watches of a proxy share one request to
// Consul.
func (p *Provider) Watch(ctx context.Context, resource string, seen election.LeaseObservation) (election.LeaseObservation, error) {
	key := p.c.key(p.database, resource)
	for {
		obs, changed, err := p.c.seen.poll(key)
		switch {
		case err != nil:
			return election.LeaseObservation{}, err
		case obs != seen && obs.State != election.Unseen:
			return obs, nil
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
