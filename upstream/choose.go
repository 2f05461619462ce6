package upstream

import "fmt"

// Finding is what one look at a host has found.
type Finding struct {
	// Err says that the host could not be looked at; the other fields are not set then,
	// except that Refused says that it does not let the control role log in, or is no
	// Postgres.
	Err     error
	Refused bool

	// Standby means that the host is in recovery, and ReadOnly, that its transactions are
	// read-only by default.
	Standby, ReadOnly bool
	// System is the system identifier, which a primary shares with its standbys.
	System string
	// Timeline is that in which the host writes, 0 for a standby.
	Timeline uint32
	// Standbys is synchronous_standby_names.
	Standbys string
}

// history is the newest primary that was seen.
type history struct {
	system   string // "" before the first
	timeline uint32
}

// admits reports whether a host that is not a standby may be the primary.
func (h history) admits(f *Finding) bool {
	return h.system == "" || f.System == h.system && f.Timeline >= h.timeline
}

// none means that no host is the primary.
const none = -1

// choose returns which host is the primary. current is the one that was before, or none.
// found is the last finding for each host, nil for a host that was not looked at yet.
//
// A host is not chosen before each has been looked at once: another one may be newer.
func choose(current int, past history, found []*Finding) int {
	best := none
	for i, f := range found {
		if f == nil {
			return none
		}
		if f.Err != nil || f.Standby || !past.admits(f) {
			continue
		}
		if best == none || newer(f, found[best]) || i == current && !newer(found[best], f) {
			best = i
		}
	}
	if best != none && found[best].ReadOnly {
		return none // an older primary is none either
	}
	return best
}

// newer reports whether f is to be preferred to g. Neither is a standby. Hosts of two systems
// are not compared: while nothing is known about the past, the first in the list is right.
func newer(f, g *Finding) bool {
	switch {
	case f.System != g.System:
		return false
	case f.Timeline != g.Timeline:
		return f.Timeline > g.Timeline
	default:
		return g.ReadOnly && !f.ReadOnly
	}
}

// State is what a host is, in a word.
type State string

// The states of a host.
const (
	Unknown     State = "unknown" // not looked at yet
	Unreachable State = "unreachable"
	OtherSystem State = "other_system" // it belongs to another cluster of servers
	Standby     State = "standby"
	// FormerPrimary and SecondPrimary accept writes, but are not the primary. The first has
	// an older timeline.
	FormerPrimary State = "former_primary"
	SecondPrimary State = "second_primary"
	ReadOnly      State = "read_only" // a primary that accepts no writes
	IsPrimary     State = "primary"
)

// States are all states.
func States() []State {
	return []State{Unknown, Unreachable, OtherSystem, Standby, FormerPrimary, SecondPrimary, ReadOnly, IsPrimary}
}

// describe says what a host is, in a word, and in a few with a verb. chosen says that it would be
// the primary if it accepts writes.
func describe(f *Finding, past history, chosen bool) (State, string) {
	switch {
	case f == nil:
		return Unknown, "was not looked at yet"
	case f.Err != nil:
		return Unreachable, fmt.Sprintf("cannot be looked at: %v", f.Err)
	case past.system != "" && f.System != past.system:
		return OtherSystem, fmt.Sprintf("belongs to another database system (%s, not %s): correct upstream.address, or restart Fencepost if all hosts have been replaced",
			f.System, past.system)
	case f.Standby:
		return Standby, "is a standby"
	case f.Timeline < past.timeline:
		return FormerPrimary, fmt.Sprintf("is a former primary that still accepts writes (timeline %d, but %d is known): stop it and make it a standby",
			f.Timeline, past.timeline)
	case f.ReadOnly:
		return ReadOnly, "is read-only (default_transaction_read_only)"
	case !chosen:
		return SecondPrimary, "accepts writes too, like the primary: stop one of them"
	default:
		return IsPrimary, "is the primary"
	}
}
