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

// Candidacies are what the states of a resource's candidacies at this proxy say about its own.
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
	// Obstructed: it is because of something that is still there, and would block the next grant too.
	Obstructed bool
}

// Known is what a proxy knows of a resource at one moment.
type Known struct {
	Leader Leader
	History
	Candidacies
	// LeaseUntil is until when the leader's lease is confirmed, 0 if that is not known. For a leader at another proxy, that
	// is read again then, which may take AnswerWithin.
	LeaseUntil, AnswerWithin time.Duration
	// Lost is why the candidacies here have lost their fence, Unusable why none can begin, WatchErr why the lease
	// service cannot be watched, since FailingSince, and Unreached why the database cannot be asked; nil if that is not so.
	Lost, Unusable, WatchErr, Unreached error
	FailingSince                        time.Duration
	// Paused: an operator keeps everyone from leading, since PausedSince, which is 0 if that is not known. Resumed is when
	// that was last seen to be over.
	Paused               bool
	PausedSince, Resumed time.Duration
	// Offered: the lead is offered to one worker, from OfferBegins on.
	Offered     bool
	OfferBegins time.Duration
	// HeldHere: a candidacy of this proxy holds the lease. Held: the watch shows that someone does, by what may be one of
	// this proxy if HeldByOwn, and by the recorded leader at another proxy if GrantedElsewhere.
	HeldHere, Held, HeldByOwn, GrantedElsewhere bool
	FreeSince                                   time.Duration // since when the lease has had no holder; 0 if it has one
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
		return Shown{Since: k.Unconfirmed, Why: cmp.Or(k.UnconfirmedWhy, errUnconfirmed)}
	case k.WatchErr != nil:
		return Shown{Since: k.FailingSince, Why: k.WatchErr}
	case k.Unreached != nil:
		return k.leaderless(Unknown, k.Unreached)
	case !k.HeldHere && k.GrantedElsewhere: // and the grant is unconfirmed
		return k.leaderless(Unknown, ErrUncertainGrant)
	case k.Offered:
		offered := k.leaderless(Handover, nil)
		offered.Since = max(offered.Since, min(k.OfferBegins, now))
		return offered
	case k.Ungranted != nil && (k.Waiting || k.Obstructed || k.HeldHere || k.Held):
		return k.leaderless(Blocked, k.Ungranted)
	case !k.HeldHere && k.Held && !k.HeldByOwn:
		return k.leaderless(Electing, errUngranted)
	case k.HeldHere, k.Held:
		return k.leaderless(Electing, nil)
	case k.Waiting && k.Unserved != nil:
		return k.leaderless(Blocked, k.Unserved)
	case k.Waiting:
		return k.leaderless(Electing, nil)
	case k.Leader == LeaderUnknown:
		return Shown{Why: errUnseen}
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
		return Shown{Since: led.Until, Why: errUnconfirmed}
	}
}
