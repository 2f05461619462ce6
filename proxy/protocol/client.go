package protocol

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

const (
	// inlineText is how much text one call of FromClient parses, under the session's lock and perhaps on
	// the event loop: a byte may cost the parser 4 µs. The owner analyzes the rest.
	inlineText = 512
	// maxAnalyzed is the length of text beyond which nothing is parsed: it is then a write.
	maxAnalyzed = 1 << 20
)

// message takes the message of the client's that begins at in[n], or more of one, as much as is
// there of it.
func (s *Session) message(in []byte, n int, p *gate.Plan) (taken int, need NeedKind) {
	if s.body.left > 0 {
		k := min(s.body.left, len(in)-n)
		if s.body.left -= k; !s.body.drop {
			s.gate.Rest(p, n, n+k)
		}
		return k, NeedNothing
	}
	if s.muted {
		return len(in) - n, NeedNothing
	}
	if !s.relay.on && s.exchange.kind == noExchange && s.canBecomeRelay() && s.defaultRestored() {
		switch taken, need, ok := s.relayRest(in, n, p); {
		case ok:
			return taken, need
		case s.parts.next == 0:
			s.startRelay()
		}
	}
	if s.relay.on {
		if taken, need = s.relayMessage(in, n, p); taken > 0 || need != NeedNothing || s.err != nil || s.relay.on {
			return taken, need
		}
	}
	f, ok, err := wire.PeekClientFrame(in[n:])
	known := serverReads(in[n])
	switch x := &s.exchange; {
	case known && err == nil && !ok:
		s.inHand.messageLen = wire.HeaderLen
		return 0, NeedMore
	case x.copyIn:
		return s.copyMessage(in, n, f, p)
	case (x.kind == ownExchange || x.kind == queryExchange || x.synced) && f.Type != 'X': // a Terminate waits for nothing
		return 0, NeedRoom
	case !known: // the server ends the connection over the type alone
		p.Relay(n, n+1)
		s.muted = true
		return len(in) - n, NeedNothing
	case err != nil: // or over the length
		r, _ := gate.Malformed(err)
		s.gate.Pass(p, n, n+wire.HeaderLen, 0, r)
		s.muted = true
		return len(in) - n, NeedNothing
	}
	return s.framed(in, n, f, p)
}

// framed is message for one with a header, between two exchanges or in a batch.
func (s *Session) framed(in []byte, n int, f wire.Frame, p *gate.Plan) (taken int, need NeedKind) {
	x := &s.exchange
	avail := min(f.Size, len(in)-n)
	switch f.Type {
	case 'd', 'c', 'f': // the server ignores it where no COPY reads
		return s.drop(f, avail), NeedNothing
	case 'F':
		if x.skip {
			return s.drop(f, avail), NeedNothing
		}
	case 'B':
		if avail < f.Size && !namesAreThere(in[n+wire.HeaderLen:]) {
			s.inHand.messageLen = f.Size
			return 0, NeedMore
		}
	default:
		if avail < f.Size {
			s.inHand.messageLen = f.Size
			return 0, NeedMore
		}
	}
	switch {
	case f.Type == 'X':
		p.Relay(n, n+avail)
		return avail, NeedTerminal
	case f.Type == 'H' && x.kind == noExchange: // nothing is to be flushed
		return avail, NeedNothing
	case f.Type == 'S':
		if x.kind == noExchange {
			*x = s.newExchange(batchExchange)
		}
		x.synced = true
		p.Relay(n, n+avail)
		return avail, NeedNothing
	case x.skip:
		return s.drop(f, avail), NeedNothing
	case f.Type == 'H':
		x.flushed = true
		p.Relay(n, n+avail)
		return avail, NeedNothing
	case f.Type == 'Q':
		return s.query(in, n, f, p)
	case f.Type == 'F':
		return s.functionCall(n, f, avail, p)
	default:
		return s.extended(in, n, f, avail, p)
	}
}

