package proxy

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/fencepost/fencepost/fencing"
)

// insertion is a statement of ours inside the text of a Query.
type insertion struct {
	index  int // which statement of the text that is sent, from 0
	at     int // in characters of the client's text
	n      int // length in characters; ASCII
	guard  guard
	refuse *fencing.Refusal
}

// queryMany handles a Query of several statements: what each transaction of it
// needs stands in front of the first statement that could do anything.
func (m *machine) queryMany(t *fencing.Text, text []byte, n, avail int, p *plan) need {
	m.bare = false // more than one statement: checked as ever
	cover, failed, inTx, ours, ran, checks := m.cover, m.failed, m.inTx, m.ours, m.ran, m.checks
	undo := func() { m.cover, m.failed, m.inTx, m.ours, m.ran, m.checks = cover, failed, inTx, ours, ran, checks }
	ins, texts, need := m.insertions(t, text)
	if need != needNothing {
		undo()
		return need
	}
	if len(ins) == 0 {
		m.sendQuery(n, avail, p)
		return needNothing
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
	p.insert(m.scratch[at:])
	e := m.pushQuery()
	e.inserts, e.text, e.told, e.first = ins, keepText(e.text, text), m.checks.held, ins[0].index == 0 && m.repeat.first()
	return needNothing
}

// showsItself reports whether a leader's text shows the text of queries, its own
// or what it made itself among them. Nothing of ours can stand in it then, so it goes by the registry.
func (m *machine) showsItself(t *fencing.Text) bool {
	shows := false
	for i := range t.Statements {
		switch s := &t.Statements[i]; s.Kind {
		case fencing.ShowFence, fencing.SetFence, fencing.Refused:
			return false
		default:
			shows = shows || s.MentionsQueryText || s.MentionsKeptText
		}
	}
	return shows && m.mode == fencedMode && m.txTold != 0 && m.standing().May()
}

// insertions says what goes in front of which statement. It follows the
// transaction through the text.
func (m *machine) insertions(t *fencing.Text, text []byte) (ins []insertion, texts []string, n need) {
	st, chars, counted := m.standing(), 0, 0
	for i := range t.Statements {
		s := &statement{known: true, confirmed: true, class: isWrite, info: t.Statements[i]}
		if s.info.Read {
			s.class = isRead
			if !sensitive(text) || m.quiet() {
				s.proof = &t.Statements[i]
			}
		}
		hides := s.info.Kind == fencing.Alone && s.info.EndsTx
		if s.info.Kind == fencing.Alone {
			s.info.Kind = fencing.Ordinary // several statements share a transaction: it cannot end inside
		}
		v, need, r := m.judge(s)
		if need == needNothing && m.shows(s) {
			need, v = m.askFirst(st), answerFirst
		}
		chars += utf8.RuneCount(text[counted:s.info.Start])
		counted = s.info.Start
		x := insertion{index: i + len(ins), at: chars}
		var sql string
		switch {
		case need != needNothing:
			return nil, nil, need
		case v == answerFirst:
			sql = m.setSQL(s.info.Name, st)
		case v == checkFirst:
			sql, x.guard, m.cover = m.guardText(fullCheck, i == 0), fullCheck, fullCovered
		case v == readFirst:
			sql, x.guard, m.cover = m.guardText(readOnly, i == 0), readOnly, readCovered
		case v == lapsedFirst:
			sql, x.guard, m.cover = m.lapsedSQL(), fullCheck, fullCovered
		case v == refuseFirst:
			sql, x.guard, x.refuse, m.cover = raiseSQL, refusal, r, fullCovered
		}
		if sql != "" {
			sql += ";"
			x.n = len(sql)
			ins, texts = append(ins, x), append(texts, sql)
		}
		m.executed(s)
		if hides {
			m.mayForget(view(text[s.info.Start:s.info.End]))
		}
	}
	return ins, texts, needNothing
}

// guardText is a check inside a text. Behind a statement of the client's, which
// may hide a DEALLOCATE, it does not rest on what is prepared.
func (m *machine) guardText(g guard, first bool) string {
	m.checks.build(m.txTold, m.held())
	if !first {
		return m.checks.inline(g)
	}
	b := m.checks.text(g, false)
	return string(b[:len(b)-1])
}

// guardFunction puts a fast path call under the registry. If it is refused, a
// Query that always fails takes its place: both are answered by an error and
// ReadyForQuery.
func (m *machine) guardFunction(p *plan) (n need, replaced bool) {
	v, need, r := m.judge(unknownStatement)
	switch v {
	case needsMoreFor:
		return need, false
	case refuseFirst:
		m.sendRefusal(r, nil, p)
		return needNothing, true
	case lapsedFirst:
		m.replaceFunction(m.lapsedSQL(), p)
		return needNothing, true
	case checkFirst:
		m.replaceFunction(fencing.InlineCheckSQL(m.checks.fence, m.checks.worker, m.checks.incarnation, m.txTold, m.held()), p)
		return needNothing, true
	default:
		return needNothing, false
	}
}

func (m *machine) replaceFunction(sql string, p *plan) {
	at := len(m.scratch)
	m.scratch = appendQuery(m.scratch, []byte(sql+";"+raiseSQL))
	p.insert(m.scratch[at:])
	e := m.pushQuery()
	e.told = m.held()
	e.inserts = []insertion{{index: 0, n: len(sql) + 1, guard: fullCheck}, {index: 1, n: len(raiseSQL), guard: refusal, refuse: retryRefusal}}
}
