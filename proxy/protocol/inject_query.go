package protocol

import (
	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// queryInjector puts one statement in front of the text of a Query that is one statement,
// or one text that could not be read. It sends the Query itself, because some statements
// go as extended messages after a check.
type queryInjector struct {
	m        *Machine
	p        *gate.Plan
	n, avail int // the message is avail bytes from n on
	text     []byte
	one      statement // the statement

	form      queryForm
	prefix    []byte // of prefixed
	injected  injectedCheck
	announced fencing.Epoch    // by the check
	refusal   *fencing.Refusal // of refusedQuery
	kept      *statement       // of asMessages: the statement with a text that lasts
	late      bool             // of asMessages: its rows are described after it has run
}

// queryForm is how a Query of one statement reaches the server.
type queryForm uint8

const (
	asItIs         queryForm = iota
	prefixed                 // after a statement in its text
	asMessages               // as extended messages, so that the server sees the client's text alone
	refusedQuery             // not at all: a Query that fails takes its place
	discardedQuery           // without the execution of its statement
)

// newQueryInjector returns the injector of a Query whose statement has yet to be read.
func (m *Machine) newQueryInjector(text []byte, n, avail int, p *gate.Plan) *queryInjector {
	by := &m.injectors.query
	*by = queryInjector{} // a literal with these fields would be made elsewhere, and copied
	by.m, by.p, by.n, by.avail, by.text = m, p, n, avail, text
	return by
}

// queryOne handles a Query that is one statement, or one unknown text.
func (m *Machine) queryOne(by *queryInjector) NeedKind {
	s := &by.one
	m.describeOne(s, by.text)
	q := m.situation(lone, s)
	r, need := m.inject(m.decide(&q), s, by, by.p)
	if need == NeedNothing {
		by.send(r)
	}
	return need
}

// describeOne completes what is known of the only statement of a Query.
func (m *Machine) describeOne(s *statement, text []byte) {
	s.text, s.parsed, s.provable = view(text), parseConfirmed, m.provableText(s, text, true)
	if s.known && s.info.Read {
		s.class = isRead
	}
}

func (by *queryInjector) begin() {
	by.m.claimAtRest(by.p)
	if by.one.info.MentionsKeptText {
		by.m.closeChecks(by.p)
	}
}

func (by *queryInjector) instead() { by.form = discardedQuery }

// lasting returns the statement with a text that lasts.
func (by *queryInjector) lasting() *statement {
	return &statement{known: true, parsed: parseConfirmed, class: by.one.class, info: by.one.info, text: string(by.text)}
}

// audited returns what a pending reply may keep of the statement. The statement itself ends with the
// message: its text is a view of a buffer that other sessions use next.
func (by *queryInjector) audited() *statement {
	s := by.one
	s.text = string(by.text[:min(len(by.text), maxAuditText)])
	return &s
}

func (by *queryInjector) check(g injectedCheck) {
	m, s := by.m, &by.one
	by.injected = g
	if s.keepsText() && !m.batch.mayBeSkipped() && !m.names.copiesIn(s) {
		by.form = asMessages
		by.kept, by.late = &statement{known: true, parsed: parseConfirmed, class: s.class, text: string(by.text)}, s.info.DescribesLate
		m.runCheck(g, by.kept, by.p)
		return
	}
	if s.info.Prepares {
		m.forget(s)
	}
	if m.checksChoice(g) {
		by.form, by.announced = prefixed, m.held()
		by.prefix = []byte(m.chosenSQL() + ";")
		return
	}
	if !s.info.MentionsKeptText {
		m.prepareAhead(by.p)
	}
	m.checks.build(m.epochs.inHand.announced, m.held())
	by.form, by.announced = prefixed, m.checks.built.held
	by.prefix = m.checks.text(g, m.inFront())
}

// ahead sends sql in a batch of its own. Where that is not possible, nothing is sent.
func (by *queryInjector) ahead(sql string) {
	m := by.m
	if !m.txn.Settled() || m.batch.skipping {
		return
	}
	m.runOnce(sql, noCheck, ownAhead, nil, by.p)
	m.syncAhead(by.p)
}

func (by *queryInjector) claim() { by.m.claimBefore(by.audited(), by.p) }

func (by *queryInjector) put(sql string, g injectedCheck) {
	if m := by.m; g == noCheck && m.config.Version.QueryContinuesBatch() && m.batch.unsynced != nothingUnsynced {
		m.runOnce(sql, g, own, by.audited(), by.p) // in the text, it would end the transaction of the batch
		return
	}
	by.form, by.prefix, by.injected = prefixed, []byte(sql+";"), g
}

func (by *queryInjector) refuse(r *fencing.Refusal) { by.form, by.refusal = refusedQuery, r }

// send sends the Query with what was put in front of it. It passes for the reason r.
func (by *queryInjector) send(r gate.Reason) {
	m, s := by.m, &by.one
	if by.form == asItIs && m.inHand.verdict == verdictGiven && m.config.Version.QueryContinuesBatch() && m.txn.State() != gate.InBlock {
		// It would not be committed behind the verdict.
		by.form, by.kept, by.late = asMessages, by.lasting(), !sqltext.Streams(by.text)
	}
	switch by.form {
	case asItIs:
		batch := m.batch.id // the Query ends it
		e := m.audited(m.sendQuery(by.n, by.avail, by.p, r), s, by.text)
		m.announceBy(e, s)
		m.followEnd(s, batch)
		e.after = m.epochs.inHand
		m.forget(s)
	case prefixed:
		e := m.sendPrefixed(by.prefix, by.injected, by.n, by.avail, by.p, r)
		if e.announced = by.announced; by.injected == noCheck {
			m.announceBy(e, s)
		}
		m.audited(e, s, by.text)
		if by.announced != 0 && !s.known {
			m.forget(s) // the check refuses, but it is one that could pass
		}
	case asMessages:
		m.sendAsMessages(by.kept, by.late, by.p, r)
		m.forget(s)
	case refusedQuery:
		m.audited(m.sendRefusal(by.refusal, s, by.p), s, by.text)
	case discardedQuery:
		m.discardQuery(by.lasting(), by.p)
	}
	if by.form != asItIs && by.form != refusedQuery {
		m.chain.followBehind(by.injected, s)
	}
}

// prepareAhead prepares the checks in a batch of Fencepost's alone, if no message of the
// client's is outstanding, and no batch of the client's open, which that Sync would end.
func (m *Machine) prepareAhead(p *gate.Plan) {
	if m.checks.prepared() || !m.txn.Settled() || m.batch.skipping || m.txn.State() == gate.Failed {
		return
	}
	m.prepare(ownAhead, nil, p)
	m.syncAhead(p)
}

// syncAhead ends a batch of Fencepost's alone.
func (m *Machine) syncAhead(p *gate.Plan) {
	at := len(m.scratch)
	m.scratch = wire.AppendSync(m.scratch)
	p.Own(m.scratch[at:])
	m.push(syncing, own)
	m.batch.syncedBefore()
}

// sendAsMessages sends the Query of a statement as extended messages, after the check.
// late says that Postgres runs it before it describes its rows.
func (m *Machine) sendAsMessages(s *statement, late bool, p *gate.Plan, r gate.Reason) {
	at := len(m.scratch)
	m.scratch = wire.AppendParse(m.scratch, "", s.text)
	m.scratch = wire.AppendUnnamedRun(m.scratch)
	m.gate.PassText(p, m.scratch[at:], r)
	m.push(parse, own)
	m.push(bind, own)
	d := m.push(describe, fromClient)
	if d.standIn = queryStandIn; late {
		d.standIn = lateStandIn
	}
	e := m.push(execute, fromClient)
	e.stmt, e.standIn = s, queryStandIn
	m.push(syncing, fromClient)
	m.names.dropUnnamed(true)
	m.endBatch()
	m.batch.synced()
}

// closeLeftovers closes what a Query that went as messages has left, in front of the first
// message of the next batch: a Query leaves no unnamed statement and no unnamed portal,
// whether it fails or not. Behind a message that fails, the server would skip it.
func (m *Machine) closeLeftovers(p *gate.Plan) {
	m.beginBatch() // while nothing is owed
	m.claimAtRest(p)
	at := len(m.scratch)
	m.scratch = wire.AppendClosePortal(wire.AppendCloseStatement(m.scratch, ""), "")
	p.Own(m.scratch[at:])
	m.push(closing, own)
	m.push(closing, own)
	m.names.leftovers = false
	m.batch.sent()
}
