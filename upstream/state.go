package upstream

import "fmt"

// State is what a host is, in a word.
type State string

// The states of a host.
const (
	Unknown     State = "unknown" // not looked at yet, or not since there is a newer primary
	Unreachable State = "unreachable"
	OtherSystem State = "other_system" // it belongs to another cluster of servers
	SameServer  State = "same_server"  // it is another host of the list, under another name
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
	return []State{Unknown, Unreachable, OtherSystem, SameServer, Standby, FormerPrimary, SecondPrimary, ReadOnly, IsPrimary}
}

// wrong reports whether a host in that state must not continue as it is.
func (s State) wrong() bool {
	switch s {
	case OtherSystem, SameServer, FormerPrimary, SecondPrimary:
		return true
	}
	return false
}

// picture is what is known of all hosts.
type picture struct {
	hosts   []Host
	found   []*Finding
	past    *history
	chosen  int  // the host that is, or was last, the primary; none before the first
	serving bool // it accepts writes
}

// describe says what a host is, in a word, and in a few with a verb.
func (p picture) describe(i int) (State, string) {
	f := p.found[i]
	switch {
	case f == nil:
		return Unknown, "was not looked at yet"
	case f.Err != nil:
		return Unreachable, fmt.Sprintf("cannot be looked at: %v", f.Err)
	case p.past.system != "" && f.System != p.past.system:
		return OtherSystem, fmt.Sprintf("belongs to another database system (%s) than the primary in use (%s): remove the wrong one from upstream.address, or restart Fencepost if all hosts have been replaced",
			f.System, p.past.system)
	}
	if j := p.sameServerAs(i); j != none {
		return SameServer, fmt.Sprintf("is the same server as %s: name each server once in upstream.address", p.hosts[j].Address)
	}
	l := p.past.newest(f.System)
	switch {
	case f.Standby:
		return Standby, "is a standby"
	case l != nil && f.Timeline < l.timeline && l.stale != nil && l.stale[i] == f:
		return Unknown, fmt.Sprintf("was not looked at since timeline %d was seen at %s", l.timeline, p.hosts[l.seen].Address)
	case l != nil && f.Timeline < l.timeline && f.ReadOnly:
		return ReadOnly, "is a former primary, read-only " + p.newerTimelineText(f, l)
	case l != nil && f.Timeline < l.timeline:
		return FormerPrimary, "is a former primary that still accepts writes " + p.newerTimelineText(f, l)
	case f.ReadOnly:
		return ReadOnly, "is read-only (default_transaction_read_only)"
	case p.chosen != none && p.chosen != i, !p.past.mayBePrimary(i, p.found):
		return SecondPrimary, p.secondPrimaryText(i, l)
	default:
		return IsPrimary, "is the primary"
	}
}

// sameServerAs returns the host that is to be used for the same server, none if there is no other, or
// if it is this one.
func (p picture) sameServerAs(i int) int {
	for j, g := range p.found {
		if j != i && g.same(p.found[i].Server) && p.chosen != i && (j == p.chosen || j < i) {
			return j
		}
	}
	return none
}

// newerTimelineText says of a former primary which timeline is newer, and what to do.
func (p picture) newerTimelineText(f *Finding, l *line) string {
	text := fmt.Sprintf("(timeline %d, but %d was seen at %s): ", f.Timeline, l.timeline, p.hosts[l.seen].Address)
	if p.serving {
		return text + "stop it and make it a standby"
	}
	return fmt.Sprintf("%sstart the primary of timeline %d, and make this one its standby; to go back to this one, see docs/incidents.md", text, l.timeline)
}

func (p picture) secondPrimaryText(i int, l *line) string {
	switch {
	case l == nil || l.owner == none || l.owner == i:
		return "accepts writes too, like the primary: stop one of them"
	case p.serving:
		return fmt.Sprintf("accepts writes too, on the same timeline as %s: stop one of them", p.hosts[l.owner].Address)
	default:
		return fmt.Sprintf("accepts writes on the timeline of %s, which wrote there first: start that one, and make this one its standby; to go on with this one, see docs/incidents.md",
			p.hosts[l.owner].Address)
	}
}
