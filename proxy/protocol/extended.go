package protocol

import (
	"unicode/utf8"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

func (m *Machine) parseMessage(body []byte, n, avail int, p *gate.Plan) NeedKind {
	name, rest, ok := wire.CString(body)
	sql, types, ok2 := wire.CString(rest)
	if !ok || !ok2 {
		return m.unreadable(parse, 'P', n, avail, p)
	}
	m.beginBatch()
	m.batch.untouched = 0
	s := m.newStatement(sql)
	s.name = string(name)
	if _, harmless := m.txn.Harmless(&s.info, m.config.Version); s.known && harmless && declaresTypes(types) {
		// Its Bind makes values of those types, which may run a user's code.
		s.known, s.guess = false, sqltext.GuessOf(sql)
	}
	if (m.config.ProvenReads || !m.config.Version.KeepsReadOnly()) && !namesUserType(types) {
		s.provable = m.provableText(s, sql, false)
	}
	if m.wantsFresh(s) {
		if need := m.syncBefore(p); need != NeedNothing {
			return need
		}
	}
	// Even a Parse that fails drops the unnamed statement, unless its text cannot be
	// converted. Where nobody knows yet whether the transaction has failed, and the check
	// would with it, that comes first.
	reparses := len(name) == 0 && m.txn.Uncertain() && (!m.settings.utf8 || utf8.Valid(sql))
	r, need := m.injectMessage(s, reparses, p)
	if need != NeedNothing {
		return need
	}
	m.batch.snapshot = m.batch.snapshot || s.snapshot
	m.names.define(name, s)
	m.push(parse, fromClient).stmt = s
	s.pushed = m.pendingReplies.pushed
	m.pendingReplies.texts += len(s.text)
	m.batch.sent()
	m.gate.Pass(p, n, n+avail, 0, r)
	return NeedNothing
}

// wantsFresh reports whether s would notice a check that was executed in this batch,
// before the client has executed or bound anything.
func (m *Machine) wantsFresh(s *statement) bool {
	return m.batch.onlyChecked() && m.noticesCheck(s)
}

// noticesCheck is wantsFresh where a check was executed.
func (m *Machine) noticesCheck(s *statement) bool {
	return m.inHand.verdict == noVerdict && m.txn.State() != gate.InBlock && m.notices(s) && !m.names.portals.boundIn(m.batch.id)
}

// notices reports whether Postgres may treat s differently after an executed statement
// than where nothing precedes it.
func (m *Machine) notices(s *statement) bool {
	switch {
	case !s.known, s.info.Kind == sqltext.NonTransactional, discardsAll(&s.info):
		return true
	case m.batch.snapshot && s.info.SetsIsolation: // it fails, unless a Sync ends the transaction of the snapshot
		return false
	default:
		return s.info.Isolation && !m.batch.snapshot || m.config.Version.ExecuteOpensBlock() && s.requiresBlock()
	}
}

// named returns what the proxy knows of a prepared statement.
func (m *Machine) named(name []byte) *statement { return m.names.statement(name, m.batch.id) }

func (m *Machine) bindMessage(body []byte, n, avail, more int, p *gate.Plan) NeedKind {
	portal, name, ok := bindNames(body)
	if !ok {
		return m.unreadable(bind, 'B', n, avail, p)
	}
	m.beginBatch()
	s, rest := m.named(name), body[len(portal)+len(name)+2:]
	if m.wantsFresh(s) {
		if need := m.syncBefore(p); need != NeedNothing {
			return need
		}
	}
	again := m.restates(s, name) // a Sync of Fencepost's counts: it runs deferred triggers
	if again && !(more == 0 && hasNoParameters(rest) && m.restatable(s)) {
		s, again = m.names.unknown(name), false
		if m.wantsFresh(s) {
			if need := m.syncBefore(p); need != NeedNothing {
				return need
			}
		}
	}
	r, need := m.injectMessage(s, false, p)
	if need != NeedNothing {
		return need
	}
	if s.snapshot || s.unknown() {
		m.batch.snapshot = true
		m.chain.has(hadWork) // the portal reads by this snapshot, whenever it is executed
	}
	m.names.portals.bound++
	m.batch.untouched = m.names.portals.bound
	m.names.bind(portal, name, binding{s, m.batch.id, m.epochs.number, m.names.portals.bound})
	if again {
		m.restate('B', body[:len(portal)+1], s, rest, r, p)
		return NeedNothing
	}
	m.push(bind, fromClient)
	m.batch.sent()
	m.gate.Pass(p, n, n+avail, more, r)
	return NeedNothing
}

func (m *Machine) describeMessage(body []byte, n, avail int, p *gate.Plan) NeedKind {
	m.beginBatch()
	r, ok := gate.Inert('D', body)
	if !ok {
		m.batch.untouched = 0
		name, rest, _ := wire.CString(body[1:])
		s := m.named(name)
		again := m.restates(s, name)
		if again && !m.restatable(s) {
			s, again = m.names.unknown(name), false
		}
		var need NeedKind
		if r, need = m.injectMessage(s, false, p); need != NeedNothing {
			return need
		}
		if again {
			m.restate('D', body[:1], s, rest, r, p)
			return NeedNothing
		}
	}
	m.push(describe, fromClient)
	m.batch.sent()
	m.gate.Pass(p, n, n+avail, 0, r)
	return NeedNothing
}

func (m *Machine) executeMessage(body []byte, n, avail int, p *gate.Plan) NeedKind {
	portal, _, ok := wire.CString(body)
	if !ok {
		return m.unreadable(execute, 'E', n, avail, p)
	}
	m.beginBatch()
	bound := m.names.portals.get(portal)
	s := bound.stmt
	if s == nil {
		s = cursorStatement
	}
	// A Bind of an earlier batch may have failed, or its portal been replaced,
	// unseen: the server may run another statement, one that ends a transaction.
	// SQL can close a portal that has a name, and declare a cursor of that name.
	sure := bound.batch == m.batch.id && bound.stmt != nil && !opaque(portal) && (len(portal) == 0 || bound.number == m.batch.untouched)
	if bound.number != m.batch.untouched { // what runs cannot replace its own portal
		m.batch.untouched = 0
	}
	if !sure && m.names.portals.choosers > 0 {
		s = unknownChooser
	}
	if !sure && m.config.Discards && (!m.leads() || m.txn.Coverage() == gate.Discarded) && m.read(s) {
		s = unknownStatement // it may be a write's, which nothing would discard
	}
	r, need := m.injectExecute(s, portal, p)
	if need != NeedNothing || m.inHand.dropped {
		return need
	}
	if s.info.MentionsKeptText {
		m.closeChecks(p)
	}
	e := m.push(execute, fromClient)
	e.stmt, m.copy.data = s, false
	switch {
	case s.empty:
		m.batch.sent()
	case !s.known, s.info.Kind == sqltext.NonTransactional:
		m.batch.ranAlone()
	default:
		m.batch.ran()
	}
	if sure {
		m.announceBy(e, s)
	}
	if sure && s.mayChoose() {
		m.names.portals.executed(portal)
	}
	m.executed(s)
	if !sure {
		m.txn.Send(gate.MayEnd, false)
		m.epochs.unsure(&m.chain)
		m.chain.imported = m.chain.imported || m.names.portals.importers
	}
	e.after = m.epochs.inHand
	m.gate.Pass(p, n, n+avail, 0, r)
	return NeedNothing
}

// cursorStatement stands for a portal that no Bind of the client's made: a
// cursor of SQL, or none at all.
var cursorStatement = &statement{known: true, parsed: parseConfirmed, class: isRead}

func (m *Machine) closeMessage(body []byte) {
	skipped := m.txn.Skips() && !m.pendingReplies.certain() // as it seems by the words of an error
	if e := m.push(closing, fromClient); skipped {
		e.certainty = perhaps
	}
	m.batch.sent()
	if len(body) < 2 {
		return
	}
	name, _, _ := wire.CString(body[1:])
	switch {
	case body[0] == 'P':
		m.names.portals.remove(name)
	case len(name) == 0:
		m.names.unnamed = unknownStatement
	default:
		m.freed(string(wire.CutName(name)))
	}
}
