package fencing

import "time"

// Epoch is the fencing token of a resource: it grows strictly with each grant
// to a new candidacy. 0 means none.
type Epoch int64

// Award is what a lease service gave to one candidacy: the right to ask for an
// epoch. Awards are ordered by (Generation, Index), the order in which the
// lease service made them; a grant refuses an award that is not newer than the
// recorded one.
type Award struct {
	Resource    string
	Worker      string
	Incarnation string // random id of the candidacy
	Source      string // the provider that awarded it: "postgres", "consul"
	// InstanceID names the life of the lease service in which Index counts. The
	// fence schema numbers the markers of a source as they are first seen, before
	// anybody bids under them; that number is the award's generation.
	InstanceID string
	Index      int64 // order of awards within the marker's life
	// Held is the epoch that this candidacy was granted before, 0 for none. If
	// somebody else was granted since, the candidacy is over.
	Held Epoch
	// HighestObserved is the highest epoch this proxy ever saw on the resource. A fence
	// below it has been restored from an older state.
	HighestObserved Epoch
}

// Term is what a proxy knows of a lease that it holds for a candidacy.
type Term struct {
	Award
	Epoch Epoch
	// TrustedUntil is a reading of CLOCK_BOOTTIME: the time before the last
	// successful renewal was sent, plus TTL, minus the margin. It only stops a
	// worker early; the check in the database is the guarantee.
	TrustedUntil time.Duration
}

// Record is the fence row of one resource: the highest grant.
type Record struct {
	Epoch       Epoch // 0: nobody was granted yet
	Worker      string
	Incarnation string
	Source      string
	Generation  int64
	Index       int64
	GrantedAt   time.Time
}
