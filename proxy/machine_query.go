package proxy

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

// queryMessage handles a simple Query. What it needs goes into its text, never
// into messages in front of it: PostgreSQL 18 would answer and not commit
// (postgres.md A1).
func (m *machine) queryMessage(body []byte, n, avail int, p *plan) need {
	m.carry()
	text, rest, ok := cstring(body)
	if m.wantsSync(text) {
		if need := m.syncBefore(p); need != needNothing {
			return need
		}
	}
	if m.mode == passing || !ok || len(rest) > 0 {
		m.sendQuery(n, avail, p) // the last two: malformed, and refused by the server
		return needNothing
	}
	if info, ok := fencing.Quick(text); ok {
		return m.queryOne(statement{known: true, info: info}, text, n, avail, p)
	}
	if len(text) > maxAnalyzed || m.unsettled(text) && bytes.IndexByte(bytes.TrimRight(text, "; \t\r\n\f"), ';') >= 0 {
		return m.queryOne(statement{}, text, n, avail, p)
	}
	t := m.analyze(text)
	switch {
	case !t.Known && len(t.Statements) == 0:
		return m.queryOne(statement{}, text, n, avail, p)
	case len(t.Statements) == 0:
		m.sendQuery(n, avail, p)
		return needNothing
	case len(t.Statements) == 1:
		return m.queryOne(statement{known: true, info: t.Statements[0]}, text, n, avail, p)
	default:
		return m.queryMany(t, text, n, avail, p)
	}
}

// wantsSync reports whether a Query would notice a check of ours that was executed
// in this batch.
func (m *machine) wantsSync(text []byte) bool {
	if !m.open || !m.ours || m.ran || m.stillOpen() {
		return false
	}
	if len(text) <= maxAuditText {
		t := m.analyze(text)
		if len(t.Statements) > 0 {
			switch s := &t.Statements[0]; {
			case s.Isolation && !m.snapshots:
				return true
			case s.Kind == fencing.Alone, s.Kind == fencing.Discard:
				return true
			}
		}
		if m.tooLate(t, text) {
			return false
		}
	}
	return m.version >= 18
}

// tooLate reports whether a text sets the isolation of its first transaction behind
// a query of the batch, so that it fails where nothing of ours has ended that.
func (m *machine) tooLate(t *fencing.Text, text []byte) bool {
	if !m.snapshots || !mentions(text, "isolation", "snapshot") {
		return false
	}
	for i := range t.Statements {
		switch s := &t.Statements[i]; {
		case s.Isolation:
			return true
		case s.EndsTx:
			return false
		}
	}
	return false
}

// mentions reports whether a text has one of these words in it, in any case.
func mentions(text []byte, words ...string) bool {
	lower := bytes.ToLower(text)
	for _, w := range words {
		if bytes.Contains(lower, []byte(w)) {
			return true
		}
	}
	return false
}

// sendQuery forwards the Query as it is.
func (m *machine) sendQuery(n, avail int, p *plan) *reply {
	p.forward(n, n+avail)
	return m.pushQuery()
}

func (m *machine) pushQuery() *reply {
	e := m.owed.push(query, false)
	m.unnamed, m.data, m.leftovers = unknownStatement, false, false
	delete(m.portals, "")
	m.boundary()
	return e
}

// stillOpen reports that what the client has executed since its last Sync may not be
// committed yet, although a Query or a function call stood behind it: 18 goes on with
// their transaction.
func (m *machine) stillOpen() bool { return m.version >= 18 && m.unsynced }

// syncBefore ends a batch of which only our check has been executed, before a
// message that is not of the extended protocol: PostgreSQL 18 would not commit
// it behind the check's Execute, and a BEGIN could fix no isolation behind it. Of
// the client's there are only Parse, Bind, Describe and Close. Should one of them
// fail, the server skips the message, so their answers come first.
func (m *machine) syncBefore(p *plan) need {
	if !m.open || !m.ours || m.ran || m.stillOpen() {
		return needNothing
	}
	if m.owed.certain() {
		if !m.waiting {
			p.insert(flushMessage)
			m.waiting = true
		}
		return needRoom
	}
	at := len(m.scratch)
	m.scratch = appendSync(m.scratch)
	p.insert(m.scratch[at:])
	m.owed.push(syncing, true)
	m.open, m.loose, m.ours = false, false, false
	m.cover, m.inTx = uncovered, false // a transaction without a block ends here, and the check with it
	return needNothing
}

