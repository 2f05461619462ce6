package fencing

import (
	"context"
	"net/netip"
	"time"
)

// Role is a candidacy's role in the election, as SHOW fencepost.role spells it.
type Role uint8

const (
	// Follower does not lead at the moment. It may be granted an epoch later.
	Follower Role = iota
	// Leader holds the current epoch, as far as this proxy knows.
	Leader
	// Superseded held an epoch until another candidacy was granted a higher one. This
	// is final: the connections of a superseded candidacy end, except those whose stale
	// writes are discarded.
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

// Status is an immutable snapshot of a candidacy's state.
type Status struct {
	Role Role
	// Epoch is the epoch that this candidacy was granted, 0 if none. A candidacy leads under
	// at most one epoch.
	Epoch Epoch
	// Lapsed means that the candidacy has an epoch, but that its lease is currently
	// unconfirmed (the deadline has passed, or the lease was released because the
	// worker was silent), and that no other candidacy is known to have been granted a
	// higher one. Role is then Follower.
	Lapsed bool
	// Vacant means that no one holds the lease because its last holder was silent. Such
	// a lease is acquired only on demand (see Candidacy.CampaignOnDemand).
	Vacant bool
	// Removed means that an operator has removed the resource. Role is then Superseded.
	Removed bool
	// Holder is the latest grant that this proxy knows of.
	Holder Record
	// Fault, if not nil, says why the fence cannot be used (schema missing, database
	// restored). Every write then fails with ZF004 and this text.
	Fault error
	// Barred, if not nil, says which order of an operator keeps this candidacy from
	// leading: it is a ZF002, which each write gets.
	Barred *Refusal
}

// CanWrite reports whether a write under s.Epoch may be attempted now.
func (s *Status) CanWrite() bool { return s.Role == Leader && s.Fault == nil }

// Discardable reports whether the writes of a candidacy with this status may be discarded once
// it is superseded: it had an epoch, and its resource is still there.
func Discardable(s *Status) bool { return s.Epoch != 0 && !s.Removed }

// CampaignMode says how a connection takes part in the election.
type CampaignMode uint8

const (
	// CampaignOn campaigns. Connecting waits for the first attempt only.
	CampaignOn CampaignMode = iota
	// CampaignWait campaigns. Connecting blocks until the worker leads.
	CampaignWait
	// CampaignOff only observes.
	CampaignOff
)

// JoinRequest names the candidacy that a connection belongs to.
type JoinRequest struct {
	Database string
	User     string
	Backend  uint32 // the process id of its backend
	Resource string
	Worker   string
	// Nameless means that the client named no worker, and that Worker was generated for
	// this one connection.
	Nameless bool
	// Client is the address that the connection came from. A worker that campaigns from
	// two addresses at once is refused. The zero Addr is that of all clients on Unix
	// sockets, and of all clients of a proxy that are one worker.
	Client netip.Addr
	// ApplicationName is what the client has sent at startup, "" if nothing.
	ApplicationName string
	Campaign        CampaignMode
	// WorkerTimeout is how long the worker may be silent before its lease is released.
	// A negative value means the configured default, 0 means never.
	WorkerTimeout time.Duration
	// Heartbeat is how often the worker promises to send something, on this or another one
	// of its connections. 0 means that this connection promises nothing.
	Heartbeat time.Duration
	// Registers: if the candidacy leads, the connection registers its backend next, which compares the candidacy with the
	// database. So Join does not. If that is refused, the connection joins again without this: mostly the same candidacy.
	Registers bool
	// Arrives: another process has the connection still, and leads. It campaigns here once its candidacy was passed on
	// (Movable.Adopt).
	Arrives bool
	// Token is what the client's own elector gave it, 0 if it has brought none. Only resources
	// whose workers are elected elsewhere take one.
	Token int64
}

// ClientName returns the name of a JoinRequest's Client in messages and worker ids.
func ClientName(client netip.Addr) string {
	if !client.IsValid() {
		return "local"
	}
	return client.String()
}

// Member is one connection of a candidacy, as the candidacy sees it. Its methods must
// not block, because the candidacy's loop calls them. Activity is called under a lock, so it must not
// call the candidacy.
type Member interface {
	// Activity returns a counter that grows whenever bytes arrive from the client, and
	// whether the server is working for the client. The server is not working for it
	// while it waits for the client's next bytes, while it waits for a lock held by an
	// idle connection of the same worker, or while the client does not read its
	// replies.
	Activity() (reads uint64, owed bool)
	// StatusChanged announces that Candidacy.Status has a new value. It is called after
	// the value has been stored. When the candidacy is superseded, the member ends its
	// server backend at once and sends its client the error at the next use.
	StatusChanged()
	// EpochEnds says that a grant waits for registered backends. A member whose backend is one of them ends as soon as
	// it is at rest, and sends its client the error at the next use. One whose backend the grant has ended closes the
	// connection to it.
	EpochEnds(d Drain)
}

// Drain says that a grant waits for the backends that are registered for a resource under an epoch or an older one.
// Proxies notify each other of it by its JSON.
type Drain struct {
	Resource string `json:"resource"`
	Epoch    Epoch  `json:"epoch"` // that ends
	// Ended are the process ids of backends that the grant has terminated a while ago. One of them may be there still:
	// while Postgres sends an error that the client does not read, it looks for no request to end.
	Ended []int32 `json:"ended,omitempty"`
}

// Candidates starts and joins candidacies. election.Elections implements it.
type Candidates interface {
	// Join makes m a member of the candidacy that c names. It starts that candidacy if
	// there is none, or if the last one has been superseded. It returns at once; use
	// AwaitFirst to wait. An error that the client should see is a *Refusal: ZF004 if
	// the fence cannot be used, ZF005 if the worker is already connected from another
	// address, and a SQLSTATE of Postgres if the configuration does not allow the
	// connection.
	Join(ctx context.Context, c JoinRequest, m Member) (Candidacy, error)
	// OpenCatalog returns the catalog of a database, for a connection without a resource.
	// leave must be called when that connection has ended. The catalog of a database that
	// has no fence is Fenceless until it has one. The error is a *Refusal if the fence
	// cannot be used.
	OpenCatalog(ctx context.Context, database string) (c CatalogReader, leave func(), err error)
}

// Candidacy is one worker's attempt to lead one resource of one database through this
// proxy. The worker's connections share it.
type Candidacy interface {
	// Status returns the current snapshot, which is never nil. It is an atomic load.
	Status() *Status
	// Incarnation is the candidacy's random id.
	Incarnation() string
	// Fence is the resource's fence in the database.
	Fence() Fence
	// SupersededBefore reports whether this worker id led under an epoch in an earlier
	// candidacy and another worker has led under a higher one since. Such a worker
	// may not know that it leads again: the epoch is not announced at startup to a
	// connection of it, unless KnewAt says that the worker knows.
	SupersededBefore() bool
	// AnnouncementRead records that e was announced to a connection of the worker at one time, and
	// that its client had read that at another: it had sent something by then.
	AnnouncementRead(e Epoch, sent, read time.Time)
	// KnewAt reports whether, before the given time, a client of the worker had read that e
	// was announced, or the epoch directly before e, so that no one else held one between
	// them. It is false again from the moment when another connection of the worker ends
	// because it is superseded, until e is announced again.
	KnewAt(e Epoch, at time.Time) bool
	// ConnectionSuperseded says that a connection of the worker ends because it is superseded.
	// It is called before its client can learn that: some drivers then silently send the
	// statement again on a new connection, and that one must not be announced the epoch.
	ConnectionSuperseded()
	// AwaitFirst returns when the first attempt to lead has succeeded or failed, when
	// wait has passed, or when ctx has ended. If the attempt already has the lease and
	// is being granted its epoch, AwaitFirst waits a little longer, because the
	// candidacy is about to lead.
	AwaitFirst(ctx context.Context, wait time.Duration) error
	// AwaitLeader returns nil when the candidacy leads, a *Refusal when it is
	// superseded, faulty or barred, or ctx's error. It counts as demand.
	AwaitLeader(ctx context.Context) error
	// Trouble returns what keeps the candidacy from getting or confirming its lease, or
	// from being granted an epoch; nil if nothing does, as far as is known. It does not
	// block.
	Trouble() *Trouble
	// AwaitConfirmed returns when the status is no longer Lapsed, or when ctx has
	// ended.
	AwaitConfirmed(ctx context.Context) error
	// CampaignOnDemand says that a write is about to be refused, or that the client
	// asked for its role. If the lease is vacant, it makes one attempt to acquire it,
	// and returns when that attempt or ctx has ended. Otherwise it returns at once.
	CampaignOnDemand(ctx context.Context)
	// CheckSuperseded asks the database whether another candidacy has been granted an epoch
	// since this one held it, and updates the status. The proxy calls it when the
	// server has ended a backend (57P01) or when a registration was refused with ZF001.
	CheckSuperseded(ctx context.Context) bool
	// Leave ends m's membership. When the last member leaves, the candidacy ends. If
	// orderly is true, the client sent Terminate, and the lease is kept for
	// lease.linger. Otherwise the lease is released at once.
	Leave(m Member, orderly bool)
}

// Movable is a Candidacy that another process can continue, in an upgrade in place.
type Movable interface {
	Candidacy
	// PassOn calls pass with what another process needs in order to lead in place of this candidacy, which leads. Until
	// pass returns, the candidacy asks for nothing, neither the lease service nor the fence; ctx ends before its lease
	// would have to be renewed. If pass returns nil, the other process has the lease, and the candidacy ends and does
	// not release it. Otherwise, or if it does not lead, the candidacy goes on, and PassOn returns why.
	PassOn(ctx context.Context, pass func(ctx context.Context, lead []byte) error) error
	// Adopt examines whether the candidacy, which must have no lease, can lead in place of one that another process passes
	// on. Then it asks for nothing until begin or drop is called, which do not block.
	Adopt(ctx context.Context, lead []byte) (begin, drop func(), err error)
}

// RegisterRequest names a backend to be registered.
type RegisterRequest struct {
	PID         uint32 // process id of the backend
	Started     string // when its server was started: timestamptz_send of pg_postmaster_start_time, in hexadecimal digits
	Seen        string // a time at which the session had this backend, in the same form
	Worker      string
	Incarnation string
	Announced   Epoch // the epoch announced to the connection
	Held        Epoch // the epoch that its candidacy holds now, 0 for none
}

// Entry identifies one entry of the backend registry.
type Entry struct {
	PID uint32
	ID  int64 // random and never reused
}

// Fences are the fences that a database has.
type Fences struct {
	Database   string // the identity of the database
	ByResource map[string]FenceRow
}

// FenceRow is the fence of one resource.
type FenceRow struct {
	ID    int32
	Epoch Epoch // the recorded one; 0 if none was granted yet
}

// Fence is one resource's row in the fence table of one database, and the operations on
// the control connection that the proxy needs.
type Fence interface {
	// ID is fencepost.fence.id.
	ID() int32
	// RegisterBackend verifies that the candidacy holds the fence's epoch and records, in one
	// transaction on the control connection, that the backend may write for as long as it
	// lives. A grant ends the registered backends. The error is a *Refusal if the
	// connection may not write, or if its backend is not at the server of the control
	// connection. After any other error the entry may or may not exist: the backend does not
	// count as registered, and a grant may end it.
	RegisterBackend(ctx context.Context, e RegisterRequest) (Entry, error)
	// UnregisterBackend deletes the entry n and no other.
	UnregisterBackend(ctx context.Context, n Entry) error
	// Unregistered returns those of the entries, by their ids, that the registry of the database does not have. They
	// are of backends of the server that was started at this time, in the form of RegisterRequest.Started; at another
	// server, none is missing.
	Unregistered(ctx context.Context, started string, entries []int64) ([]int64, error)
	// WaitFor returns those backends in waiting that wait, directly or through other
	// backends, for a lock that one of the backends in holding has.
	WaitFor(ctx context.Context, waiting, holding []uint32) ([]uint32, error)
	// Elsewhere reports whether the address of the database leads to another primary than the
	// server that was started at this time, in the form of RegisterRequest.Started. It reports
	// false if that is not known.
	Elsewhere(ctx context.Context, started string) bool
	CatalogReader
}

// CatalogReader is what proves reads harmless in one database.
type CatalogReader interface {
	// Catalog returns what the database's names mean, as of a few seconds ago at most.
	// It returns nil if that is not known at the moment: then no read can be proven
	// harmless. It does not block.
	Catalog() *Catalog
	// RefreshCatalog returns when Catalog is as recent as this call, when it cannot
	// become so, or when ctx has ended.
	RefreshCatalog(ctx context.Context)
}
