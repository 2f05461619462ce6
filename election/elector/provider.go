// Package elector is what the elections ask of a lease service: the interface Provider, the leases that it awards, and
// its errors. Each directory next to it has one provider; "Order of awards, per provider" in package election says what
// the index of an award must promise.
package elector

import (
	"context"
	"errors"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
)

var (
	// ErrHeld means that Acquire changed nothing because another candidacy holds the
	// lease, or because the lease service blocks it for a while after its last holder
	// was lost.
	ErrHeld = errors.New("the lease is held by another candidacy")
	// ErrLost means that a term is definitely over: the lease service no longer knows
	// it, or shows another holder. After any other error of a Provider the outcome is
	// unknown.
	ErrLost = errors.New("the lease is lost")
	// ErrNotSent means that Acquire failed before it sent a request to the lease
	// service. The outcome is known: nothing was awarded.
	ErrNotSent = errors.New("the request was not sent")
)

// DeniedError means that the lease service has answered, and denies Fencepost what it asked
// for, so that only an operator can help. Provider methods return it, or wrap it.
type DeniedError struct {
	Kind   faults.Kind // LeaseDenied, LeaseTTL or ControlLogin
	Answer string      // of the lease service; "" if Fencepost denies it itself, as Err says
	Remedy string      // what an operator can do
	Err    error
}

func (e *DeniedError) Error() string { return e.Err.Error() }

// Unwrap returns the error that the lease service's answer was.
func (e *DeniedError) Unwrap() error { return e.Err }

// LimitedError means that the lease service has refused a request, or can do less than it should, because
// of a limit of its own, such as a full disk. Unlike after a DeniedError, the same request may succeed later.
type LimitedError struct {
	Remedy string // what an operator can do
	Err    error
}

func (e *LimitedError) Error() string { return e.Err.Error() }

// Unwrap returns the error that the lease service's answer was.
func (e *LimitedError) Unwrap() error { return e.Err }

// RemedyOf returns what an operator can do about an error of a Provider that is no DeniedError, or otherwise
// if the error does not say that.
func RemedyOf(err error, otherwise string) string {
	var limited *LimitedError
	if errors.As(err, &limited) {
		return limited.Remedy
	}
	return otherwise
}

// Provider is one lease service, as seen from one database: resources of the same name
// in two databases have two leases. It is safe for concurrent use. Every method returns
// at once when its context ends.
type Provider interface {
	// Source returns the provider's name as it is recorded with each grant.
	Source() string
	// Acquire tries once to get the lease for the candidacy in bid. It returns ErrHeld
	// if another candidacy holds the lease, and an error that wraps ErrNotSent if no
	// request was sent. After any other error the outcome is unknown: a second Acquire
	// with the same request returns the same award if the first one got it.
	Acquire(ctx context.Context, bid AcquireRequest) (*Lease, error)
	// Renew confirms that the lease of exactly this term is held, and extends it by
	// another TTL. It returns ErrLost if the term is definitely over.
	Renew(ctx context.Context, l *Lease) error
	// Release releases the lease of exactly this term, for the given reason. If the
	// term is already over, it changes nothing and returns nil, with one exception:
	// ReasonLeft after ReasonUnresponsive makes the lease available to everyone,
	// provided that no one has held it since. A Lease with nothing but its
	// AcquireRequest means whatever an Acquire of unknown outcome got or may still
	// get: once Release has returned, a request of this incarnation that arrives late
	// acquires nothing. The incarnation never calls Acquire again. silent is how long the
	// worker had been silent, for ReasonUnresponsive; candidates observe it.
	Release(ctx context.Context, l *Lease, why Reason, silent time.Duration) error
	// Watch blocks until the lease's observation differs from seen. The zero
	// Observation differs from every real one, so Watch then returns at once.
	Watch(ctx context.Context, resource string, seen Observation) (Observation, error)
	// Close stops what the provider runs in the background. It releases no lease.
	Close() error
}

// TokenProvider is a Provider that awards no lease: each candidacy brings a token, which is the index
// of its award, and several may bring the same one. A lower token never leads.
type TokenProvider interface {
	Provider
	// Generation returns the number of the generation in which tokens count now. Acquire and
	// Renew return ErrLost to a candidacy that began in another one.
	Generation(ctx context.Context) (int64, error)
}

// AcquireRequest is a candidacy's request for a lease.
type AcquireRequest struct {
	Resource    string
	Worker      string
	Incarnation string        // the candidacy's random id
	TTL         time.Duration // how long the lease lasts unless it is renewed
	Token       int64         // what a candidacy of a TokenProvider brings; 0 otherwise
	// From, if not "", is the incarnation of another candidacy, from which Acquire takes the
	// lease away if that one holds it. The award is a new one, as if the lease had been free, and
	// the term of From is over.
	From string
}