// drop takes a message of which avail bytes have arrived, and does not send it.
func (s *Session) drop(f wire.Frame, avail int) (taken int) {
	s.body = passthrough{left: f.Size - avail, drop: true}
	return avail
}

// copyMessage takes a message while the server reads COPY data. It ignores Flush and Sync there.
func (s *Session) copyMessage(in []byte, n int, f wire.Frame, p *gate.Plan) (taken int, need NeedKind) {
	avail := min(f.Size, len(in)-n)
	switch { // f is zero if its length is wrong
	case f.Type == 'd':
		s.gate.CopyData(p, n, n+avail, f.Size-avail)
		s.body = passthrough{left: f.Size - avail}
		return avail, NeedNothing
	case avail < f.Size:
		s.inHand.messageLen = f.Size
		return 0, NeedMore
	case f.Type == 'c', f.Type == 'f':
		s.exchange.copyIn = false
	case f.Type == 'S', f.Type == 'H':
		return avail, NeedNothing
	case f.Type == 'X':
		p.Relay(n, n+avail)
		return avail, NeedTerminal
	default: // the server would end the connection over its type
		s.err = errCopy
		return 0, NeedRoom
	}
	p.Relay(n, n+avail)
	return avail, NeedNothing
}

// needRegister asks for the registration, between two exchanges of a leader that knows that it leads.
func (s *Session) needRegister() NeedKind {
	if h := &s.inHand; s.exchange.kind == noExchange && s.txn == 'I' && !h.registerAnswered && !h.leftRelay && !s.parts.notRelayed && s.leads() && !s.isRegisteredFor(s.currentChoice()) {
		return NeedRegister
	}
	return NeedNothing
}

// parts is a Query that is sent in parts.
type parts struct {
	next       int  // the first of its statements that was not sent
	failed     bool // a part has failed, so the others are not sent
	alone      bool // the client has sent nothing after it
	notRelayed bool // the relay would have to look into it
}

// query takes a Query.
func (s *Session) query(in []byte, n int, f wire.Frame, p *gate.Plan) (taken int, need NeedKind) {
	if need, ok := s.endBatch(p); need != NeedNothing {
		return 0, need
	} else if !ok {
		s.refuseAfterBatch(p, Attempt{Write: true})
		return f.Size, NeedNothing
	}
	if s.parts.failed {
		s.parts = parts{}
		return f.Size, NeedNothing
	}
	if need := s.needRegister(); need != NeedNothing {
		return 0, need
	}
	sql, _, _ := wire.CString(in[n+wire.HeaderLen : n+f.Size]) // the server rejects one without an end, or with more after it
	t, need := s.analyze(sql)
	if need != NeedNothing {
		return 0, need
	}
	part, last := s.part(t)
	if s.exchange.kind == batchExchange && slices.ContainsFunc(part, func(st sqltext.Statement) bool { return joinsCandidacy(&st) }) {
		s.refuseAfterBatch(p, Attempt{})
		return f.Size, NeedNothing
	}
	if len(part) > 0 && joinsForBlock(&part[0]) && s.txn != 'E' {
		if need := s.queryChoice(t, &part[0], p); need != NeedNothing {
			return 0, need
		}
	}
	refusal, write, need := s.decideAll(t, part, last && len(t.Statements) == 1)
	if need != NeedNothing {
		return 0, need
	}
	if need := s.beginQuery(p); need != NeedNothing {
		return 0, need
	}
	s.exchange.statements, s.exchange.text = part, auditText(sql)
	switch {
	case refusal != nil:
		s.refuseQuery(p, sql, t.Known, refusal, write)
		last = true
	case len(t.Statements) == 1 && f.Size == wire.HeaderLen+len(sql)+1 && s.discards(&part[0]):
		s.discardQuery(p, sql, &part[0])
	case last && s.parts.next == 0:
		s.gate.Pass(p, n, n+f.Size, 0, s.reason())
	default:
		s.gate.PassText(p, wire.AppendQuery(nil, s.padding(sql[:part[0].Start]), sql[part[0].Start:part[len(part)-1].End]), s.reason())
	}
	for i := range part {
		s.exchange.unsure = s.exchange.unsure || s.overBy(&part[i]) != notOver
	}
	if last {
		s.parts = parts{}
		return f.Size, NeedNothing
	}
	s.parts.next, s.parts.alone = s.parts.next+len(part), n+f.Size == len(in)
	s.parts.notRelayed = s.concerns(sql)
	s.inHand = inHand{sql: s.inHand.sql, settings: s.inHand.settings, text: s.inHand.text, leftRelay: s.inHand.leftRelay, denied: s.inHand.denied}
	return 0, NeedRoom
}

