package proxy

import "github.com/fencepost/fencepost/fencing"

// SessionPolicy is what the configuration decides about one session. The zero value is
// the default.
type SessionPolicy struct {
	// Unfenced is what the connection may do if it names no resource.
	Unfenced UnfencedMode
	// Identity says who the worker is if the connection names none.
	Identity Identity
	// ProvenReads: as the leader's, its single reads go unchecked when they are proven
	// harmless.
	ProvenReads bool
}

// Policy decides about a session, once, when Postgres has authenticated its client. The
// request is as the client made it: Resource and Worker are empty if it names none. A
// Policy must not block.
type Policy func(fencing.JoinRequest) SessionPolicy

// UnfencedMode says what a connection without a resource may do.
type UnfencedMode uint8

const (
	// UnfencedReadOnly lets it read; its writes are refused. The default.
	UnfencedReadOnly UnfencedMode = iota
	// UnfencedAllow relays it without any check: for migrations.
	UnfencedAllow
	// UnfencedRefuse ends it at startup.
	UnfencedRefuse
)

// Identity says who the worker is on a connection that names none.
type Identity uint8

const (
	// IdentityConnection: each connection is a worker of its own.
	IdentityConnection Identity = iota
	// IdentityClientAddress: all connections from one address are one worker.
	IdentityClientAddress
	// IdentityProxy: all connections of this proxy are one worker (a sidecar).
	IdentityProxy
)
