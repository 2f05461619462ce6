package upstream

import "time"

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
	// Timeline is that in which a primary writes, or the newest that a standby is known to
	// have.
	Timeline uint32
	// Server identifies the server until its next restart, whatever address leads to it. ""
	// is unknown.
	Server string
	// Standbys is synchronous_standby_names.
	Standbys string

	began, ended time.Time // of the look
}

// writes reports whether the host is a primary that accepts writes.
func (f *Finding) writes() bool { return f.Err == nil && !f.Standby && !f.ReadOnly }

// same reports whether both were found at one server.
func (f *Finding) same(server string) bool {
	return f != nil && f.Err == nil && f.Server != "" && f.Server == server
}

// none means no host.
const none = -1

// choose returns which host is the primary. current is the one that was before, or none.
// found is the last finding for each host, nil for a host that was not looked at yet; past has
// learned it.
//
// A host is not chosen before each has been looked at once: another one may be newer.
func choose(current int, past *history, found []*Finding) int {
	best := none
	for i, f := range found {
		if f == nil {
			return none
		}
		if f.Err != nil || f.Standby || !past.mayBePrimary(i, found) {
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

// newer reports whether f is to be preferred to g. Neither is a standby, and each has the
// newest timeline of its system. Hosts of two systems are not compared: while nothing is known
// about the past, the first in the list is right.
func newer(f, g *Finding) bool {
	return f.System == g.System && g.ReadOnly && !f.ReadOnly
}
