package fencing

import (
	"context"
	"net/netip"
	"time"
)

// Role is where a candidacy stands, as SHOW fencepost.role spells it.
type Role uint8

const (
	// Follower does not lead now, and may be granted an epoch later.
	Follower Role = iota
	// Leader was granted the current epoch as far as this proxy knows.
	Leader
	// Superseded had an epoch and another candidacy was granted a higher one.
	// It is for good: the connections of a superseded candidacy end.
	Superseded
)

func (r Role) String() string {
	switch r {
	case Leader:
		return "leader"
	case Superseded:
		return "superseded"
	default:
		return "follower"
	}
}

// Status is an immutable snapshot of where a candidacy stands.
type Status struct {
	Role Role
	// Epoch is the one this candidacy was granted, 0 if none. A candidacy has
	// at most one epoch in its life.
	Epoch Epoch
	// Lapsed: the candidacy has an epoch, but its lease is not confirmed now
	// (the deadline has passed, or it was released for silence) and nobody is
	// known to have been granted since. Role is then Follower.
	Lapsed bool
	// Vacant: nobody holds the lease, and it was freed by silence, so that it
	// is taken only on demand (see Candidacy.Demand).
	Vacant bool
	// Holder is the latest recorded grant this proxy knows of.
	Holder Record
	// Fault, if not nil, says why the fence cannot be used (schema missing,
	// database restored): every checked statement gets ZF004 with its text.
	Fault error
}

// CanWrite reports whether writes under s.Epoch may be tried now.
func (s *Status) CanWrite() bool { return s.Role == Leader && s.Fault == nil }

// CampaignMode says how a connection takes part in the election.
type CampaignMode uint8

const (
	// CampaignOn campaigns; connecting waits for the first attempt only.
	CampaignOn CampaignMode = iota
	// CampaignWait campaigns; connecting blocks until the worker leads.
	CampaignWait
	// CampaignOff only observes.
	CampaignOff
)

// JoinRequest names the candidacy that a connection belongs to.
type JoinRequest struct {
	Database string
	User     string
	Resource string
	Worker   string
	// Nameless: the client named no worker, and Worker was made up for this one
	// connection.
	Nameless bool
	// Client is the address the connection came from. A worker that campaigns from
	// two addresses at once is refused.
	Client   netip.Addr
	Campaign CampaignMode
	// WorkerTimeout is how long the worker may be silent before its lease is
	// released: negative means the configured default, 0 never.
	WorkerTimeout time.Duration
}

// Member is one connection of a candidacy, as its candidacy sees it. Its
// methods must not block: they are called from the candidacy's loop.
type Member interface {
	// Activity returns a counter that grows whenever bytes arrive from the
	// client, and whether the server is working for the client: not while it
	// waits for the client's next bytes, or for a lock of another connection of
	// the same worker that does nothing, nor while the client does not read its
	// replies.
	Activity() (reads uint64, owed bool)
	// StatusChanged tells that Candidacy.Status has a new value. It is
	// called after the value was stored. On Superseded the member ends its
	// server backend at once, and tells its client at the next use.
	StatusChanged()
}

// Candidates begins and joins candidacies. election.Elections implements it.
type Candidates interface {
	// Join makes m a member of the claim's candidacy and begins that candidacy
	// if there is none (or if the last one is superseded). It returns at once;
	// AwaitFirst waits. Errors are *Refusal where the client is to see one
	// (ZF004: the fence cannot be used; ZF005: worker already connected from
	// another address; those of Postgres for what the configuration does not allow).
	Join(ctx context.Context, c JoinRequest, m Member) (Candidacy, error)
}

// Candidacy is one worker's standing for one resource of one database at this
// proxy, shared by the connections of that worker.
type Candidacy interface {
	// Status returns the current snapshot, never nil. It is an atomic load.
	Status() *Status
	// Incarnation is the candidacy's random id.
	Incarnation() string
	// Fence is the resource's fence in the database.
	Fence() Fence
	// SupersededBefore reports that this worker id had an epoch in an earlier
	// candidacy and another worker was granted a higher one since. Such a
	// worker is not told at startup, even when it leads again.
	SupersededBefore() bool
	// AwaitFirst returns when the first attempt to lead has ended either way, or
	// wait is over, or ctx has ended. An attempt that has the lease, and is being
	// granted its epoch, is waited for a while longer: it is about to lead.
	AwaitFirst(ctx context.Context, wait time.Duration) error
	// AwaitLeader returns nil when the candidacy leads, a *Refusal when it is
	// superseded or faulty, or ctx's error. It counts as demand.
	AwaitLeader(ctx context.Context) error
	// AwaitConfirmed returns when the standing is no longer Lapsed, or ctx has
	// ended.
	AwaitConfirmed(ctx context.Context) error
	// CampaignOnDemand tells that a write is about to be refused, or that the role was
	// asked for. If the lease is vacant by silence, it makes one attempt, and
	// returns when that has ended or ctx has. Otherwise it returns at once.
	CampaignOnDemand(ctx context.Context)
	// Advanced asks the database whether another candidacy was granted an
	// epoch since this one held it, and updates the standing. The proxy calls
	// it when the server ended a backend (57P01) or a check said ZF001.
	Advanced(ctx context.Context) bool
	// Leave ends the membership of m. The last member of a candidacy ends it:
	// orderly says that the client said Terminate (the lease is kept for
	// lease.linger), otherwise the lease is released at once.
	Leave(m Member, orderly bool)
}

// RegisterRequest is what the registry is asked to note.
type RegisterRequest struct {
	PID         uint32 // of the backend
	Worker      string
	Incarnation string
	Announced   Epoch // what the connection was told
	Held        Epoch // what its candidacy holds now, 0 for none
	// Flushed has Enter return only when the note's commit is on disk. One that is
	// not would keep a VACUUM from marking pages all-visible: Postgres does not
	// believe in commits that are about as old before they are flushed.
	Flushed bool
}

// Registration names one note in the registry.
type Registration struct {
	PID uint32
	ID  int64 // random: no other note ever has it
}

// Fence is one resource's row in the fence table of one database, with what
// the proxy needs of the control connection.
type Fence interface {
	// ID is fencepost.fence.id.
	ID() int32
	// RegisterBackend checks what the check in front of a transaction checks, and notes, in
	// one transaction on the control connection, that the backend may write
	// outside the check. A grant ends noted backends. The error is a *Refusal if
	// the connection may not write. The note is the one that Leave deletes; after
	// an error that is no refusal it may have been made.
	RegisterBackend(ctx context.Context, e RegisterRequest) (Registration, error)
	// MayEnd returns a *Refusal if the control role could not end the backend: a
	// superuser's, when it is none itself. Such a worker could block every grant.
	MayEnd(ctx context.Context, pid uint32) error
	// UnregisterBackend deletes that note, and no other.
	UnregisterBackend(ctx context.Context, n Registration) error
	// WaitFor returns those of the backends in waiting that wait, directly or
	// through other backends, for a lock of one of the backends in holding.
	WaitFor(ctx context.Context, waiting, holding []uint32) ([]uint32, error)
	// Catalog is what the database's names mean, as of some seconds ago at
	// most, or nil if that is not known now: then no read is proven harmless.
	// It does not block.
	Catalog() *Catalog
	// RefreshCatalog returns when Catalog is as new as this call, or cannot
	// be, or ctx has ended.
	RefreshCatalog(ctx context.Context)
}
