package proxy

import (
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

func (m *machine) parseMessage(body []byte, n, avail int, p *plan) need {
	name, rest, ok := cstring(body)
	sql, types, ok2 := cstring(rest)
	if !ok || !ok2 {
		return m.unreadable(parse, n, avail, p)
	}
	m.carry()
	s := m.newStatement(sql)
	if s.known && unguarded(&s.info) && declaresTypes(types) {
		// Its Bind makes values of those types, which may run a user's code.
		s.known = false
	}
	if (m.provenReads || m.version < readOnlyHolds) && !namesUserType(types) {
		s.proof = m.proofOf(sql)
	}
	if m.wantsFresh(s) {
		if need := m.syncBefore(p); need != needNothing {
			return need
		}
	}
	// Even a Parse that fails drops the unnamed statement. Where nobody knows yet
	// whether the transaction has failed, and the check would with it, that comes
	// first.
	m.reparses = len(name) == 0 && m.unsure
	need := m.guardExtended(s, p)
	m.reparses = false
	if need != needNothing {
		return need
	}
	m.snapshots = m.snapshots || takesSnapshot(s)
	m.hidden = m.hidden || !s.known || len(name) > 0 && (frees(&s.info) || s.info.Kind == fencing.Alone && s.info.EndsTx)
	switch old := m.stmts[string(name)]; {
	case len(name) == 0:
		m.unnamed = s
	case opaque(name):
	case old != nil && !old.lost:
		// Taken already, as far as is known: this Parse will fail, or the name
		// was freed in a way the proxy did not see. Which one is unknown.
		m.stmts[string(name)] = unknownStatement
	default:
		m.stmts[string(name)] = s
	}
	m.owed.push(parse, false).stmt = s
	m.open = true
	p.forward(n, n+avail)
	return needNothing
}

// takesSnapshot reports whether to parse or bind s is a transaction's first
// query, behind which its isolation cannot be changed.
func takesSnapshot(s *statement) bool {
	if !s.known {
		return true
	}
	for _, word := range []string{"select", "insert", "update", "delete", "merge", "with", "values", "table", "explain", "declare"} {
		if foldPrefix(strings.TrimLeft(s.text, "( \t\r\n"), word) {
			return true
		}
	}
	return false
}

// wantsFresh reports whether s would notice a check of ours that was executed in
// this batch, before the client has executed or bound anything.
func (m *machine) wantsFresh(s *statement) bool {
	if !m.ours || m.ran || m.inTx || !m.notices(s) {
		return false
	}
	for _, b := range m.portals {
		if b.batch == m.batch {
			return false
		}
	}
	return true
}

// notices reports whether Postgres may do otherwise with s behind an executed
// statement than in front of all.
func (m *machine) notices(s *statement) bool {
	switch {
	case !s.known, s.info.Kind == fencing.Alone, s.info.Kind == fencing.Discard:
		return true
	default:
		return s.info.Isolation && !m.snapshots || m.version >= 18 && onlyInBlock(s)
	}
}

// named returns what the proxy knows of a prepared statement.
func (m *machine) named(name []byte) *statement {
	s := m.unnamed
	if len(name) > 0 {
		s = m.stmts[string(name)]
	}
	if s == nil || s.lost || !s.confirmed && s.batch != m.batch {
		return unknownStatement
	}
	return s
}

func (m *machine) bindMessage(body []byte, n, avail int, p *plan) need {
	portal, name, ok := bindNames(body)
	if !ok {
		return m.unreadable(bind, n, avail, p)
	}
	m.carry()
	s := m.named(name)
	if m.wantsFresh(s) {
		if need := m.syncBefore(p); need != needNothing {
			return need
		}
	}
	if need := m.guardExtended(s, p); need != needNothing {
		return need
	}
	m.snapshots = m.snapshots || takesSnapshot(s)
	m.portals[string(portal)] = binding{s, m.batch}
	m.owed.push(bind, false)
	m.open = true
	p.forward(n, n+avail)
	return needNothing
}

func (m *machine) describeMessage(body []byte, n, avail int, p *plan) need {
	m.carry()
	if len(body) > 1 && body[0] == 'S' {
		name, _, _ := cstring(body[1:])
		if need := m.guardExtended(m.named(name), p); need != needNothing {
			return need
		}
	}
	m.owed.push(describe, false)
	m.open = true
	p.forward(n, n+avail)
	return needNothing
}

func (m *machine) executeMessage(body []byte, n, avail int, p *plan) need {
	portal, _, ok := cstring(body)
	if !ok {
		return m.unreadable(execute, n, avail, p)
	}
	m.carry()
	bound := m.portals[string(portal)]
	s := bound.stmt
	if s == nil {
		s = cursorStatement
	}
	// A Bind of an earlier batch may have failed, or its portal been replaced,
	// unseen: the server may run another statement, one that ends a transaction.
	sure := bound.batch == m.batch && bound.stmt != nil && !opaque(portal)
	if need := m.guardExtended(s, p); need != needNothing {
		return need
	}
	st := m.standing()
	if m.shows(s) {
		if need := m.askFirst(st); need != needNothing {
			return need
		}
		m.setExtended(s, st, p)
	}
	if s.info.MentionsKeptText {
		m.closeChecks(p)
	}
	e := m.owed.push(execute, false)
	e.stmt, m.data = s, false
	m.open, m.ran, m.unsynced = true, m.ran || !s.empty, m.unsynced || !s.empty
	if sure {
		m.tellBy(e, s, st)
	}
	m.executed(s)
	if !sure {
		m.cover, m.failed, m.inTx = uncovered, false, false
	}
	p.forward(n, n+avail)
	return needNothing
}

// cursorStatement stands for a portal that no Bind of the client's made: a
// cursor of SQL, or none at all.
var cursorStatement = &statement{known: true, confirmed: true, class: isRead}

func (m *machine) closeMessage(body []byte) {
	m.owed.push(closing, false)
	m.open = true
	if len(body) < 2 {
		return
	}
	name, _, _ := cstring(body[1:])
	switch {
	case body[0] == 'P':
		delete(m.portals, string(name))
	case len(name) == 0:
		m.unnamed = unknownStatement
	default:
		m.freed(string(name))
	}
}
