package kv

import (
	"context"
	"errors"
	"time"
)

// ErrConflict means that a Swap wrote nothing, because what it rests on is out of date.
var ErrConflict = errors.New("somebody else has written it in the meantime")

// Unreachable is the error of a request that the service has not answered. It is a net.Error.
type Unreachable struct {
	Service string
	Err     error
}

func (e *Unreachable) Error() string   { return e.Service + " cannot be reached: " + e.Err.Error() }
func (e *Unreachable) Unwrap() error   { return e.Err }
func (e *Unreachable) Timeout() bool   { return false }
func (e *Unreachable) Temporary() bool { return true }

// Store is a lease service that keeps records. Keys are relative to the prefix with which the
// store was opened. A Store is safe for concurrent use, and every method returns at once when
// its context ends. Its errors name the service; they wrap an *elector.DeniedError if only an
// operator can help. Unless something else is said here, the outcome of a call that fails is
// unknown.
type Store interface {
	// Read returns what is stored under a key and the marker, of one moment, confirmed by a
	// quorum.
	Read(ctx context.Context, key string) (Entry, error)
	// Swap writes a record, provided that no one has written or deleted the key's since old was
	// read. life holds the lease from then on, and old's no longer does; "" means no one. It returns the version of the
	// new record. ErrConflict means that nothing was awarded: the key has changed, or a life
	// was given and the marker is no longer old's. elector.ErrLost means the same of a life
	// that is over, and elector.ErrHeld if the service blocks the lease for a while after its
	// last holder was lost.
	Swap(ctx context.Context, key string, old Entry, record []byte, life string) (version int64, err error)
	// Begin begins a life, which holds nothing yet.
	Begin(ctx context.Context, ttl time.Duration) (Life, error)
	// Beat extends a life by another TTL, and confirms that it holds the lease of this key. It
	// returns elector.ErrLost if it is over, or does not hold the lease.
	Beat(ctx context.Context, key, life string) error
	// End ends a life, and returns nil if it is over already. Once it has returned nil, a Swap
	// with this life that arrives late writes nothing.
	End(ctx context.Context, life string) error
	// Mark writes the marker. Unless it may replace another one, it changes nothing if there is
	// one.
	Mark(ctx context.Context, marker string, replace bool) error
	// Position returns the marker, and a version below that of each record that is written
	// later, both of one moment, confirmed by a quorum.
	Position(ctx context.Context) (marker string, version int64, err error)
	// Watch shows everything under the prefix, confirmed by a quorum, and then again after each
	// change, until its context ends or it fails. see does not keep what it is shown.
	Watch(ctx context.Context, see func(Snapshot)) error
	// Close ends the connection.
	Close() error
}

// Entry is what is stored under a key.
type Entry struct {
	Record []byte // nil if there is none
	// Version is that of the record; 0 if there is none. Every write gives a record a higher version
	// than all writes before had, under whatever key, while the service keeps its state.
	Version int64
	// Life holds the lease; "" if no one does. It is that with which the present record was
	// written, provided that it is not over: whatever writes the record, or takes the life's
	// hold from the key, frees the lease.
	Life string
	// Marker identifies the instance of the service; "" if there is no marker.
	Marker string
	// Basis is the Store's own: what a Swap that rests on this entry compares, if that is not the
	// Version. A Store that renews a lease by writing to its key, for example, leaves the Version as
	// it is, because the record is the same.
	Basis any
}

// Checker is a Store that can try what Begin and Mark do not show: whether it may write.
type Checker interface {
	// Check returns an *elector.DeniedError if the service denies what an election needs. It
	// changes nothing.
	Check(ctx context.Context) error
}

// Life is what the service ends by itself unless its owner renews it in time.
type Life struct {
	ID string
	// TTL is how long it lasts after it began and after each beat, at least. The service
	// may have granted another TTL than it was asked for.
	TTL time.Duration
}

// Snapshot is everything under the prefix, at one moment.
type Snapshot struct {
	Marker  string
	Entries map[string]Entry // by key; their Markers are not set
}
