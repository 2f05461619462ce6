package fencing

import "time"

// Order is what an operator has ordered, as the database keeps it.
type Order struct {
	ID int64 // grows in the order in which orders become visible
	// Kind is evict (takes the lead from a worker), pause (also keeps everyone from being granted an epoch), resume
	// (ends a pause, or lets a worker campaign again), remove (removes a resource), prune (shortens the ledger of the
	// whole database), raise (puts a resource under a higher epoch, after a restore), or handover (offers the lead to
	// one worker, and has the leader stop for it).
	Kind     string
	Resource string // "" for the whole database
	// Worker is the worker that the order concerns. For pause, remove and raise it is the one that
	// held the epoch, "" if none did.
	Worker string
	// Until is when the worker may campaign again or, for handover, when others may. It is
	// zero if the order has no end.
	Until time.Time
	// Epoch is the epoch that the order gave to no one, 0 if it left the epoch alone.
	Epoch   Epoch
	AskedBy string // as the command said
	Role    string // the role that gave it, as the server knows
	Reason  string
	AskedAt time.Time
}

// Ordered is what a database says of all its orders and guards, for which every proxy asks it again and
// again.
type Ordered struct {
	LastOrder int64   // the highest id of an order; 0 if there is none
	Orders    []Order // those that were asked for, oldest first
	// Guards is how many tables each resource guards, without those that guard none.
	Guards map[string]int
	// Barred means that there are bars, some of which may have run out.
	Barred bool
}

// InForce are the orders that keep workers of a resource from leading now.
type InForce struct {
	Orders []string // in words
	Paused bool     // one of them keeps everyone from leading
	// PausedFor is for how long it has, as of when this was read; 0 if that is not known.
	PausedFor time.Duration
}

// Barred is the error of a grant that an operator's order forbids.
type Barred struct {
	// Refusal is what clients get: a ZF002 that names the order.
	Refusal *Refusal
	// Left is how much longer the order counts, 0 if it does until it is lifted.
	Left time.Duration
}

func (b *Barred) Error() string { return b.Refusal.Error() }

// Offer is a hand-over that is in force: no one but one worker is granted an epoch. It is over when
// there is a higher epoch than the one that it was made under.
type Offer struct {
	Order    int64
	Resource string
	Worker   string
	Epoch    Epoch
	// Begins is how long it takes until the leader is stopped; it is negative if that is past.
	// Left is how long the offer lasts.
	Begins, Left time.Duration
}

// Candidate is a candidacy that campaigns.
type Candidate struct {
	Resource, Worker, Incarnation string
	// Silent means that the worker shows no activity, so that it takes no lease.
	Silent bool
	// State is what it does for the lead.
	State CandidateState
}

// CandidateState says what a candidacy does for the lead. It is a value of fencepost.candidates.state.
type CandidateState string

const (
	// CandidateLeading may write.
	CandidateLeading CandidateState = "leading"
	// CandidateWaiting asks for the lease, or has it and no epoch yet.
	CandidateWaiting CandidateState = "waiting"
	// CandidateIdle asks for the lease only when its worker wants to write.
	CandidateIdle CandidateState = "idle"
	// CandidateFrozen is silent, and has promised heartbeats.
	CandidateFrozen CandidateState = "frozen"
	// CandidateBarred is kept from leading by an order.
	CandidateBarred CandidateState = "barred"
)
