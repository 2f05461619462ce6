// Package status says what operators are shown of a resource: whether anyone leads it, since when, and if
// not, why. It decides by what a proxy knows, and asks no one.
package status

import (
	"errors"
	"slices"
)

// Why a state is what it is. Those of candidacies, of the fence and of the watch come with Known.
var (
	errUnconfirmed = errors.New("the lease is not confirmed: the lease service does not answer in time")
	errUnseen      = errors.New("the lease has not been read yet")
	errUngranted   = errors.New("the worker that holds the lease is not connected here, and has no epoch in this database yet: run fencepost status at its proxy; if no proxy holds the lease, ask the lease service who does")
	// ErrUncertainGrant is why a state is Unknown although the recorded leader holds the lease.
	ErrUncertainGrant = errors.New("the synchronous standbys have not confirmed the newest grant, so only the leader's own proxy knows whether it leads")
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
