package election

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/own"
	"github.com/fencepost/fencepost/fencing"
)

var (
	errUnconfirmed = errors.New("the lease is not confirmed: the lease service does not answer in time")
	errUnseen      = errors.New("the lease has not been read yet")
	errUngranted   = errors.New("whoever holds the lease, not through this proxy, has not been granted an epoch in this database: ask its proxy what keeps the takeover, or, if no proxy has it, the lease service who that is")
	// ErrUncertainGrant is why a state is Unknown although the recorded leader holds the lease.
	ErrUncertainGrant = errors.New("the synchronous standbys are not known to have its newest grant, so only the proxy of the worker that was granted it knows whether it leads")
)

// State says whether anyone leads a resource, as far as this proxy knows. docs/status.md has the table.
type State uint8

const (
	// Unknown: the lease service cannot be reached, or has not been asked yet, or the grant to a
	// worker at another proxy is unconfirmed.
	Unknown State = iota
	// Led: a worker has the recorded epoch, and its lease is confirmed now.
	Led
	// Handover: an operator has offered the lead to one worker, which has not taken it yet.
	Handover
	// Electing: someone has the lease or waits for it, and no grant is current.
	Electing
	// Idle: no one leads, and a worker is connected that asks for the lead with its next write.
	Idle
	// Paused: an operator keeps everyone from leading.
	Paused
	// Blocked: a fault, a grant that fails, or an order keeps the workers from leading.
	Blocked
	// Absent: no one leads, and no worker is connected that could.
	Absent
)

var stateNames = [...]string{"unknown", "led", "handover", "electing", "idle", "paused", "blocked", "absent"}

func (s State) String() string { return stateNames[s] }

// States returns all states.
func States() []State {
	return []State{Unknown, Led, Handover, Electing, Idle, Paused, Blocked, Absent}
}

// StateOf returns the state of this name, and Unknown for any other.
func StateOf(name string) State { return State(max(0, slices.Index(stateNames[:], name))) }

// NeedsNoLeader reports whether no one is meant to lead: no one leads, and no one who may lead asks to.
func (s State) NeedsNoLeader() bool { return s == Idle || s == Paused }

// LacksLeader reports whether someone should lead, and no one is known to.
func (s State) LacksLeader() bool { return s != Led && !s.NeedsNoLeader() }

// leaderless tracks who leads a resource over time, as far as this proxy knows.
type leaderless struct {
	// leaderlessSince is since when no worker has been able to write; 0 while someone
	// leads, and while nothing is known. It is not since when the lease is free: a worker
	// that has acquired the lease cannot write before its epoch is granted, which may take
	// long, and gives the lease back if that fails.
	leaderlessSince time.Duration
	// ledSince is since when someone leads; 0 while no one does.
	ledSince time.Duration
	// lastLed is when the last leader was last confirmed; 0 while someone leads, and if
	// that is not known.
	lastLed time.Duration
	// lastEnded is how the term of that leader ended.
	lastEnded fencing.Ending
	// noLeaderNeededUntil is when no one was last seen to be meant to lead; 0 if that was never so.
	noLeaderNeededUntil time.Duration
}

// wantedSince returns since when someone should lead and no one does, 0 while someone leads, and if that is not known.
func (l *leaderless) wantedSince() time.Duration {
	if l.leaderlessSince == 0 {
		return 0
	}
	return max(l.leaderlessSince, l.noLeaderNeededUntil)
}

func (l *leaderless) follow(led bool, now time.Duration) {
	switch {
	case led && l.ledSince == 0:
		*l = leaderless{ledSince: now}
	case !led && l.leaderlessSince == 0:
		l.leaderlessSince, l.ledSince = now, 0
	}
}

// endedLeading records that the last leader was last confirmed at this time, and how its term ended, while no one leads
// after it. Of several such times the first counts, because what is seen later is less exact.
func (l *leaderless) endedLeading(at time.Duration, how fencing.Ending) {
	if l.lastLed == 0 || at < l.lastLed {
		l.lastLed, l.lastEnded = at, how
	}
}

// leader is what is known of who leads a resource.
type leader uint8

const (
	leaderUnknown leader = iota // nothing has been observed yet
	leaderNone
	leaderHere
	leaderElsewhere
)

// leads reports whether anyone is known to lead.
func (l leader) leads() bool { return l == leaderHere || l == leaderElsewhere }

