package protocol

import (
	"encoding/binary"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// extended takes Parse, Bind, Describe, Execute or Close, of which avail bytes have arrived.
func (s *Session) extended(in []byte, n int, f wire.Frame, avail int, p *gate.Plan) (taken int, need NeedKind) {
	if need := s.needRegister(); need != NeedNothing {
		return 0, need
	}
	m := extendedMessage{typ: f.Type}
	if need := s.read(&m, in[n+wire.HeaderLen:n+avail]); need != NeedNothing {
		return 0, need
	}
	if m.runs && s.awaitsRuns() {
		if !s.exchange.flushed {
			s.exchange.flushed = true
			p.Own(flush)
		}
		s.inHand.awaitsRuns = true
		return 0, NeedRoom
	}
	if m.typ == 'B' && m.refusal == nil && m.prepared != nil && joinsForBlock(m.prepared.statement) {
		if need := s.bindChoice(&m, p); need != NeedNothing {
			return 0, need
		}
	}
	if m.refusal == nil && m.runs && s.exchange.over != notOver && !(s.exchange.over == ended && m.begins()) && !(m.prepared != nil && runsNothing(m.prepared.statement)) {
		m.refusal = afterEndRefusal
	}
	if s.exchange.kind == noExchange {
		if need := s.begins(p); need != NeedNothing {
			return 0, need
		}
		s.exchange = s.newExchange(batchExchange)
	}
	if m.refusal != nil {
		s.refuseInBatch(p, m.name, m.text, m.refusal, Attempt{Text: m.audit, Write: m.write})
		return s.drop(f, avail), NeedNothing
	}
	if m.discards {
		s.discardExecute(p, m.prepared)
		s.body = passthrough{left: f.Size - avail}
		s.sent(&m)
		return avail, NeedNothing
	}
	s.gate.Pass(p, n, n+avail, f.Size-avail, s.reason())
	s.body = passthrough{left: f.Size - avail}
	s.sent(&m)
	return avail, NeedNothing
}

// bindChoice does what has to precede the Bind of a SET LOCAL fencepost.resource, which counts as its execution.
func (s *Session) bindChoice(m *extendedMessage, p *gate.Plan) (need NeedKind) {
	if s.txn == 'E' && !s.exchange.resumed || s.exchange.failed {
		return NeedNothing
	}
	if need := s.awaitBatch(p); need != NeedNothing {
		return need
	}
	if m.refusal, need = s.join(m.prepared.statement, false); m.refusal != nil || need != NeedNothing {
		m.audit = m.prepared.text
		return need
	}
	switch opens := s.blockNeed(); {
	case opens == NeedRegister:
		return NeedRegister
	case opens == NeedRoom && s.exchange.kind == noExchange:
		return s.begins(p)
	case opens == NeedRoom:
		return s.sendWithin(p, s.blockSetup())
	}
	s.applyLocalChoice()
	return NeedNothing
}

var flush = []byte{'H', 0, 0, 0, 4}

// extendedMessage is what is known of a message of the extended protocol.
type extendedMessage struct {
	typ      byte
	runs     bool // it may run something
	name     string
	portal   string
	prepared *prepared
	refusal  *fencing.Refusal
	text     string // what takes the place of a refused Parse: see poison
	audit    string
	write    bool
	// discards: of an Execute, which is not sent
	discards bool
}

// begins reports whether m is of a BEGIN that leaves the transaction read-only.
func (m *extendedMessage) begins() bool {
	return m.prepared != nil && m.prepared.statement.Kind == sqltext.Begin && overBy(m.prepared.statement) == notOver
}

// read finds out what m is, and whether it is refused. What is not as it should be the server rejects.
func (s *Session) read(m *extendedMessage, body []byte) (need NeedKind) {
	switch m.typ {
	case 'P':
		return s.readParse(m, body)
	case 'B':
		portal, rest, _ := wire.CString(body)
		name, _, _ := wire.CString(rest)
		m.runs, m.portal, m.prepared = true, string(portal), s.statement(name)
		return s.readUse(m, name)
	case 'D':
		if len(body) > 1 && body[0] == 'S' {
			name, _, _ := wire.CString(body[1:])
			m.runs, m.prepared = true, s.statement(name)
			return s.readUse(m, name)
		}
	case 'E':
		portal, _, _ := wire.CString(body)
		m.runs, m.portal, m.prepared = true, string(portal), s.exchange.portals[string(portal)]
		m.discards = m.prepared != nil && len(body) == len(portal)+5 && s.discards(m.prepared.statement)
		return s.readExecute(m)
	case 'C':
		if len(body) > 1 && body[0] == 'S' {
			name, _, _ := wire.CString(body[1:])
			m.name = string(name)
		} else {
			m.typ = 'c' // of a portal
			if len(body) > 1 {
				portal, _, _ := wire.CString(body[1:])
				delete(s.exchange.portals, string(portal))
			}
		}
	}
	return NeedNothing
}

// readParse is read for a Parse. What Postgres rejects because it is several statements passes.
func (s *Session) readParse(m *extendedMessage, body []byte) (need NeedKind) {
	name, rest, _ := wire.CString(body)
	sql, types, _ := wire.CString(rest)
	t, need := s.analyze(sql)
	if need != NeedNothing {
		return need
	}
	m.runs, m.name = true, string(name)
	switch {
	case t.Known && len(t.Statements) != 1:
		m.prepared = plainRead
		return NeedNothing
	case t.Known:
		m.prepared = s.preparedOf(&t.Statements[0], sql, namesUserType(types))
		m.refusal, need = s.decide(&t.Statements[0], namesUserType(types))
		m.write = !t.Statements[0].Read
	default:
		m.refusal, need = s.decide(nil, false)
		m.refusal, m.write = fencing.UnreadText(m.refusal, t.Unread()), true
	}
	if m.refusal != nil {
		m.audit = auditText(sql)
		m.text = poison(sql, t.Known)
	}
	return need
}

// readUse is read for the Bind and the Describe of a prepared statement. Before 16, a statement must be
// proven when it is used, too, because its names may have got another meaning.
func (s *Session) readUse(m *extendedMessage, name []byte) (need NeedKind) {
	switch {
	case m.prepared != nil && m.prepared != plainRead:
		m.refusal, need = s.decide(m.prepared.statement, !m.prepared.proven)
		m.audit, m.write = m.prepared.text, !m.prepared.statement.Read
	case m.prepared == nil && s.mayBeAny(name) && s.txn != 'E':
		m.refusal, need = s.decide(nil, false)
		m.write = true
	}
	return need
}

// readExecute is read for an Execute. What its portal runs was checked at its Bind.
func (s *Session) readExecute(m *extendedMessage) (need NeedKind) {
	if m.prepared == nil {
		return NeedNothing
	}
	if st := m.prepared.statement; joinsForSession(st) && s.txn != 'E' {
		m.refusal, need = s.join(st, len(s.exchange.runs) == 0)
		m.audit = m.prepared.text
	}
	return need
}

// sent follows a message that was sent in a batch.
func (s *Session) sent(m *extendedMessage) {
	x := &s.exchange
	x.unanswered, x.flushed = x.unanswered+1, false
	switch m.typ {
	case 'P':
		s.trackFenceStatement(wire.CutName(m.name), m.prepared)
		x.ops = append(x.ops, op{reply: '1', name: wire.CutName(m.name), prepared: m.prepared})
	case 'C':
		x.ops = append(x.ops, op{reply: '3', close: true, name: wire.CutName(m.name)})
	case 'c':
		x.ops = append(x.ops, op{reply: '3'})
	case 'B':
		if x.portals == nil {
			x.portals = map[string]*prepared{}
		}
		x.portals[m.portal] = m.prepared
	case 'E':
		x.runs = append(x.runs, m.prepared)
		x.maySet = x.maySet || mayHaveSet(m.prepared)
		if m.prepared == nil {
			x.unknown++
		}
		if s.inHand.chosen != nil {
			x.chosen = s.inHand.chosen
		}
		if m.prepared != nil {
			s.ran(s.overBy(m.prepared.statement))
			if s.resumesBlock(m.prepared.statement) {
				x.over = max(x.over, mayWrite)
			}
		}
	}
}

// ran follows a statement of a batch after which the transaction is over, or may be READ WRITE.
func (s *Session) ran(by over) {
	x := &s.exchange
	if by != notOver {
		x.unsure = true
	}
	if by != notOver || x.over == ended { // after the end, only BEGIN may follow
		x.over = max(by, x.over)
		if by == notOver {
			x.over = mayWrite
		}
	}
}

// namesAreThere reports whether the names of a Bind are in the part of its body that has arrived.
func namesAreThere(body []byte) bool {
	_, rest, ok := wire.CString(body)
	if !ok {
		return false
	}
	_, _, ok = wire.CString(rest)
	return ok
}

// namesUserType reports whether the types of a Parse include one that is not built in.
func namesUserType(types []byte) bool {
	const firstUser = 16384
	if len(types) < 2 {
		return false
	}
	for types = types[2:]; len(types) >= 4; types = types[4:] {
		if binary.BigEndian.Uint32(types) >= firstUser {
			return true
		}
	}
	return false
}