var flushMessage = []byte{'H', 0, 0, 0, 4}

// queryOne handles a Query that is one statement, or one unknown text.
func (m *machine) queryOne(one statement, text []byte, n, avail int, p *plan) need {
	s := &m.one
	*s = one
	s.text, s.confirmed = view(text), true
	if m.proofPays(text) {
		s.proof = m.proofOf(text)
	}
	if s.known && s.info.Read {
		s.class = isRead
	}
	s.twoPhase = !s.known && preparesTransaction.Match(text)
	st := m.standing()
	if m.shows(s) {
		if need := m.askFirst(st); need != needNothing {
			return need
		}
		m.sendPrefixed([]byte(m.setSQL(s.info.Name, st)+";"), noGuard, n, avail, p)
		m.tellBy(m.owed.at(m.owed.len()-1), s, st)
		return needNothing
	}
	if m.idleOutside(s) {
		m.sendQuery(n, avail, p)
		return needNothing
	}
	v, need, r := m.judgeQuery(s)
	if v != needsMoreFor && s.info.MentionsKeptText {
		m.closeChecks(p)
	}
	switch v {
	case needsMoreFor:
		return need
	case forward, byRegistry:
		e := m.sendQuery(n, avail, p)
		m.tellBy(e, s, st)
		if m.mode == fencedMode {
			e.text = keepText(e.text, text)
		}
		if !s.known {
			m.forgetAll()
		}
		m.forget(s)
	case checkFirst, readFirst:
		g := fullCheck
		if v == readFirst {
			g = readOnly
		}
		if keepsText(s) && !m.open && !m.loose {
			m.sendAsExtended(g, text, p)
			m.forget(s)
			return needNothing
		}
		m.checks.build(m.txTold, m.held())
		if !s.info.MentionsKeptText {
			m.prepareAhead(p)
		}
		e := m.sendPrefixed(m.checks.text(g, m.inFront()), g, n, avail, p)
		e.text, e.told = keepText(e.text, text), m.checks.held
	case lapsedFirst:
		e := m.sendPrefixed([]byte(m.lapsedSQL()+";"), fullCheck, n, avail, p)
		e.text = keepText(e.text, text)
	case refuseFirst:
		m.sendRefusal(r, text, p)
	}
	return needNothing
}

// keepsText reports whether the server keeps or shows the text of s, so that it
// must be the client's alone.
func keepsText(s *statement) bool {
	return s.info.Kind == fencing.ByMessage || s.info.MentionsQueryText
}

// judgeQuery is judge for a Query of one statement.
func (m *machine) judgeQuery(s *statement) (v verdict, n need, r *fencing.Refusal) {
	v, n, r = m.judge(s)
	// Extended messages would end with a Sync of ours, and with it the skipping of
	// a batch that has failed; and a check would make a block of its own where
	// there may be none.
	bare := keepsText(s) && (m.open || m.loose) || onlyInBlock(s) && !m.inTx ||
		m.version >= 18 && m.unsynced // which 18 does not end for a lone statement; with ours in front it is not alone
	if v == checkFirst && bare && m.standing().May() && m.txTold != 0 {
		return m.judgeAlone(s)
	}
	return v, n, r
}

// idleOutside reports whether the statement is one that Postgres refuses, or
// warns of and does nothing for, outside a transaction block, where it is.
// Behind a check it would be in one, and succeed or fail otherwise.
func (m *machine) idleOutside(s *statement) bool {
	return m.quiet() && m.tx == 'I' && onlyInBlock(s)
}

// failsOutside reports the same of an extended message in a batch that began
// outside a block, as far as is known, and has run nothing yet: from PostgreSQL 18
// on the Execute of a check in front would make a block of it.
func (m *machine) failsOutside(s *statement) bool {
	return m.version >= 18 && !m.inTx && !m.ours && !m.ran && onlyInBlock(s)
}

