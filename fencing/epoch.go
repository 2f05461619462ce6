package fencing

import (
	"fmt"
	"time"
)

// Epoch is the fencing token of a resource. It grows strictly with each grant to a new
// candidacy. 0 means none.
type Epoch int64

// Award is what a lease service gave to one candidacy: the right to ask for an epoch.
// Awards are ordered by (generation, Index), the order in which the lease service made
// them. A grant refuses an award that is not newer than the recorded one.
type Award struct {
	Resource    string
	Worker      string
	Incarnation string // the candidacy's random id
	Source      string // the provider that made the award: "postgres", "consul", "etcd", "redis", "zookeeper"
	// InstanceID identifies the instance of the lease service in which Index counts. It
	// changes when the service is restored or rebuilt. The fence schema numbers the
	// instances of a source in the order in which it first sees them, before anyone
	// asks for a lease from them; that number is the award's generation.
	InstanceID string
	Index      int64 // order of awards within the instance
	// Held is the epoch that this candidacy was granted before, 0 for none. If another
	// candidacy has been granted one since, this candidacy is over.
	Held Epoch
	// HighestObserved is the highest epoch that this proxy has ever seen on the
	// resource, without those of unconfirmed records. A fence below it was restored from an
	// older state.
	HighestObserved Epoch
}

// Term is what a proxy knows about a lease that it holds for a candidacy.
type Term struct {
	Award
	Epoch Epoch
	// TrustedUntil is a reading of CLOCK_BOOTTIME: the time at which the last
	// successful renewal was sent, plus nine tenths of the TTL. It only stops a
	// worker early; the check in the database is the guarantee.
	TrustedUntil time.Duration
}

// SourceOperator is the source of an epoch that an operator gave to no one.
const SourceOperator = "operator"

// SourceToken is the source of awards that workers bring themselves: the index of each is its
// token.
const SourceToken = "token"

// TokenIncarnation is the incarnation of all candidacies that bring one token in one
// generation, wherever they are: they are granted the same epoch.
func TokenIncarnation(generation, token int64) string {
	return fmt.Sprintf("%s:%d:%d", SourceToken, generation, token)
}

// Record is the fence row of one resource: its highest grant.
type Record struct {
	Epoch       Epoch // 0: no grant yet
	Worker      string
	Incarnation string
	Source      string
	Generation  int64
	Index       int64
	GrantedAt   time.Time
	// Unconfirmed means that a failover may lose the grant, because the synchronous standbys
	// are not known to have confirmed it. Such an epoch was announced to no one, as far as this
	// proxy knows.
	Unconfirmed bool
	// Guards is how many tables the resource guards.
	Guards int
}
