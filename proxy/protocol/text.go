package protocol

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// queryMany handles a Query of several statements: what each transaction of it
// needs stands in front of the first statement that could do anything.
func (m *Machine) queryMany(t *sqltext.Text, text []byte, n, avail int, p *gate.Plan) Need {
	txn, epochs, batch, checks := m.txn, m.epochs, m.batch, m.checks
	undo := func() { m.txn, m.epochs, m.batch, m.checks = txn, epochs, batch, checks }
	ins, texts, r, need := m.insertions(t, text)
	if need != NeedNothing {
		undo()
		return need
	}
	if len(ins) == 0 {
		m.sendQuery(n, avail, p, r)
		return NeedNothing
	}
	if m.showsItself(t) {
		undo()
		m.closeChecks(p)
		return m.queryOne(statement{}, text, n, avail, p)
	}
	at := len(m.scratch)
	m.scratch = append(m.scratch, 'Q', 0, 0, 0, 0)
	from := 0
	for i, x := range ins {
		start := t.Statements[x.index-i].Start
		m.scratch = append(m.scratch, text[from:start]...)
		m.scratch = append(m.scratch, texts[i]...)
		from = start
	}
	m.scratch = append(append(m.scratch, text[from:]...), 0)
	binary.BigEndian.PutUint32(m.scratch[at+1:], uint32(len(m.scratch)-at-1))
	m.gate.PassText(p, m.scratch[at:], r)
	e := m.pushQuery()
	m.pendingReplies.keepText(e, text, onlyReads(t))
	e.sql.inserts, e.announced, e.first = ins, m.checks.built.held, ins[0].index == 0 && m.retry.first()
	return NeedNothing
}

// onlyReads reports whether a text holds nothing but reads.
func onlyReads(t *sqltext.Text) bool {
	for i := range t.Statements {
		if !t.Statements[i].Read {
			return false
		}
	}
	return t.Known
}

// showsItself reports whether a leader's text shows the text of queries, its own
// or what it made itself among them. Nothing of ours can stand in it then, so it goes by the registry.
func (m *Machine) showsItself(t *sqltext.Text) bool {
	shows := false
	for i := range t.Statements {
		switch s := &t.Statements[i]; s.Kind {
		case sqltext.ShowFence, sqltext.SetFence, sqltext.Refused:
			return false
		default:
			shows = shows || s.MentionsQueryText || s.MentionsKeptText
		}
	}
	return shows && m.config.Mode == ModeFenced && m.leads()
}

// insertions says what goes in front of which statement, and for which reason
// the text then passes: each statement has one. It follows the transaction
// through the text.
func (m *Machine) insertions(t *sqltext.Text, text []byte) (ins []insertion, texts []string, reason gate.Reason, n Need) {
	m.txn.Send(gate.BeginBlock, false) // a text of several statements is a block of its own
	chars, counted := 0, 0
	readable := m.pendingReplies.empty() || !sensitive(text)
	for i := range t.Statements {
		s := &statement{known: true, confirmed: true, class: isWrite, info: t.Statements[i]}
		if s.info.Read {
			s.class = isRead
			if readable {
				s.provable = &t.Statements[i]
			}
		}
		if s.info.Kind == sqltext.NonTransactional {
			s.info.Kind = sqltext.Ordinary // several statements share a transaction: it cannot end inside
		}
		d := m.decide(among, s)
		chars += utf8.RuneCount(text[counted:s.info.Start])
		counted = s.info.Start
		x := insertion{index: i + len(ins), at: chars}
		var sql string
		r := d.reason
		switch {
		case d.need != NeedNothing:
			return nil, nil, gate.Reason{}, d.need
		case d.action == answerFirst:
			sql = m.setSQL(s.info.Name)
		case d.action == checkFirst:
			sql, x.check = m.injectText(fullCheck, i == 0), fullCheck
		case d.action == readFirst:
			sql, x.check = m.injectText(readOnly, i == 0), readOnly
		case d.action == lapsedFirst:
			sql, x.check = m.lapsedSQL(), fullCheck
		case d.action == refuseFirst:
			sql, x.check, x.refuse = raiseSQL, refusal, d.refusal
		}
		if x.check != noCheck {
			r = m.coverageBy(x.check)
		}
		if i == 0 {
			reason = r
		}
		reason = reason.And(r)
		if sql != "" {
			sql += ";"
			x.n = len(sql)
			ins, texts = append(ins, x), append(texts, sql)
		}
		m.executed(s)
	}
	return ins, texts, reason, NeedNothing
}

// injectText is a check inside a text. Behind a statement of the client's, which
// may hide a DEALLOCATE, it does not rest on what is prepared.
func (m *Machine) injectText(g injectedCheck, first bool) string {
	m.checks.build(m.epochs.inHand.announced, m.held())
	if !first {
		return m.checks.inline(g)
	}
	b := m.checks.text(g, false)
	return string(b[:len(b)-1])
}

// injectFunction puts a fast path call under the registry. If it is refused, a
// Query that always fails takes its place: both are answered by an error and
// ReadyForQuery.
func (m *Machine) injectFunction(p *gate.Plan) (r gate.Reason, n Need, replaced bool) {
	d := m.decide(call, unknownStatement)
	switch d.action {
	case needsMoreFor:
		return d.reason, d.need, false
	case refuseFirst:
		m.sendRefusal(d.refusal, unknownStatement, p)
	case lapsedFirst:
		m.replaceFunction(m.lapsedSQL(), p)
	case checkFirst:
		m.replaceFunction(fencing.InlineCheckSQL(m.config.Fence, m.config.Worker, m.config.Incarnation, m.epochs.inHand.announced, m.held()), p)
	default:
		return d.reason, NeedNothing, false
	}
	return d.reason, NeedNothing, true
}

func (m *Machine) replaceFunction(sql string, p *gate.Plan) {
	at := len(m.scratch)
	m.scratch = wire.AppendQuery(m.scratch, []byte(sql+";"+raiseSQL))
	p.Own(m.scratch[at:])
	e := m.pushQuery()
	e.announced = m.held()
	e.sql.inserts = []insertion{{index: 0, n: len(sql) + 1, check: fullCheck}, {index: 1, n: len(raiseSQL), check: refusal, refuse: fencing.RetryRefusal}}
}
