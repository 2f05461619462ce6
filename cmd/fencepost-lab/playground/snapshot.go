package playground

import (
	"cmp"
	"fmt"
	"slices"
)

// State returns what the page shows now.
func (l *Lab) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	seen := l.mu.seen
	st := State{
		Scene: l.mu.scene.def.name, Algorithm: l.mu.scene.algorithm, Now: now, Steps: l.mu.scene.view(),
		Lease: seen.lease, Ledger: orEmpty(seen.ledger), Notes: orEmpty(seen.notes), Totals: seen.totals, Problem: cmp.Or(l.mu.problem, l.mu.blind),
		Lines: newest(l.mu.lines, shownLines), Audit: newest(l.mu.audit, shownAudit), Marks: []Mark{}, Workers: []Worker{}, Deeds: []Deed{},
	}
	st.Lease.Kind = "lease"
	if l.mu.scene.def.elects {
		st.Lease.Kind = "anyone"
	}
	st.Totals.Refused = l.mu.refused
	for _, m := range append(slices.Clone(seen.wrote), l.mu.refusals...) {
		if now-m.At < shownMarks.Milliseconds() {
			st.Marks = append(st.Marks, m)
		}
	}
	for _, s := range l.mu.slots {
		st.Workers = append(st.Workers, l.viewLocked(s))
	}
	if len(l.mu.slots) > 0 {
		st.Deeds = l.deedsLocked()
	}
	return st
}

// viewLocked describes a worker.
func (l *Lab) viewLocked(s *slot) Worker {
	w := Worker{Name: s.name, ID: s.id, Process: "running", Cut: s.cut, Epoch: s.told.Epoch, Wrote: s.wrote, Refused: s.refused, LastError: s.trouble}
	switch {
	case !s.alive:
		w.Process = "stopped"
	case s.frozen:
		w.Process = "frozen"
	}
	w.Leads, w.Believes = s.told.Role == "leader", s.told.Role
	switch {
	case !s.alive:
		w.Leads, w.Epoch, w.Believes = false, 0, "not running"
	case l.mu.cluster != nil:
		w.Leads, w.Believes = l.beliefLocked(s)
	case w.Leads:
		w.Believes = fmt.Sprintf("I lead, epoch %d", w.Epoch)
	case s.told.Role == "":
		w.Believes = "not connected"
	default:
		w.Believes = "I do not lead"
	}
	w.Deeds = deedsOf(s, l.mu.cluster != nil)
	return w
}

// beliefLocked returns what a node of the cluster believes.
func (l *Lab) beliefLocked(s *slot) (leads bool, believes string) {
	v := l.mu.cluster.Views()[s.node-1]
	switch {
	case v.Leads():
		return true, "I am elected: I lead"
	case v.Electing:
		return false, "an election is on"
	case v.Leader == 0:
		return false, "I know of no leader"
	default:
		return false, nodeName(v.Leader) + " leads"
	}
}

// deedsOf returns what a visitor can do to a worker.
func deedsOf(s *slot, elects bool) []Deed {
	var deeds []Deed
	add := func(do, label string) { deeds = append(deeds, Deed{Do: do, Who: s.name, Label: label}) }
	if !s.alive {
		add("start", "Start")
		return deeds
	}
	if s.frozen {
		add("thaw", "Thaw")
	} else {
		add("freeze", "Freeze")
	}
	add("kill", "Kill")
	switch {
	case elects && s.cut:
		add("join", "Move back")
	case elects:
		add("cut", "Move over")
	case s.cut:
		add("join", "Reconnect")
	default:
		add("cut", "Cut off")
	}
	return deeds
}

// deedsLocked returns what a visitor can do to all workers.
func (l *Lab) deedsLocked() []Deed {
	cut, dead := false, false
	for _, s := range l.mu.slots {
		cut, dead = cut || s.cut, dead || !s.alive
	}
	deeds := []Deed{}
	if dead {
		deeds = append(deeds, Deed{Do: "start", Label: "Start all"})
	}
	if l.mu.cluster != nil && !cut {
		deeds = append(deeds, Deed{Do: "split", Label: "Partition the network"})
	}
	if cut {
		deeds = append(deeds, Deed{Do: "heal", Label: "Heal the network"})
	}
	return deeds
}

// newest returns the last n in reverse order.
func newest[T any](all []T, n int) []T {
	last := slices.Clone(all[max(0, len(all)-n):])
	slices.Reverse(last)
	return orEmpty(last)
}

// orEmpty returns a list that is [] in JSON, and not null.
func orEmpty[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
