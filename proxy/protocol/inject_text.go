package protocol

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// queryMany handles a Query of several statements: what each transaction of it
// needs stands in front of the first statement that could do anything.
func (m *Machine) queryMany(t *sqltext.Text, text []byte, n, avail int, p *gate.Plan) NeedKind {
	txn, epochs, chain, batch, checks := m.txn, m.epochs, m.chain, m.batch, m.checks
	undo := func() { m.txn, m.epochs, m.chain, m.batch, m.checks = txn, epochs, chain, batch, checks }
	by, r, need := m.insertions(t, text, p)
	switch {
	case need != NeedNothing:
		undo()
		return need
	case by.asOne:
		undo()
		by := m.newQueryInjector(text, n, avail, p)
		by.one.guess = sqltext.GuessOf(text)
		by.one.guess.ImportsSnapshot = false // showsItself has read it: that fails, if it is there
		by.one.info.MentionsKeptText = true  // so that the checks are closed when it is sent
		return m.queryOne(by)
	case len(by.insert) == 0:
		e := m.sendQuery(n, avail, p, r)
		m.auditedText(e, t, text)
		e.sql.ends = by.ends
		return NeedNothing
	}
	at := len(m.scratch)
	m.scratch = append(m.scratch, 'Q', 0, 0, 0, 0)
	from := 0
	for i, x := range by.insert {
		start := t.Statements[x.index-i].Start
		m.scratch = append(m.scratch, text[from:start]...)
		m.scratch = append(m.scratch, by.texts[i]...)
		from = start
	}
	m.scratch = append(append(m.scratch, text[from:]...), 0)
	binary.BigEndian.PutUint32(m.scratch[at+1:], uint32(len(m.scratch)-at-1))
	m.gate.PassText(p, m.scratch[at:], r)
	e := m.pushQuery()
	m.auditedText(e, t, text)
	e.sql.inserts, e.sql.ends = by.insert, by.ends
	e.announced, e.first = m.checks.built.held, by.insert[0].index == 0 && m.retry.first()
	return NeedNothing
}

// auditedText keeps what an audit line would say of a Query of several statements.
func (m *Machine) auditedText(e *reply, t *sqltext.Text, text []byte) {
	m.pendingReplies.keepText(e, text)
	if onlyReads(t) {
		e.class = isRead
	}
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

// showsItself reports whether a text shows the text of queries, its own or what it made itself
// among them. Nothing of Fencepost's can stand in a leader's text then, so it goes by the
// registry. It does not where a snapshot was imported, which the registry cannot see.
func (m *Machine) showsItself(t *sqltext.Text) bool {
	shows, queried := false, false
	for i := range t.Statements {
		switch s := &t.Statements[i]; {
		case s.Kind == sqltext.ShowFence, s.Kind == sqltext.SetFence, s.Kind == sqltext.Refused:
			return false
		case s.ImportsSnapshot && !queried: // after a query, it fails
			return false
		default:
			queried = s.TakesSnapshot || queried && !s.EndsTransaction
			shows = shows || s.MentionsQueryText || s.MentionsKeptText
		}
	}
	return shows && m.config.Mode == ModeFenced && !m.chain.imported
}

// textInjector puts statements into the text of a Query of several, each in front of one
// of the client's.
type textInjector struct {
	m      *Machine
	index  int // of the statement in hand, in the client's text
	at     int // where it begins, in characters
	insert []insertion
	ends   []textEnd
	texts  []string
	bytes  int  // of texts
	asOne  bool // nothing can stand in it
}

// maxInserted bounds the bytes that go into a text. Without a choice, no text that is parsed comes
// near it.
const maxInserted = 8 << 20

func (by *textInjector) check(g injectedCheck) {
	if by.bytes > maxInserted {
		by.refuse(fencing.TooManyChecksRefusal)
		return
	}
	by.put(by.m.injectText(g, by.index == 0), g)
}

func (by *textInjector) ahead(sql string) { by.put(sql, noCheck) }

// claim does nothing: what stands among others and goes by the registry writes no rows.
func (by *textInjector) claim() {}

func (by *textInjector) begin() {}

func (by *textInjector) instead() { by.asOne = true }

func (by *textInjector) lasting() *statement { return unknownStatement }

func (by *textInjector) put(sql string, g injectedCheck) {
	sql += ";"
	by.insert = append(by.insert, insertion{index: by.index + len(by.insert), at: by.at, n: len(sql), check: g})
	by.texts = append(by.texts, sql)
	by.bytes += len(sql)
}

func (by *textInjector) refuse(r *fencing.Refusal) {
	by.put(raiseSQL, refusal)
	by.insert[len(by.insert)-1].refuse = r
}

// insertions says what goes in front of which statement, and for which reason
// the text then passes: each statement has one. It follows the transaction
// through the text.
func (m *Machine) insertions(t *sqltext.Text, text []byte, p *gate.Plan) (by *textInjector, reason gate.Reason, n NeedKind) {
	m.txn.Send(gate.BeginBlock, false) // a text of several statements is a block of its own
	by = &textInjector{m: m}
	counted, whole := 0, m.showsItself(t)
	readable := m.pendingReplies.empty() || !sensitive(text)
	for i := range t.Statements {
		s := oneOf(t, i, readable)
		by.index, by.at = i, by.at+utf8.RuneCount(text[counted:s.info.Start])
		counted = s.info.Start
		q := m.situation(among, s)
		q.whole = whole
		r, need := m.inject(m.decide(&q), s, by, p)
		if need != NeedNothing || by.asOne {
			return by, r, need
		}
		if i == 0 {
			reason = r
		}
		reason = reason.And(r)
		m.executed(s)
		by.follow(s, m.epochs.inHand)
	}
	return by, reason, NeedNothing
}

// follow follows a statement, behind which t is in hand. A choice belongs to the transaction in
// which it stands.
func (by *textInjector) follow(s *statement, t transaction) {
	switch n := len(by.ends); {
	case s.ends():
		by.ends = append(by.ends, textEnd{by.index + len(by.insert), t})
	case n > 0:
		by.ends[n-1].after = t
	}
}

// oneOf describes the i-th of several statements of a text. readable says that no setting can
// have changed what the text means.
func oneOf(t *sqltext.Text, i int, readable bool) *statement {
	s := &statement{known: true, parsed: parseConfirmed, class: isWrite, info: t.Statements[i]}
	if s.info.Read {
		s.class = isRead
		if readable {
			s.provable = &t.Statements[i]
		}
	}
	if s.info.Kind == sqltext.NonTransactional {
		s.info.Kind = sqltext.Ordinary // several statements share a transaction: it cannot end inside
	}
	return s
}

// injectText is a check inside a text. After a statement of the client's, which
// may hide a DEALLOCATE, it does not rest on what is prepared.
func (m *Machine) injectText(g injectedCheck, first bool) string {
	if m.checksChoice(g) {
		return m.chosenSQL()
	}
	m.checks.build(m.epochs.inHand.announced, m.held())
	if !first {
		return m.checks.inline(g)
	}
	b := m.checks.text(g, false)
	return string(b[:len(b)-1])
}