// leaderLocked says who leads. A candidacy of this proxy knows whether it may write. One of
// another proxy leads if it holds the lease and was granted the recorded epoch, and if that
// grant is confirmed. No one is known to lead while the lease cannot be watched, or while the fence is
// not the one in which the epochs were granted. r.mu is held.
func (r *resource) leaderLocked() leader {
	o := r.mu.observation
	switch {
	case r.lostLocked():
		return leaderNone
	case r.mu.leads():
		return leaderHere
	case r.mu.holder != nil, r.mu.watchErr != nil:
		return leaderNone
	case o.State == elector.Unseen:
		return leaderUnknown
	case r.tokenProvider != nil && r.faultyLocked(o.Incarnation):
		return leaderNone
	case r.grantedElsewhereLocked() && !r.mu.record.Unconfirmed:
		return leaderElsewhere
	default:
		return leaderNone
	}
}

// lostLocked reports whether the candidacies here have lost their fence. r.mu is held.
func (r *resource) lostLocked() bool { return r.mu.lost != nil && len(r.mu.loops) > 0 }

// grantedElsewhereLocked reports whether a candidacy of another proxy holds the lease and has the
// recorded epoch. A recorded epoch may be that of a grant which has failed since, because no standby
// has confirmed it, so a candidacy of this proxy that does not lead does not count as one of another
// proxy. Nor does one that has ended, whose release the watch has not seen yet. r.mu is held.
func (r *resource) grantedElsewhereLocked() bool {
	o := r.mu.observation
	return o.State == elector.Held && o.Incarnation == r.mu.record.Incarnation && !r.isOwnLocked(o.Incarnation)
}

// isOwnLocked reports whether the candidacy of an incarnation runs at this proxy, or has run there. One
// whose incarnation does not name its proxy is not known once it has ended. r.mu is held.
func (r *resource) isOwnLocked(incarnation string) bool {
	id := r.presenceID()
	return r.mu.runs(incarnation, r.mu.record) || id != "" && own.Proxy(incarnation) == id
}

// faultyLocked reports whether a candidacy here that bears the observed token cannot use the
// fence. r.mu is held.
func (r *resource) faultyLocked(incarnation string) bool {
	for c := range r.mu.loops {
		if c.incarnation == incarnation && c.Status().Fault != nil {
			return true
		}
	}
	return false
}

// followLocked follows who leads, and returns it. r.mu is held.
func (r *resource) followLocked(now time.Duration) leader {
	who := r.leaderLocked()
	if who != leaderUnknown {
		r.mu.follow(who.leads(), now)
	}
	return who
}

// candidacyStates are what the states of a resource's candidacies say about its own.
type candidacyStates struct {
	fault   error // why one of them cannot lead, nil if none has such a fault
	waiting bool  // one of them waits for the lease, and no order keeps it from leading
	idle    bool  // one of them asks for the lead when its worker writes
	// frozen says which worker does not send the heartbeats that it has promised, nil if all do.
	frozen error
	// barred is the order that keeps one of them from leading, nil if none does.
	barred error
	// unconfirmed is since when the lease that one of them holds is no longer confirmed; 0
	// if that is not so. why says why.
	unconfirmed time.Duration
	why         error
	// unserved says how the lease service keeps one that waits from the lease, nil if it does not.
	unserved error
	// ungranted says why the last grant to one of them failed, nil if someone was granted an epoch since.
	ungranted error
	// obstructed: it is because of something that is still there, and would block the next grant too.
	obstructed bool
}

// servedWithin is how long the lease service may fail to serve a candidacy before the state of the resource says so.
const servedWithin = 5 * time.Second

// candidacyStatesLocked collects the states of all candidacies. r.mu is held.
func (r *resource) candidacyStatesLocked(now time.Duration) (all candidacyStates) {
	for c := range r.mu.loops {
		if c.fault != nil && c.lives() {
			all.fault = c.fault
		}
		if err := c.ungrantedLocked(); err != nil && c.lives() {
			all.ungranted = fmt.Errorf("nobody is granted an epoch: %w", err)
			all.obstructed = all.obstructed || c.requests.has(requestUnblock)
		}
		switch c.campaign(r.mu.observation.State) {
		case fencing.CandidateWaiting:
			all.waiting = true
			if t := c.trouble(r.provider.Source(), false, now); t != nil && c.unserved != nil && now-c.unansweredSince >= servedWithin {
				all.unserved = fmt.Errorf("nobody is given the lease: %s", t.Problem)
			}
		case fencing.CandidateBarred:
			all.barred = c.barred
		case fencing.CandidateFrozen:
			if c.campaigns() {
				all.frozen = fmt.Errorf("worker %s does not send the heartbeats that it has promised", fencing.ASCII(c.worker))
			}
		case fencing.CandidateIdle:
			all.idle = all.idle || c.campaigns()
		}
		if c.held.lease != nil && c.held.granted && now >= c.held.trusted {
			all.unconfirmed, all.why = c.held.trusted, errUnconfirmed
			if t := c.trouble(r.provider.Source(), r.mu.unreached, now); t != nil {
				all.why = fmt.Errorf("the lease is not confirmed: %s", t.Problem)
			}
		}
	}
	return all
}

