package fencing

import "time"

// Kinds of orders.
const (
	OrderEvict  = "evict"  // takes the lead from a worker
	OrderPause  = "pause"  // also keeps everybody from being granted an epoch
	OrderResume = "resume" // ends a pause, or lets a worker campaign again
	OrderRemove = "remove" // removes a resource
	OrderPrune  = "prune"  // shortens the ledger of the whole database
	OrderRaise  = "raise"  // puts a resource under a higher epoch, after a restore
)

// Order is what an operator has ordered, as the database keeps it.
type Order struct {
	ID       int64 // grows in the order in which orders become visible
	Kind     string
	Resource string // "" for the whole database
	// Worker is whom the order concerns. For OrderPause, OrderRemove and OrderRaise it is who
	// held the epoch, "" for nobody.
	Worker string
	// Until is when the worker may campaign again. It is zero if the order has no end.
	Until time.Time
	// Epoch is the epoch that the order gave to nobody, 0 if it left the epoch alone.
	Epoch   Epoch
	AskedBy string // as the command said
	Role    string // the role that gave it, as the server knows
	Reason  string
	AskedAt time.Time
}

// Barred is the error of a grant that an operator's order forbids.
type Barred struct {
	// Refusal is what clients are told: a ZF002 that names the order.
	Refusal *Refusal
	// Left is how much longer the order counts, 0 if it does until it is lifted.
	Left time.Duration
}

func (b *Barred) Error() string { return b.Refusal.Error() }