func onlyInBlock(s *statement) bool { return s.known && s.info.OnlyInBlock }

func foldPrefix(s, word string) bool {
	return len(s) >= len(word) && strings.EqualFold(s[:len(word)], word)
}

// keepText keeps the start of a client's SQL for the audit.
func keepText(dst, text []byte) []byte {
	return append(dst, text[:min(len(text), maxAuditText)]...)
}

// prepareAhead prepares the checks in a batch of our own, if nothing of the
// client's is outstanding, and no batch of its open, which our Sync would end.
func (m *machine) prepareAhead(p *plan) {
	if m.checks.prepared || !m.quiet() || m.open || m.loose || m.tx == 'E' {
		return
	}
	m.prepare(true, p)
	at := len(m.scratch)
	m.scratch = appendSync(m.scratch)
	p.insert(m.scratch[at:])
	m.owed.push(syncing, true)
	m.open, m.ours = false, false
	m.batch++
	m.checks.build(m.txTold, m.held())
}

// sendPrefixed sends the Query with a statement of ours in front of its text.
func (m *machine) sendPrefixed(prefix []byte, g guard, n, avail int, p *plan) *reply {
	at := len(m.scratch)
	m.scratch = append(m.scratch, 'Q')
	m.scratch = binary.BigEndian.AppendUint32(m.scratch, uint32(avail-1+len(prefix)))
	m.scratch = append(m.scratch, prefix...)
	p.insert(m.scratch[at:])
	p.forward(n+headerLen, n+avail)
	e := m.pushQuery()
	e.prefix, e.guard, e.first = len(prefix), g, m.repeat.first()
	return e
}

// sendRefusal sends a Query that fails in the client's place.
func (m *machine) sendRefusal(r *fencing.Refusal, text []byte, p *plan) {
	at, sql := len(m.scratch), raiseSQL
	if m.endsBlock(r, string(text)) {
		sql = endSQL
	}
	m.scratch = appendQuery(m.scratch, []byte(sql))
	p.insert(m.scratch[at:])
	e := m.pushQuery()
	e.prefix, e.guard, e.refuse = len(sql), refusal, r
	e.text = keepText(e.text, text)
}

// sendAsExtended sends a Query as extended messages behind the check, so that
// the server sees the client's text alone.
func (m *machine) sendAsExtended(g guard, text []byte, p *plan) {
	s := &statement{known: true, confirmed: true, text: string(text)}
	m.runCheck(g, s, p)
	at := len(m.scratch)
	m.scratch = appendParse(m.scratch, "", s.text)
	m.scratch = appendUnnamedRun(m.scratch)
	p.insert(m.scratch[at:])
	m.owed.push(parse, true)
	m.owed.push(bind, true)
	d := m.owed.push(describe, false)
	d.hideNoData, d.holds = true, foldPrefix(strings.TrimLeft(s.text, " \t\r\n"), "execute")
	m.owed.push(execute, false).stmt = s
	m.owed.push(syncing, false)
	m.unnamed, m.leftovers = unknownStatement, true
	delete(m.portals, "")
	m.boundary()
}

// namesUnnamed reports whether a message may name the unnamed statement or portal.
func namesUnnamed(typ byte, body []byte) bool {
	switch typ {
	case 'P', 'E':
		return len(body) > 0 && body[0] == 0
	case 'D':
		return len(body) > 1 && body[1] == 0
	case 'B':
		portal, stmt, _ := bindNames(body)
		return len(portal) == 0 || len(stmt) == 0
	default:
		return false
	}
}

// closeLeftovers closes what a Query that went as messages has left, in front of a
// message that might name it: a Query leaves no unnamed statement and no unnamed
// portal, whether it fails or not.
func (m *machine) closeLeftovers(p *plan) {
	m.carry() // while nothing is owed
	at := len(m.scratch)
	m.scratch = appendClosePortal(appendCloseStatement(m.scratch, ""), "")
	p.insert(m.scratch[at:])
	m.owed.push(closing, true)
	m.owed.push(closing, true)
	m.open, m.leftovers = true, false
}
