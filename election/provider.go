package election

import (
	"context"
	"errors"
	"time"
)

var (
	// ErrHeld says that Acquire changed nothing because somebody else holds
	// the lease, or because the lease service keeps it closed for a while
	// after its last holder was lost.
	ErrHeld = errors.New("the lease is held by another candidacy")
	// ErrLost says that a term is over for certain: the lease service does not
	// know it any more, or shows another holder. Every other error of a
	// Provider means that the outcome is unknown.
	ErrLost = errors.New("the lease is lost")
	// ErrNotSent says that Acquire failed before the lease service could hear of
	// the bid: the outcome is known, nothing was awarded.
	ErrNotSent = errors.New("the request was not sent")
)

// Provider is one lease service, as seen from one database: resources of the
// same name in two databases have two leases. It is safe for concurrent use.
// Every method returns at once when its context ends.
type Provider interface {
	// Source names the provider as it is recorded with each grant.
	Source() string
	// Acquire tries once to get the lease for the bid's candidacy. It returns
	// ErrHeld if another candidacy holds it, and an error that wraps ErrNotSent if
	// nothing was asked. After any other error the outcome is unknown: a second
	// Acquire with the same bid returns the same award if the first one got it.
	Acquire(ctx context.Context, bid AcquireRequest) (*Lease, error)
	// Renew confirms that the lease of exactly this term is held, and keeps it
	// for another TTL. It returns ErrLost if the term is over for certain.
	Renew(ctx context.Context, l *Lease) error
	// Release gives back the lease of exactly this term, and says why. If the
	// term is over already it changes nothing and returns nil, with one
	// exception: ReasonLeft after ReasonUnresponsive, while nobody has had the lease
	// since, turns the vacancy into one that anybody may fill. A lease that
	// holds only its AcquireRequest stands for whatever an Acquire of unknown outcome may
	// have got, or may get yet: when Release has returned, a request of this
	// incarnation that arrives late takes nothing. The incarnation bids no more.
	Release(ctx context.Context, l *Lease, why Reason) error
	// Watch blocks until the lease looks other than seen. The zero LeaseObservation
	// differs from all that can be seen, so Watch then answers at once.
	Watch(ctx context.Context, resource string, seen LeaseObservation) (LeaseObservation, error)
	// Close ends what the provider runs in the background. It releases nothing.
	Close() error
}

// AcquireRequest is what a candidacy asks of a lease service.
type AcquireRequest struct {
	Resource    string
	Worker      string
	Incarnation string        // random id of the candidacy
	TTL         time.Duration // how long the lease lasts unless renewed
}

// Lease is one award of a lease: a term. It is never changed once made.
type Lease struct {
	AcquireRequest
	// InstanceID and Index order the awards; see fencing.Award.
	InstanceID string
	Index      int64
	// Handle is the provider's own name of the term (a session id, say).
	Handle string
}

// Reason says why a lease is released.
type Reason uint8

const (
	// ReasonLeft: the holder has no more use for the lease. Any live candidate
	// takes it at once.
	ReasonLeft Reason = iota
	// ReasonUnresponsive: the worker gives no sign of life. The lease is taken only
	// on demand.
	ReasonUnresponsive
)

func (r Reason) String() string {
	if r == ReasonUnresponsive {
		return "silence"
	}
	return "left"
}

// LeaseState says whether a lease is there to be taken.
type LeaseState uint8

const (
	// Unseen: nothing is known yet.
	Unseen LeaseState = iota
	// Held: somebody holds the lease.
	Held
	// Freed: nobody holds the lease; its holder left, died, or never was.
	Freed
	// Unresponsive: nobody holds the lease, and it was released for silence.
	Unresponsive
)

func (v LeaseState) String() string {
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

// LeaseObservation is what a provider last saw of a lease. Two sights are equal if nothing
// happened between them that a candidate would want to know.
type LeaseObservation struct {
	State LeaseState
	// Incarnation of the holder, or of the last one; "" if not known.
	Incarnation string
	// Index of the award that was seen. It is not compared with other awards.
	Index int64
	// InstanceID names the life of the lease service that shows this. It is never
	// empty: a provider makes the marker if there is none.
	InstanceID string
}