// endBatch prepares the end of a batch by a Query or a FunctionCall in place of a Sync, as some drivers send it. ok is
// false if that has to be refused, because it is not known whether what follows runs in a read-only transaction.
func (s *Session) endBatch(p *gate.Plan) (need NeedKind, ok bool) {
	switch x := &s.exchange; {
	case x.kind != batchExchange:
		return NeedNothing, true
	case x.resumed, x.over != notOver, x.chosen != nil:
		return NeedNothing, false
	default: // if it fails, the server skips what follows up to a Sync
		return s.awaitBatch(p), true
	}
}

// beginQuery begins the exchange of a Query or a FunctionCall, also of one that ends a batch.
func (s *Session) beginQuery(p *gate.Plan) NeedKind {
	batch := s.exchange
	if batch.kind != batchExchange {
		if need := s.begins(p); need != NeedNothing {
			return need
		}
	}
	s.exchange = s.newExchange(queryExchange)
	if batch.kind == batchExchange {
		s.endsBySync = true
		s.exchange.denied, s.exchange.leftRelay = cmp.Or(s.exchange.denied, batch.denied), s.exchange.leftRelay || batch.leftRelay
	}
	return NeedNothing
}

// relayRest begins the relay with what is left of a Query that was sent in parts, if there is one.
func (s *Session) relayRest(in []byte, n int, p *gate.Plan) (taken int, need NeedKind, ok bool) {
	if s.parts.next == 0 {
		return 0, NeedNothing, false
	}
	f, _, _ := wire.PeekClientFrame(in[n:])
	sql, _, _ := wire.CString(in[n+wire.HeaderLen : n+f.Size])
	t, need := s.analyze(sql)
	if need != NeedNothing {
		return 0, need, true
	}
	if s.parts.next >= len(t.Statements) { // it reads otherwise now
		s.parts.notRelayed = true
		return 0, NeedNothing, false
	}
	first := t.Statements[s.parts.next].Start
	s.parts = parts{}
	s.startRelay()
	rest := wire.AppendQuery(nil, s.padding(sql[:first]), sql[first:])
	s.gate.PassText(p, rest, s.relay.reason)
	s.relay.clientSent('Q', rest[wire.HeaderLen:])
	return f.Size, NeedNothing, true
}

// queryChoice does what has to precede a part of a Query whose first statement, st, chooses for its block.
func (s *Session) queryChoice(t *sqltext.Text, st *sqltext.Statement, p *gate.Plan) NeedKind {
	refusal, need := s.join(st, len(t.Statements) == 1)
	if s.inHand.refusal = refusal; refusal != nil || need != NeedNothing {
		return need
	}
	switch s.blockNeed() {
	case NeedRegister:
		return NeedRegister
	case NeedRoom:
		return s.begins(p)
	}
	s.applyLocalChoice()
	return NeedNothing
}

// part returns the statements of the part of a Query that is sent next, and whether it is the last
// one. A part ends with a statement after which the transaction may not be read-only, and before one that
// chooses for its block. DISCARD ALL ends none: Postgres refuses it in a text of several statements.
func (s *Session) part(t *sqltext.Text) (part []sqltext.Statement, last bool) {
	part = t.Statements[min(s.parts.next, len(t.Statements)):]
	for i := range part {
		if i > 0 && joinsForBlock(&part[i]) {
			return part[:i], false
		}
		if (overBy(&part[i]) != notOver && !endsWithDiscard(&part[i]) || s.resumesBlock(&part[i])) && i+1 < len(part) {
			return part[:i+1], false
		}
	}
	return part, true
}

