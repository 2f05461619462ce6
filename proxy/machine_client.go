package proxy

import (
	"errors"
	"strings"
	"unsafe"

	"github.com/fencepost/fencepost/fencing"
)

// errCopyFlood says that a client sent more Syncs inside COPY data, where they
// are ignored, than any client has reason to.
var errCopyFlood = errors.New("too many messages inside COPY data")

// client takes bytes of the client, as many as it can, and says in p what to
// send to the server. It stops at n when it needs something; the shell sends
// the plan, meets the need, and goes on at n.
func (m *machine) client(in []byte, p *plan) (n int, need need, err error) {
	defer caught(p, &err)
	m.scratch = m.scratch[:0]
	if m.mute {
		return len(in), needNothing, nil
	}
	if m.repeat.discard && len(in) > 0 {
		return 0, needRoom, nil
	}
	if m.repeat.due {
		if need := m.sendAgain(p); need != needNothing {
			return 0, need, nil
		}
	}
	for n < len(in) {
		if m.skipUp > 0 {
			k := min(m.skipUp, len(in)-n)
			if !m.dropUp {
				p.forward(n, n+k)
			}
			m.skipUp -= k
			n += k
			continue
		}
		m.dropUp = false
		if m.owed.len() >= maxOwed {
			if m.copyIn { // the server answers nothing before the data ends
				return n, needNothing, errCopyFlood
			}
			return n, needRoom, nil
		}
		f, ok, err := clientFrame(in[n:])
		if err != nil {
			// The server ends the connection over that header, in its own words.
			p.forward(n, n+headerLen)
			m.mute = true
			return len(in), needNothing, nil
		}
		if !ok {
			m.wants = headerLen
			return n, needMore, nil
		}
		avail := min(f.size, len(in)-n)
		if avail < f.size && !m.startable(f.typ, in[n+headerLen:]) {
			m.wants = f.size
			return n, needMore, nil
		}
		need := m.message(f, n, avail, p)
		if need != needNothing {
			return n, need, nil
		}
		m.settled()
		m.repeat.keep(f, in[n:n+avail])
		m.skipUp = f.size - avail
		n += avail
		if f.typ == 'X' {
			return n, needTerminal, nil
		}
	}
	return n, needNothing, nil
}

// startable reports whether a message can be begun with the part of its body
// that is there.
func (m *machine) startable(typ byte, body []byte) bool {
	switch typ {
	case 'd', 'F':
		return true
	case 'B':
		_, _, ok := bindNames(body)
		return ok
	default:
		return false
	}
}

// bindNames reads the portal and the statement that a Bind names.
func bindNames(body []byte) (portal, stmt []byte, ok bool) {
	portal, rest, ok := cstring(body)
	if !ok {
		return nil, nil, false
	}
	stmt, _, ok = cstring(rest)
	return portal, stmt, ok
}

// message handles one client message of which in[n:n+avail] is there.
func (m *machine) message(f frame, n, avail int, p *plan) need {
	body := p.in[n+headerLen : n+avail]
	if m.copyIn && m.copyMessage(f.typ, n, avail, p) {
		return needNothing
	}
	if m.skipping && m.quiet() && f.typ != 'S' {
		// An error ended the batch and its Sync was not sent yet: the server
		// reads this message, and neither runs nor answers it.
		p.forward(n, n+avail)
		return needNothing
	}
	switch f.typ {
	case 'Q':
		return m.queryMessage(body, n, avail, p)
	case 'P':
		return m.parseMessage(body, n, avail, p)
	case 'B':
		return m.bindMessage(body, n, avail, p)
	case 'D':
		return m.describeMessage(body, n, avail, p)
	case 'E':
		return m.executeMessage(body, n, avail, p)
	case 'F':
		return m.functionMessage(n, avail, p)
	case 'C':
		m.closeMessage(body)
	case 'd':
		m.data = true
	case 'S':
		m.owed.push(syncing, false).early = !m.data
		m.boundary()
		m.loose, m.unsynced = false, false
	case 'H':
		if len(body) > 0 {
			return m.unreadable(closing, n, avail, p)
		}
	case 'c', 'f':
		// For a COPY whose start the server has not answered yet; else ignored.
		if !m.quiet() {
			m.owed.push(copyEnd, false)
		}
	}
	p.forward(n, n+avail)
	return needNothing
}

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
	e := m.owed.push(execute, false)
	e.stmt, m.data = s, false
	m.open, m.ran, m.unsynced = true, true, true
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

