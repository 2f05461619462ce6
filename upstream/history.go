package upstream

import "slices"

// history is what is remembered of the findings until now.
type history struct {
	system string           // of the last primary, "" before the first
	lines  map[string]*line // by system
	looked bool             // each host was looked at
	// standbys are the hosts that were seen as standbys, with their systems, and have owned no
	// timeline of that system since.
	standbys map[int]string
}

// line is the newest timeline of a system.
//
// Two standbys that are promoted independently of each other may begin timelines of one number,
// which are different histories all the same. So a timeline has an owner, the host that was
// first seen writing in it, and another host that writes in it is no successor. Only a server
// without standbys moves: its data may be started at another host, or it may get another name.
// Such a host was not seen as a standby before, nor writing while the owner does.
type line struct {
	timeline uint32
	seen     int          // the host at which it was seen first
	stale    []*Finding   // by host: what was known when it was seen first; nil if that was the first look
	owner    int          // none: no one was seen writing, or the owner has become a standby
	server   string       // of the owner, as in Finding
	rivals   map[int]bool // hosts that have written in it while the owner did
}

func newHistory() *history { return &history{lines: map[string]*line{}, standbys: map[int]string{}} }

// newest returns the newest timeline of a system, nil if there is none.
func (h *history) newest(system string) *line { return h.lines[system] }

// mayBePrimary reports whether a host that answers and is not a standby may be the primary.
func (h *history) mayBePrimary(host int, found []*Finding) bool {
	f := found[host]
	if h.system != "" && f.System != h.system {
		return false
	}
	l := h.newest(f.System)
	switch {
	case l == nil:
		return true
	case f.Timeline < l.timeline:
		return false
	case l.owner == none, l.owner == host, f.same(l.server):
		return true
	default:
		return !l.rivals[host] && found[l.owner].Err != nil
	}
}

// setPrimary remembers that a host is the primary.
func (h *history) setPrimary(host int, f *Finding) {
	h.system = f.System
	if l := h.newest(f.System); l != nil {
		h.setOwner(l, host, f)
	}
}

func (h *history) setOwner(l *line, host int, f *Finding) {
	l.owner, l.server = host, f.Server
	if h.standbys[host] == f.System {
		delete(h.standbys, host)
	}
}

// learn takes the last finding for each host, nil for one that was not looked at yet.
func (h *history) learn(found []*Finding) {
	complete := true
	for i, f := range found {
		switch {
		case f == nil:
			complete = false
		case f.Err == nil:
			if f.Standby {
				h.standbys[i] = f.System
			}
			if l := h.newest(f.System); l == nil || f.Timeline > l.timeline {
				h.lines[f.System] = &line{timeline: f.Timeline, seen: i, owner: none, rivals: map[int]bool{}}
				if h.looked {
					h.lines[f.System].stale = slices.Clone(found)
				}
			}
		}
	}
	if !complete {
		return // who wrote first is decided by the order of the hosts, not by that of the looks
	}
	h.looked = true
	for system, l := range h.lines {
		h.learnLine(system, l, found)
	}
}

// learnLine takes the same findings for one timeline.
func (h *history) learnLine(system string, l *line, found []*Finding) {
	if l.owner != none && found[l.owner].Err == nil && found[l.owner].Standby {
		l.owner, l.server, l.rivals = none, "", map[int]bool{}
	}
	for i, f := range found {
		if !f.writes() || f.System != system || f.Timeline < l.timeline {
			continue
		}
		switch {
		case l.owner == none, l.owner == i:
			h.setOwner(l, i, f)
		case f.same(l.server):
			// it has two names
		case h.standbys[i] == system, otherPrimary(found[l.owner], f):
			l.rivals[i] = true
		}
	}
}

// otherPrimary reports whether the owner of a timeline was found to be a primary in it by a look
// that began after another host had been found writing. The former place of a server that has
// moved is not: an old finding may say that it is a primary, but no later one.
func otherPrimary(owner, other *Finding) bool {
	return owner.Err == nil && !owner.Standby && owner.System == other.System && owner.Timeline == other.Timeline && !owner.began.Before(other.ended)
}
