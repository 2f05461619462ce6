package status

import (
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

// Resource is what this proxy knows about one resource.
type Resource struct {
	Database string
	Resource string
	// Record is the highest known grant: leader, epoch, and since when.
	Record fencing.Record
	// LeaseState is what the lease service shows.
	LeaseState elector.State
	// State says whether anyone leads, since StateSince, which is zero if that is not
	// known. Reason says why the state is Unknown or Blocked, and in some cases why it is
	// Electing. Callers may add one to others.
	State      State
	StateSince time.Time
	Reason     error
	// Local means that a candidacy of this proxy leads.
	Local bool
	// Proxy is the proxy through which the worker that was granted the epoch is connected, as the database says; "" if
	// that is not known. Elections leaves it to its caller.
	Proxy string
	// AsOf is when the database has said who leads, if this proxy knows the state from there alone; otherwise it is
	// zero. Elections leaves it to its caller.
	AsOf time.Time
	// LeaseLeft is how much longer the leader's lease is confirmed; 0 if that is not known.
	LeaseLeft time.Duration
	// Holds means that a candidacy of this proxy holds the lease for its epoch, and Margin
	// is how much longer that lease is trusted without a renewal.
	Holds  bool
	Margin time.Duration
	// Leaderless is how long no worker has been known to be able to write: since the lease
	// was free or no longer confirmed, and until an epoch is granted. It is 0 while someone
	// leads, and while no one is meant to (State.NeedsNoLeader).
	Leaderless time.Duration
	// FalseAlarms counts the workers that became active again, before anyone else was
	// granted an epoch, after their lease was released as unresponsive.
	FalseAlarms int
	// Unusable is why no candidacy can begin, because of the fence, or why none can write, because the
	// fence is not the one that it was; nil if one can, as far as the last connection and the last
	// reading of the fence have shown.
	Unusable error
	// BlockedBy is what a grant to a candidacy of this proxy waits for, or was given up for, and cannot end, a line for
	// each; none if nothing blocks it.
	BlockedBy []string
	// LostOrder, if not nil, is an operator's order that this proxy has seen, and that a
	// failover or a restore has lost.
	LostOrder *fencing.Order
	// WatchError says why the lease service cannot be watched at the moment.
	WatchError error
	// Offered is the worker to whom an operator hands the resource over, "" for no one; no one else
	// leads until OfferedUntil, unless that worker takes the lead before.
	Offered      string
	OfferedUntil time.Time
	// Orders are those of operators that keep workers from leading now, in words, as of when the database was last
	// asked, at OrdersAsked; that is zero if it was not.
	Orders      []string
	OrdersAsked time.Time
	Candidacies []Candidacy
}

// Candidacy is the state of one candidacy of this proxy.
type Candidacy struct {
	User         string
	Worker       string
	Incarnation  string
	Status       fencing.Status
	Members      int
	Unresponsive bool
	Retained     bool
	Observes     bool // none of its connections campaigns
	Campaigns    bool // it asks for the lease, or has it; not if its worker is superseded
	// WorkerTimeout is how long this worker may currently be inactive, 0 for unlimited: its
	// timeout, or less if it has promised heartbeats. FalseAlarms counts the
	// false alarms that have extended it. The count and the extension end an hour after
	// the last one.
	WorkerTimeout time.Duration
	FalseAlarms   int
	// Heartbeat is how often this worker has promised to send something, 0 if it has
	// promised nothing.
	Heartbeat time.Duration
	// Silence is for how long this worker has been inactive, as of the last look; 0 while WorkerTimeout is unlimited.
	Silence time.Duration
	// LongestSilence is how long this worker was inactive at most since the candidacy began; 0
	// while WorkerTimeout is unlimited.
	LongestSilence time.Duration
}
