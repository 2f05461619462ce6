package protocol

import (
	"encoding/binary"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// queryMessage handles a simple Query. What it needs goes into its text, never
// into messages in front of it: PostgreSQL 18 would answer and not commit.
func (m *Machine) queryMessage(body []byte, n, avail int, p *gate.Plan) NeedKind {
	m.beginBatch()
	text, _, _ := wire.CString(body)
	if m.wantsSync(text) {
		if need := m.syncBefore(p); need != NeedNothing {
			return need
		}
	}
	if r, ok := gate.Unfenced(m.config.Mode == ModePassing); ok && m.config.Mode == ModePassing {
		m.observeQuery(text, body)
		m.sendQuery(n, avail, p, r)
		return NeedNothing
	}
	if r, ok := gate.Inert('Q', body); ok {
		m.sendQuery(n, avail, p, r).class = isRead
		return NeedNothing
	}
	by := m.newQueryInjector(text, n, avail, p)
	many := m.statementsOf(text, &by.one)
	if many == nil {
		return m.queryOne(by)
	}
	if r, empty := gate.Empty(many); empty {
		m.sendQuery(n, avail, p, r).class = isRead
		return NeedNothing
	}
	return m.queryMany(many, text, n, avail, p)
}

// statementsOf reads the text of a Query into one, which must be empty, if it is one statement or
// cannot be read. It returns the statements if there are several, or none.
func (m *Machine) statementsOf(text []byte, one *statement) (many *sqltext.Text) {
	if one.known = one.info.Quick(text); one.known {
		return nil
	}
	if len(text) > maxAnalyzed || m.unsettled(text) && !sqltext.AtMostOne(text) {
		one.guess = sqltext.GuessOf(text)
		return nil
	}
	switch t := m.analyze(text); {
	case !t.Known:
		one.guess = sqltext.GuessOf(text)
		return nil
	case len(t.Statements) == 1:
		one.info, one.known = t.Statements[0], true
		return nil
	default:
		return t
	}
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

// audited keeps what an audit line would say of a Query's statement.
func (m *Machine) audited(e *reply, s *statement, text []byte) *reply {
	if m.config.Mode != ModePassing {
		e.class = s.class
		m.pendingReplies.keepText(e, text)
	}
	return e
}

// sendPrefixed sends the Query with a statement of Fencepost's in front of its text.
func (m *Machine) sendPrefixed(prefix []byte, g injectedCheck, n, avail int, p *gate.Plan, r gate.Reason) *reply {
	at := len(m.scratch)
	header := binary.BigEndian.AppendUint32(append(m.scratch, 'Q'), uint32(avail-1+len(prefix)))
	m.scratch = append(header, prefix...)
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