// Lease is one award of a lease: a term. It is immutable.
type Lease struct {
	AcquireRequest
	// InstanceID and Index order the awards; see fencing.Award.
	InstanceID string
	Index      int64
	// Handle is the provider's own name of the term, for example a session id.
	Handle string
	// Granted is how long the lease service keeps the lease unless it is renewed, if that is
	// not the TTL of the request; otherwise 0. A shorter time shortens the trust in the lease,
	// a longer one changes nothing for its holder.
	Granted time.Duration
}

// Position is how far a lease service has counted its awards. Each award that it makes later counts
// higher, in the instance of InstanceID or in one that begins later.
type Position struct {
	Source     string
	InstanceID string // "": there is no instance yet
	Index      int64  // math.MaxInt64 if awards never count lower than those that the fence has recorded
}

// Reason says why a lease is released.
type Reason uint8

const (
	// ReasonLeft: the holder no longer needs the lease. Any live candidate acquires it
	// at once.
	ReasonLeft Reason = iota
	// ReasonUnresponsive: the worker shows no activity. The lease is acquired only on
	// demand.
	ReasonUnresponsive
)

func (r Reason) String() string {
	if r == ReasonUnresponsive {
		return "silence"
	}
	return "left"
}

// State says whether a lease can be acquired.
type State uint8

const (
	// Unseen: nothing is known yet.
	Unseen State = iota
	// Held: someone holds the lease.
	Held
	// Freed: no one holds the lease. Its holder left or died, or there never was one.
	Freed
	// Unresponsive: no one holds the lease, and it was released as unresponsive.
	Unresponsive
)

func (v State) String() string {
	switch v {
	case Held:
		return "held"
	case Freed:
		return "free"
	case Unresponsive:
		return "vacant by silence"
	default:
		return "unknown"
	}
}

// Observation is what a provider last saw of a lease. Two observations are equal
// if nothing that matters to a candidate happened between them.
type Observation struct {
	State State
	// Incarnation is that of the holder, or of the last one; "" if not known.
	Incarnation string
	// Index is the index of the observed award. It is not compared with other awards.
	Index int64
	// InstanceID identifies the lease service instance that was observed. It is never
	// empty: a provider creates an id if there is none.
	InstanceID string
	// Unconfirmed is how long nothing had confirmed the leader when the lease became free:
	// the TTL, at least, if the lease expired, and the silence of the worker if it was
	// released because of that. It is 0 if the worker left, or if that is not known.
	Unconfirmed time.Duration
}

// Ended returns how the term of the last holder ended.
func (o Observation) Ended() fencing.Ending {
	switch {
	case o.State == Unresponsive:
		return fencing.EndingSilence
	case o.State == Freed && o.Unconfirmed > 0:
		return fencing.EndingExpired
	case o.State == Freed:
		return fencing.EndingLeft
	}
	return fencing.EndingUnseen
}

// Looker is a Provider that can observe a lease once with less effort than Watch.
type Looker interface {
	Look(ctx context.Context, resource string) (Observation, error)
}

// Expirer is a Provider that knows until when a lease is confirmed that it saw held, as a
// reading of CLOCK_BOOTTIME; 0 if it did not see that. While the lease is watched, it looks
// again at that time.
type Expirer interface {
	ConfirmedUntil(resource string) time.Duration
}

// Adopter is a Provider whose leases another process with the same configuration can renew and release, by what is in
// the Lease.
type Adopter interface {
	// Adopt is Renew of a lease that another process has acquired. If it is not held, or is not known here, nothing has
	// changed.
	Adopt(ctx context.Context, l *Lease) error
}

// Gatherer is a Provider that sends the renewals that come at the same time as one request. Others are
// better served if the renewals of a proxy are spread.
type Gatherer interface {
	RenewsTogether() bool
}

// RiskKind says what can happen to a lease service that works.
type RiskKind uint8

const (
	// RiskNotSaved: it forgets leases when it restarts.
	RiskNotSaved RiskKind = iota
	// RiskNotReplicated: it forgets leases when another server takes its place.
	RiskNotReplicated
	// RiskNotRedundant: it stops when it loses a server.
	RiskNotRedundant
)

// Risk is something about a lease service that can cost leaders their leases. It never puts the
// order of epochs at risk.
type Risk struct {
	Kind   RiskKind
	Seen   string // what was seen
	Remedy string // what an operator can do
}