// resumesBlock reports whether a statement makes a failed block continue, so that what follows it runs.
func (s *Session) resumesBlock(st *sqltext.Statement) bool {
	return s.txn == 'E' && st.Kind == sqltext.RollbackTo
}

// padding returns spaces in place of the start of a text, so that the positions in errors stay
// what they are. Positions count characters.
func (s *Session) padding(start []byte) []byte {
	spaces := make([]byte, 0, len(start))
	for _, c := range start {
		if !s.settings.utf8 || c&0xc0 != 0x80 {
			spaces = append(spaces, ' ')
		}
	}
	return spaces
}

// functionCall takes a fast path call. It may run any function, and is refused except in a failed block, where the
// server refuses it.
func (s *Session) functionCall(n int, f wire.Frame, avail int, p *gate.Plan) (taken int, need NeedKind) {
	if need, ok := s.endBatch(p); need != NeedNothing {
		return 0, need
	} else if !ok {
		s.refuseAfterBatch(p, Attempt{Text: sqltext.FunctionCall, Write: true})
		return s.drop(f, avail), NeedNothing
	}
	if need := s.needRegister(); need != NeedNothing {
		return 0, need
	}
	var refusal *fencing.Refusal
	if s.txn != 'E' {
		if refusal, need = s.decide(nil, false); need != NeedNothing {
			return 0, need
		}
	}
	if need := s.beginQuery(p); need != NeedNothing {
		return 0, need
	}
	s.exchange.text = sqltext.FunctionCall
	if refusal != nil {
		s.refuseQuery(p, nil, true, refusal, true)
		return s.drop(f, avail), NeedNothing
	}
	s.gate.Pass(p, n, n+avail, f.Size-avail, s.reason())
	s.body = passthrough{left: f.Size - avail}
	return avail, NeedNothing
}

// analyze returns what is known of a text.
func (s *Session) analyze(sql []byte) (*sqltext.Text, NeedKind) {
	reading := s.settings.reading
	switch {
	case len(sql) > maxAnalyzed:
		return &sqltext.Text{}, NeedNothing
	case !sqltext.DependsOnSettings(sql):
		reading = sqltext.DefaultSettings
	case s.exchange.maySet:
		reading = sqltext.Settings{}
	}
	if h := &s.inHand; h.text != nil && h.sql == unsafeString(sql) && h.settings == reading {
		return h.text, NeedNothing
	}
	if t := s.config.Cache.Lookup(sql, reading); t != nil {
		return t, NeedNothing
	}
	if s.parsed += len(sql); s.parsed <= inlineText {
		return s.config.Cache.AnalyzeBytes(sql, reading), NeedNothing
	}
	s.inHand.sql, s.inHand.settings, s.inHand.text = string(sql), reading, nil
	return nil, NeedAnalysis
}

// mayHaveSet reports whether an Execute may have changed how the server reads a text, which is reported only
// with ReadyForQuery.
func mayHaveSet(e *prepared) bool {
	if e == nil {
		return true
	}
	st := e.statement
	return (st.Kind == sqltext.Session || st.Kind == sqltext.Discard || st.Does(sqltext.SetsConfig)) && sqltext.MayChangeReading([]byte(e.text))
}

// serverReads reports whether a server reads messages of this type in a session.
func serverReads(typ byte) bool {
	switch typ {
	case 'Q', 'P', 'B', 'D', 'E', 'C', 'S', 'H', 'X', 'F', 'd', 'c', 'f':
		return true
	default:
		return false
	}
}

// unsafeString returns b as a string that shares its memory.
func unsafeString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// auditText is the start of a text, for the audit.
func auditText(sql []byte) string { return string(sql[:min(len(sql), maxAuditText)]) }
