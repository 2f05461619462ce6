package protocol

import (
	"encoding/binary"
	"strings"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// queryMessage handles a simple Query. What it needs goes into its text, never
// into messages in front of it: PostgreSQL 18 would answer and not commit.
func (m *Machine) queryMessage(body []byte, n, avail int, p *gate.Plan) Need {
	m.beginBatch()
	text, _, _ := wire.CString(body)
	if m.wantsSync(text) {
		if need := m.syncBefore(p); need != NeedNothing {
			return need
		}
	}
	if r, ok := gate.Unfenced(m.config.Mode == ModePassing); ok && m.config.Mode == ModePassing {
		m.sendQuery(n, avail, p, r)
		return NeedNothing
	}
	if r, ok := gate.Inert('Q', body); ok {
		m.sendQuery(n, avail, p, r)
		return NeedNothing
	}
	if info, ok := sqltext.Quick(text); ok {
		return m.queryOne(statement{known: true, info: info}, text, n, avail, p)
	}
	if len(text) > maxAnalyzed || m.unsettled(text) && !sqltext.AtMostOne(text) {
		return m.queryOne(statement{}, text, n, avail, p)
	}
	t := m.analyze(text)
	if r, ok := gate.Empty(t); ok {
		m.sendQuery(n, avail, p, r)
		return NeedNothing
	}
	switch {
	case !t.Known:
		return m.queryOne(statement{}, text, n, avail, p)
	case len(t.Statements) == 1:
		return m.queryOne(statement{known: true, info: t.Statements[0]}, text, n, avail, p)
	default:
		return m.queryMany(t, text, n, avail, p)
	}
}

// wantsSync reports whether a Query would notice a check of ours that was executed
// in this batch.
func (m *Machine) wantsSync(text []byte) bool {
	if !m.batch.onlyChecked() || m.stillOpen() {
		return false
	}
	if len(text) <= maxAuditText {
		t := m.analyze(text)
		if len(t.Statements) > 0 {
			switch s := &t.Statements[0]; {
			case s.Isolation && !m.batch.snapshot:
				return true
			case s.Kind == sqltext.NonTransactional, discardsAll(s):
				return true
			}
		}
		if m.tooLate(t) {
			return false
		}
	}
	return m.config.Version.QueryContinuesBatch()
}

// tooLate reports whether a text sets the isolation of its first transaction behind
// a query of the batch, so that it fails where nothing of ours has ended that.
func (m *Machine) tooLate(t *sqltext.Text) bool {
	if !m.batch.snapshot {
		return false
	}
	for i := range t.Statements {
		switch s := &t.Statements[i]; {
		case s.SetsIsolation:
			return true
		case s.EndsTransaction:
			return false
		}
	}
	return false
}

// sendQuery forwards the Query as it is.
func (m *Machine) sendQuery(n, avail int, p *gate.Plan, r gate.Reason) *reply {
	m.gate.Pass(p, n, n+avail, 0, r)
	return m.pushQuery()
}

func (m *Machine) pushQuery() *reply {
	e := m.push(query, fromClient)
	m.copy.data = false
	m.names.dropUnnamed(false)
	m.endBatch()
	return e
}

// stillOpen reports that what the client has executed since its last Sync may not be
// committed yet, although a Query or a function call stood behind it.
func (m *Machine) stillOpen() bool { return m.config.Version.QueryContinuesBatch() && m.batch.unsynced }

// awaitsEnd reports whether a message of that type has to wait until the Query or
// function call in front of it is answered. On 18 only that answer says whether the
// transaction of what was executed before goes on, or has failed and is over; in the
// latter case a check in front would leave open one that the client has not.
func (m *Machine) awaitsEnd(typ byte) bool {
	return m.config.Mode != ModePassing && !m.batch.open() && m.stillOpen() && !m.copy.under() && m.pendingReplies.certain() && strings.IndexByte("QPBDEF", typ) >= 0
}

// syncBefore ends a batch of which only our check has been executed, before a
// message that is not of the extended protocol: PostgreSQL 18 would not commit
// it behind the check's Execute, and a BEGIN could fix no isolation behind it. Of
// the client's there are only Parse, Bind, Describe and Close. Should one of them
// fail, the server skips the message, so their answers come first.
func (m *Machine) syncBefore(p *gate.Plan) Need {
	if !m.batch.onlyChecked() || m.stillOpen() {
		return NeedNothing
	}
	if m.copy.under() {
		return NeedNothing // a message that has no place in the COPY was sent, and ends the connection
	}
	if m.pendingReplies.certain() {
		if !m.inHand.waiting {
			p.Own(flushMessage)
			m.inHand.waiting = true
		}
		return NeedRoom
	}
	at := len(m.scratch)
	m.scratch = wire.AppendSync(m.scratch)
	p.Own(m.scratch[at:])
	if m.batch.snapshot {
		m.push(syncing, ownCommit)
	} else {
		m.push(syncing, own)
	}
	m.batch.syncedBefore()
	m.txn.Send(gate.MayEnd, false) // a transaction without a block ends here, and the check with it
	return NeedNothing
}

var flushMessage = []byte{'H', 0, 0, 0, 4}

// queryOne handles a Query that is one statement, or one unknown text.
func (m *Machine) queryOne(one statement, text []byte, n, avail int, p *gate.Plan) Need {
	s := &m.one
	*s = one
	s.text, s.confirmed = view(text), true
	if m.proofPays(text) {
		s.provable = m.provableText(s, text)
	}
	if s.known && s.info.Read {
		s.class = isRead
	}
	if !s.known {
		s.guess = sqltext.GuessOf(text)
	}
	d := m.decide(lone, s)
	if d.action != needsMoreFor && s.info.MentionsKeptText {
		m.closeChecks(p)
	}
	switch d.action {
	case needsMoreFor:
		return d.need
	case answerFirst:
		m.announceBy(m.sendPrefixed([]byte(m.setSQL(s.info.Name)+";"), noCheck, n, avail, p, d.reason), s)
	case forward:
		e := m.audited(m.sendQuery(n, avail, p, d.reason), s, text)
		m.announceBy(e, s)
		m.followEnd(s)
		e.after = m.epochs.inHand
		m.forget(s)
	case checkFirst:
		m.queryBehind(fullCheck, s, text, n, avail, p)
	case readFirst:
		m.queryBehind(readOnly, s, text, n, avail, p)
	case lapsedFirst:
		m.txn.Send(gate.RunCheck, false)
		r, _ := m.txn.Covered()
		m.audited(m.sendPrefixed([]byte(m.lapsedSQL()+";"), fullCheck, n, avail, p, r), s, text)
	case refuseFirst:
		m.audited(m.sendRefusal(d.refusal, s, p), s, text)
	}
	return NeedNothing
}

// audited keeps what an audit line would say of a Query's statement.
func (m *Machine) audited(e *reply, s *statement, text []byte) *reply {
	if m.config.Mode != ModePassing {
		m.pendingReplies.keepText(e, text, s.class == isRead)
	}
	return e
}

// queryBehind sends a Query of one statement after a check.
func (m *Machine) queryBehind(g injectedCheck, s *statement, text []byte, n, avail int, p *gate.Plan) {
	if s.keepsText() && !m.batch.mayBeSkipped() {
		m.sendAsExtended(g, s, text, p)
		m.forget(s)
		return
	}
	if s.info.Prepares {
		m.forget(s)
	}
	m.checks.build(m.epochs.inHand.announced, m.held())
	if !s.info.MentionsKeptText {
		m.prepareAhead(p)
	}
	prefix := m.checks.text(g, m.inFront())
	e := m.sendPrefixed(prefix, g, n, avail, p, m.coverageBy(g))
	m.audited(e, s, text).announced = m.checks.built.held
}

// coverageBy says that a check of ours stands in front of what follows, and returns
// the reason for which that passes.
func (m *Machine) coverageBy(g injectedCheck) gate.Reason {
	if g == readOnly {
		m.txn.Send(gate.SetReadOnly, false)
	} else {
		m.txn.Send(gate.RunCheck, false)
	}
	r, _ := m.txn.Covered()
	return r
}

// prepareAhead prepares the checks in a batch of our own, if nothing of the
// client's is outstanding, and no batch of its open, which our Sync would end.
func (m *Machine) prepareAhead(p *gate.Plan) {
	if m.checks.prepared() || !m.txn.Settled() || m.batch.skipping || m.txn.State() == gate.Failed {
		return
	}
	m.prepare(ownAhead, p)
	at := len(m.scratch)
	m.scratch = wire.AppendSync(m.scratch)
	p.Own(m.scratch[at:])
	m.push(syncing, own)
	m.batch.syncedBefore()
	m.checks.build(m.epochs.inHand.announced, m.held())
}

// sendPrefixed sends the Query with a statement of ours in front of its text.
func (m *Machine) sendPrefixed(prefix []byte, g injectedCheck, n, avail int, p *gate.Plan, r gate.Reason) *reply {
	at := len(m.scratch)
	m.scratch = append(m.scratch, 'Q')
	m.scratch = binary.BigEndian.AppendUint32(m.scratch, uint32(avail-1+len(prefix)))
	m.scratch = append(m.scratch, prefix...)
	p.Own(m.scratch[at:])
	m.gate.Pass(p, n+wire.HeaderLen, n+avail, 0, r)
	e := m.pushQuery()
	e.sql.prefix, e.check, e.first = len(prefix), g, m.retry.first()
	return e
}

// sendRefusal sends a Query that fails in the client's place.
func (m *Machine) sendRefusal(r *fencing.Refusal, s *statement, p *gate.Plan) *reply {
	at, sql := len(m.scratch), raiseSQL
	if m.endsBlock(r, s) {
		sql = endSQL
	}
	m.scratch = wire.AppendQuery(m.scratch, []byte(sql))
	p.Own(m.scratch[at:])
	e := m.pushQuery()
	e.sql.prefix, e.check, e.refuse = len(sql), refusal, r
	return e
}

// sendAsExtended sends a Query of the statement q as extended messages after the
// check, so that the server sees the client's text alone.
func (m *Machine) sendAsExtended(g injectedCheck, q *statement, text []byte, p *gate.Plan) {
	s := &statement{known: true, confirmed: true, class: q.class, text: string(text)}
	m.runCheck(g, s, p)
	at := len(m.scratch)
	m.scratch = wire.AppendParse(m.scratch, "", s.text)
	m.scratch = wire.AppendUnnamedRun(m.scratch)
	m.gate.PassText(p, m.scratch[at:], m.coverageBy(g))
	m.push(parse, own)
	m.push(bind, own)
	d := m.push(describe, fromClient)
	if d.standIn = queryStandIn; q.info.Executes {
		d.standIn = executeStandIn
	}
	m.push(execute, fromClient).stmt = s
	m.push(syncing, fromClient)
	m.names.dropUnnamed(true)
	m.endBatch()
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
func (m *Machine) closeLeftovers(p *gate.Plan) {
	m.beginBatch() // while nothing is owed
	at := len(m.scratch)
	m.scratch = wire.AppendClosePortal(wire.AppendCloseStatement(m.scratch, ""), "")
	p.Own(m.scratch[at:])
	m.push(closing, own)
	m.push(closing, own)
	m.names.leftovers = false
	m.batch.sent()
}

// needsBlockRefusal is what Postgres says of a DECLARE outside a block. The proxy says
// it in Postgres's place to those who do not lead: analyzing the cursor's query may run
// functions, and read-only mode in front of it would make a block.
var needsBlockRefusal = &fencing.Refusal{
	SQLState: "25P01",
	Message:  "DECLARE CURSOR can only be used in transaction blocks",
}