// resourceState is the state of a resource at one moment.
type resourceState struct {
	state State
	since time.Duration // when the state began; 0 if that is not known
	until time.Duration // until when the lease is confirmed; 0 if that is not known
	why   error         // why the state is Unknown or Blocked, and in some cases why it is Electing
}

// stateLocked returns the state of the resource. r.mu is held.
func (r *resource) stateLocked(now time.Duration) resourceState {
	all := r.candidacyStatesLocked(now)
	switch who := r.leaderLocked(); {
	case who == leaderHere:
		return resourceState{state: Led, since: r.mu.ledSince, until: r.mu.holder.termLocked().TrustedUntil}
	case who == leaderElsewhere:
		return r.elsewhereState(now)
	case r.lostLocked():
		return r.leaderlessState(Blocked, r.mu.lost)
	case all.fault != nil:
		return r.leaderlessState(Blocked, all.fault)
	case r.mu.unusable != nil:
		return r.leaderlessState(Blocked, r.mu.unusable)
	case r.mu.inForce.Paused:
		return r.leaderlessState(Paused, nil)
	case all.unconfirmed != 0:
		return resourceState{state: Unknown, since: all.unconfirmed, why: all.why}
	case r.mu.watchErr != nil:
		return resourceState{state: Unknown, since: r.mu.failingSince, why: r.mu.watchErr}
	case r.mu.unreached && len(r.mu.loops) > 0: // otherwise no one follows whether it does
		return r.leaderlessState(Unknown, errUnreached)
	case r.mu.holder == nil && r.grantedElsewhereLocked(): // and the grant is unconfirmed
		return r.leaderlessState(Unknown, ErrUncertainGrant)
	case r.offerLocked().IsActive(now):
		state := r.leaderlessState(Handover, nil)
		state.since = max(state.since, min(r.offerLocked().Begins, now))
		return state
	case all.ungranted != nil && (all.waiting || all.obstructed || r.mu.holder != nil || r.mu.observation.State == elector.Held):
		return r.leaderlessState(Blocked, all.ungranted)
	case r.mu.holder == nil && r.mu.observation.State == elector.Held && !r.isOwnLocked(r.mu.observation.Incarnation):
		return r.leaderlessState(Electing, errUngranted)
	case r.mu.holder != nil, r.mu.observation.State == elector.Held:
		return r.leaderlessState(Electing, nil)
	case all.waiting && all.unserved != nil:
		return r.leaderlessState(Blocked, all.unserved)
	case all.waiting:
		return r.leaderlessState(Electing, nil)
	case who == leaderUnknown:
		return resourceState{why: errUnseen}
	case all.idle:
		return r.leaderlessState(Idle, nil)
	case all.frozen != nil:
		return r.leaderlessState(Blocked, all.frozen)
	case all.barred != nil:
		return r.leaderlessState(Blocked, all.barred)
	default:
		return resourceState{state: Absent, since: max(r.mu.freeSince, r.mu.leaderlessSince, r.mu.resumed)}
	}
}

// leaderlessState is the state of a resource that no one leads. r.mu is held.
func (r *resource) leaderlessState(s State, why error) resourceState {
	since := r.mu.wantedSince()
	switch s {
	case Paused:
		since = cmp.Or(r.mu.pausedSince, r.mu.leaderlessSince)
	case Idle:
		since = max(r.mu.leaderlessSince, r.mu.resumed)
	}
	return resourceState{state: s, since: since, why: why}
}

// elsewhereState returns the state of a resource that a worker at another proxy leads.
// Providers that say until when a lease is confirmed look again at that time, so that soon
// afterwards the answer is overdue. r.mu is held.
func (r *resource) elsewhereState(now time.Duration) resourceState {
	led := resourceState{state: Led, since: r.mu.ledSince}
	p, ok := r.provider.(elector.Expirer)
	if !ok {
		return led
	}
	switch led.until = p.ConfirmedUntil(r.key.name); {
	case led.until == 0 || now < led.until:
		return led
	case now < led.until+r.settings().callTimeout():
		led.until = now
		return led
	default:
		return resourceState{state: Unknown, since: led.until, why: errUnconfirmed}
	}
}