// executed follows what a statement that was sent does to the session.
func (m *machine) executed(s *statement) {
	switch {
	case !s.known, s.info.EndsTx, s.info.EndsSavepoint, s.info.Kind == fencing.Alone, s.info.Kind == fencing.Discard:
		m.cover, m.failed, m.inTx = uncovered, false, false
	case s.info.UnsetsReadOnly && m.cover == readCovered:
		m.cover = uncovered
	}
	if s.known && (s.info.Kind == fencing.Commit || s.info.Kind == fencing.Rollback) && !s.info.Chain {
		m.ran, m.ours = false, false // what was executed ended with it
	}
	m.bare = m.bare && s.info.Kind != fencing.Begin
	m.forget(s)
}

// forget follows DISCARD and DEALLOCATE: the server's prepared statements may
// be gone, ours among them, and their names given to others.
func (m *machine) forget(s *statement) {
	switch {
	case !s.known && !m.hidden:
		return // prepared by SQL, so it frees no names
	case s.known && s.info.Kind == fencing.Deallocate && s.info.Name != "":
		m.freed(s.info.Name)
	case s.known && s.info.Kind == fencing.Alone && s.info.EndsTx:
		m.mayForget(s.text)
	case !s.known, frees(&s.info), s.info.Kind == fencing.ByMessage && m.hidden:
		m.forgetAll()
	}
}

// mayForget follows a DO or a CALL, which may hide a DEALLOCATE ALL: our
// statements are prepared again, which costs less than the rest of it. The
// client's are forgotten only if it says so.
func (m *machine) mayForget(text string) {
	if mentionsDeallocate(text) {
		m.forgetAll()
	} else {
		m.checks.rename()
	}
}

func mentionsDeallocate(sql string) bool {
	const word = "deallocate"
	for i := 0; i+len(word) <= len(sql); i++ {
		if foldPrefix(sql[i:], word) {
			return true
		}
	}
	return false
}

func (m *machine) forgetAll() {
	clear(m.stmts)
	m.checks.rename()
}

// freed forgets a prepared statement that is gone from the server.
func (m *machine) freed(name string) {
	delete(m.stmts, name)
	if name == m.checks.checkName || name == m.checks.frontName || name == m.checks.readName {
		m.checks.rename()
		m.checks.replaced = m.checks.replaced[:0] // the names are the client's now
	}
}

// frees reports whether s frees names of prepared statements.
func frees(s *fencing.Statement) bool {
	return s.Kind == fencing.Deallocate || s.Kind == fencing.Discard && (s.Name == "" || s.Name == "all")
}

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

// functionMessage is the fast path call. Nothing of ours may stand in front of
// it (postgres.md A1), so outside a checked block it goes by the registry.
func (m *machine) functionMessage(n, avail int, p *plan) need {
	m.carry()
	if need := m.syncBefore(p); need != needNothing {
		return need
	}
	if m.mode != passing && !m.failed && m.cover != fullCovered {
		need, replaced := m.guardFunction(p)
		if need != needNothing {
			return need
		}
		if replaced {
			m.dropUp = true
			return needNothing
		}
	}
	m.owed.push(function, false)
	m.boundary()
	p.forward(n, n+avail)
	return needNothing
}

// unreadable forwards a message that the server will refuse as malformed.
func (m *machine) unreadable(k kind, n, avail int, p *plan) need {
	m.owed.push(k, false)
	m.open = true
	p.forward(n, n+avail)
	return needNothing
}

// view returns b as a string that shares its memory: for a question that is
// answered before b changes.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
