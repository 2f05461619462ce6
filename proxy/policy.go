package proxy

import "github.com/fencepost/fencepost/fencing"

// SessionPolicy is what the configuration decides about one session. The zero value is
// the default.
type SessionPolicy struct {
	// Unfenced is what the connection may do if it names no resource.
	Unfenced UnfencedMode
	// Identity says which worker the connection belongs to if it names none.
	Identity Identity
	// AnnouncePerConnection: if the worker was superseded before, its epoch is announced to each of its
	// connections separately, and to none of them at startup. Otherwise connections that begin
	// after it was announced to one of them get it at startup.
	AnnouncePerConnection bool
	// OnStale says what becomes of the writes of a worker that was superseded.
	OnStale OnStale
	// Fence says what refuses the writes of workers that have not led.
	Fence FenceMode
	// Shadow: the session of a resource is relayed whether it leads or not, and what would have been
	// refused is recorded.
	Shadow bool
	// NameWorker: the application_name of a connection that names a resource shows resource and
	// worker, also to the client.
	NameWorker bool
	// Route is what a client that names no resource is taken to have named.
	Route Route
	// Refusal refuses the connection, unless it is nil.
	Refusal *fencing.Refusal
}

// Route names a resource for a connection that names none itself. What the client does name
// counts before that of the route.
type Route struct {
	Name     string // in messages; "" if there is no route
	Resource string
	Worker   string // "" leaves it to SessionPolicy.Identity
	Campaign fencing.CampaignMode
}

// Policy decides about a session, once, before it begins at Postgres, which then authenticates
// its client under the user's name that the Policy was given. In the request, Resource and
// Worker are empty if the client names none. A Policy must not block.
type Policy func(fencing.JoinRequest) SessionPolicy

// UnfencedMode says what a connection without a resource may do.
type UnfencedMode uint8

const (
	// UnfencedReadOnly lets it read; its writes are refused. The default.
	UnfencedReadOnly UnfencedMode = iota
	// UnfencedAllow relays it, as migrations need it.
	UnfencedAllow
	// UnfencedRefuse refuses it at startup.
	UnfencedRefuse
)

// OnStale says what becomes of the writes of a worker that had an epoch and was superseded.
type OnStale uint8

const (
	// RejectStale refuses them, and ends the connection. The default.
	RejectStale OnStale = iota
	// DiscardStale answers single INSERT, UPDATE, DELETE and MERGE statements as if they had
	// changed nothing, without executing them, and refuses all other writes. The connection
	// continues.
	DiscardStale
)

// FenceMode says what refuses the writes of workers that do not lead, and have not had an epoch
// since they connected.
type FenceMode uint8

const (
	// FenceSession: the proxy, all of them. The default.
	FenceSession FenceMode = iota
	// FenceTables: only the guards of the resource's tables. A connection is refused while
	// there are none.
	FenceTables
)

// Identity says which worker a connection belongs to if it names none.
type Identity uint8

const (
	// IdentityConnection: each connection is a worker of its own.
	IdentityConnection Identity = iota
	// IdentityClientAddress: all connections from one address are one worker.
	IdentityClientAddress
	// IdentityProxy: all connections of this proxy are one worker (a sidecar).
	IdentityProxy
)
