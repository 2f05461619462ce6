package status

import (
	"cmp"
	"time"
)

// Leader is what is known of who leads a resource.
type Leader uint8

const (
	LeaderUnknown   Leader = iota // nothing has been observed yet
	LeaderNone                    // no one leads
	LeaderHere                    // a candidacy of this proxy
	LeaderElsewhere               // a candidacy of another proxy
)

// Leads reports whether anyone is known to lead.
func (l Leader) Leads() bool { return l == LeaderHere || l == LeaderElsewhere }

// Holder is who holds the lease of a resource, whether or not it leads.
type Holder uint8

const (
	HolderNone     Holder = iota // no one, as far as the watch shows
	HolderHere                   // a candidacy of this proxy, or one that has ended here
	HolderRecorded               // a candidacy of another proxy, which has the recorded epoch
	HolderUnknown                // someone else, who does not have the recorded epoch
)

// Candidacies summarizes the candidacies of this proxy for one resource.
type Candidacies struct {
	Fault   error // why one of them cannot lead, nil if none has such a fault
	Waiting bool  // one of them waits for the lease, and no order keeps it from leading
	Idle    bool  // one of them asks for the lead when its worker writes
	// Frozen says which worker does not send the heartbeats that it has promised, nil if all do.
	Frozen error
	// Barred is the order that keeps one of them from leading, nil if none does.
	Barred error
	// Unconfirmed is since when the lease that one of them holds is no longer confirmed; 0
	// if that is not so. UnconfirmedWhy says why, and is nil if only the answer is late.
	Unconfirmed    time.Duration
	UnconfirmedWhy error
	// Unserved says how the lease service keeps one that waits from the lease, nil if it does not.
	Unserved error
	// Ungranted says why the last grant to one of them failed, nil if someone was granted an epoch since.
	Ungranted error
	// Obstructed: that grant failed because of something that still exists and would block the next grant too.
	Obstructed bool
	// GrantBlocked: a grant to one of them waits for something that cannot be ended.
	GrantBlocked bool
}

// Known is what a proxy knows of a resource at one moment.
type Known struct {
	Leader Leader
	History
	Candidacies
	LeaseUntil   time.Duration // until when the leader's lease is confirmed; 0 if that is not known
	AnswerWithin time.Duration // how long it may take to read the lease of a leader at another proxy again, from LeaseUntil on

	Lost         error         // why the candidacies here have lost their fence, nil if they have not
	Unusable     error         // why no candidacy can begin, nil if one can
	WatchErr     error         // why the lease service cannot be watched, nil if it can
	FailingSince time.Duration // since when it cannot
	Unreached    error         // why the database cannot be asked, nil if it can

	Paused      bool          // an operator keeps everyone from leading
	PausedSince time.Duration // since when; 0 if that is not known
	Resumed     time.Duration // when a pause was last seen to be over

	Offered     bool          // the lead is offered to one worker
	OfferBegins time.Duration // from when on

	Holder    Holder        // who holds the lease
	FreeSince time.Duration // since when no one does; 0 if someone does
}

// Shown is the state of a resource at one moment.
type Shown struct {
	State State
	Since time.Duration // when the state began; 0 if that is not known
	Until time.Duration // until when the lease is confirmed; 0 if that is not known
	Why   error         // why the state is Unknown or Blocked, and in some cases why it is Electing
}

// At returns the state of the resource at this time.
func (k *Known) At(now time.Duration) Shown {
	switch {
	case k.Leader == LeaderHere:
		return Shown{State: Led, Since: k.LedSince, Until: k.LeaseUntil}
	case k.Leader == LeaderElsewhere:
		return k.ledElsewhere(now)
	case k.Lost != nil:
		return k.leaderless(Blocked, k.Lost)
	case k.Fault != nil:
		return k.leaderless(Blocked, k.Fault)
	case k.Unusable != nil:
		return k.leaderless(Blocked, k.Unusable)
	case k.Paused:
		return Shown{State: Paused, Since: cmp.Or(k.PausedSince, k.LeaderlessSince)}
	case k.Unconfirmed != 0:
		return Shown{State: Unknown, Since: k.Unconfirmed, Why: cmp.Or(k.UnconfirmedWhy, errUnconfirmed)}
	case k.WatchErr != nil:
		return Shown{State: Unknown, Since: k.FailingSince, Why: k.WatchErr}
	case k.Unreached != nil:
		return k.leaderless(Unknown, k.Unreached)
	case k.Holder == HolderRecorded: // and the grant is unconfirmed
		return k.leaderless(Unknown, ErrUncertainGrant)
	case k.Offered:
		offered := k.leaderless(Handover, nil)
		offered.Since = max(offered.Since, min(k.OfferBegins, now))
		return offered
	case k.Ungranted != nil && (k.Waiting || k.Obstructed || k.Holder != HolderNone):
		return k.leaderless(Blocked, k.Ungranted)
	case k.Holder == HolderUnknown:
		return k.electing(errUngranted)
	case k.Holder == HolderHere:
		return k.electing(nil)
	case k.Waiting && k.Unserved != nil:
		return k.leaderless(Blocked, k.Unserved)
	case k.Waiting:
		return k.electing(nil)
	case k.Leader == LeaderUnknown:
		return Shown{State: Unknown, Why: errUnseen}
	case k.Idle:
		return Shown{State: Idle, Since: max(k.LeaderlessSince, k.Resumed)}
	case k.Frozen != nil:
		return k.leaderless(Blocked, k.Frozen)
	case k.Barred != nil:
		return k.leaderless(Blocked, k.Barred)
	default:
		return Shown{State: Absent, Since: max(k.FreeSince, k.LeaderlessSince, k.Resumed)}
	}
}

// leaderless is the state of a resource that should be led, and that no one is known to lead.
func (k *Known) leaderless(s State, why error) Shown {
	return Shown{State: s, Since: k.WantedSince(), Why: why}
}

// electing is the state of a resource while someone has the lease, or waits for it.
func (k *Known) electing(why error) Shown {
	if k.GrantBlocked {
		return k.leaderless(Blocked, why)
	}
	return k.leaderless(Electing, why)
}

// ledElsewhere is the state of a resource that a worker at another proxy leads.
func (k *Known) ledElsewhere(now time.Duration) Shown {
	led := Shown{State: Led, Since: k.LedSince, Until: k.LeaseUntil}
	switch {
	case led.Until == 0 || now < led.Until:
		return led
	case now < led.Until+k.AnswerWithin:
		led.Until = now
		return led
	default: // the answer is overdue
		return Shown{State: Unknown, Since: led.Until, Why: errUnconfirmed}
	}
}
