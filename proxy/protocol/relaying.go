package protocol

import (
	"bytes"
	"fmt"
	"regexp"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// mayRelay reports whether the transaction that comes next, or that in hand, may be relayed.
func (s *Session) mayRelay() bool {
	switch {
	case s.config.Mode == ModePassing, !fencing.Checking:
		return true
	case s.config.Mode == ModeFenced:
		return s.leads() && s.isRegisteredFor(s.currentChoice()) || s.leftToGuards()
	default:
		return false
	}
}

// leftToGuards reports whether the writes of a worker that does not lead are left to the guards of the resource's tables. It has
// never had an epoch, so that none was announced to its client.
func (s *Session) leftToGuards() bool {
	if !s.config.Tables || s.currentChoice() != &s.choices.startup || s.startup.epochs.current != 0 {
		return false
	}
	st := s.startup.Status()
	return st.Epoch == 0 && st.Holder.Guards > 0 && st.Fault == nil
}

// isAtRest reports that the server has answered all that was relayed, is outside a transaction, and has been sent nothing since.
func (s *Session) isAtRest() bool { return s.relay.quiet() && !s.relay.inBatch && s.txn == 'I' }

// startRelay begins the relay, between two exchanges.
func (s *Session) startRelay() {
	r := &s.relay
	s.relay = relay{on: true, pending: pending{queue: r.queue}, text: r.text[:0], stmt: r.stmt[:0], named: r.named[:0]}
	s.relay.reason = s.relayReason()
	s.exchange, s.relayEntry = exchange{}, relayEntry{}
	clear(s.names)
}

// stopRelay ends the relay. All that was relayed is answered.
func (s *Session) stopRelay() {
	r := &s.relay
	r.on = false
	if r.inBatch {
		s.exchange = s.newExchange(batchExchange)
		s.exchange.resumed, s.exchange.skip, s.exchange.failed = true, r.skipping, r.skipping
	}
	s.settings.unsure = s.txn == 'T' || r.inBatch
	if s.txn == 'T' && !r.inBatch && s.isRegisteredFor(s.currentChoice()) { // the block began as a leader's
		s.settings.unsure, s.choices.block = false, blockWrites
	}
	s.needsNames, s.unknownUnnamed = true, true
	clear(s.names)
	for name, e := range s.fenceStatements {
		s.apply(op{reply: '1', name: name, entry: e})
	}
}

// begins reports whether a message of this type may begin a transaction.
func begins(typ byte) bool {
	switch typ {
	case 'Q', 'P', 'B', 'D', 'E', 'F', 'C':
		return true
	default:
		return false
	}
}

// relayReason is the reason for which the messages of a relayed session pass.
func (s *Session) relayReason() gate.Reason {
	if r, ok := gate.Unfenced(s.config.Mode == ModePassing); ok {
		return r
	}
	if r, ok := gate.Registered(s.isRegisteredFor(s.currentChoice())); ok {
		return r
	}
	r, _ := gate.Guarded(s.startup.Status().Holder.Guards)
	return r
}

// relayMessage relays the message that begins at in[n], as much as has arrived of it. If it takes nothing and
// needs nothing, the relay has ended.
func (s *Session) relayMessage(in []byte, n int, p *gate.Plan) (taken int, need NeedKind) {
	r := &s.relay
	f, ok, err := wire.PeekClientFrame(in[n:])
	if !serverReads(in[n]) || err != nil {
		return s.relayLast(in, n, err, p), NeedNothing
	}
	if !ok {
		s.inHand.messageLen = wire.HeaderLen
		return 0, NeedMore
	}
	if (r.own != nil || r.queue.len() >= maxRelayed) && f.Type != 'X' {
		return 0, NeedRoom
	}
	avail := min(f.Size, len(in)-n)
	body := in[n+wire.HeaderLen : n+avail]
	if s.config.Mode == ModeFenced {
		taken, need, handled := s.inspectFenced(f, body, p)
		if handled {
			return taken, need
		}
	}
	if avail < f.Size && f.Type != 'X' && (!gate.Runs(f.Type) || s.config.Shadow != nil && !shadowable(f.Type, body)) {
		s.inHand.messageLen = f.Size
		return 0, NeedMore
	}
	if s.config.Shadow != nil {
		s.config.Shadow.ClientSent(f.Type, body, s.settings.reading)
	}
	s.followRelayed(f.Type, body)
	switch {
	case f.Type == 'X':
		p.Relay(n, n+avail)
		return avail, NeedTerminal
	case gate.Runs(f.Type):
		s.gate.Pass(p, n, n+avail, f.Size-avail, s.relay.reason)
	default:
		p.Relay(n, n+avail)
	}
	s.body = passthrough{left: f.Size - avail}
	return avail, NeedNothing
}

// shadowable reports whether the part of a message that has arrived is enough for Config.Shadow.
func shadowable(typ byte, body []byte) bool {
	switch typ {
	case 'Q', 'P', 'E':
		return false
	case 'B':
		return namesAreThere(body)
	default:
		return true
	}
}

// relayLast relays a message after which the server closes the connection: of an unknown type, or of a length that is invalid
// for its type (err). What follows is dropped: input that the server leaves unread would reset the
// connection, which discards what it has said and not yet delivered.
func (s *Session) relayLast(in []byte, n int, err error, p *gate.Plan) (taken int) {
	if serverReads(in[n]) {
		r, _ := gate.Malformed(err)
		s.gate.Pass(p, n, n+wire.HeaderLen, 0, r)
	} else {
		p.Relay(n, n+1)
	}
	s.muted = true
	return len(in) - n
}

// inspectFenced looks at a message of a worker before it is relayed. taken and need are as for relayMessage. handled says that
// nothing more is to be done with it in this call.
func (s *Session) inspectFenced(f wire.Frame, body []byte, p *gate.Plan) (taken int, need NeedKind, handled bool) {
	r := &s.relay
	if (begins(f.Type) || f.Type == 'd') && (s.isAtRest() || r.lost) {
		switch {
		case s.mayRelay():
			r.reason = s.relayReason()
		case r.lost:
			s.err = errLost
			return 0, NeedNothing, true
		case len(s.registered) > 0:
			return 0, NeedUnregister, true
		default:
			s.stopRelay()
			return 0, NeedNothing, true
		}
	}
	if r.isSkipping() {
		return 0, NeedNothing, false
	}
	switch f.Type {
	case 'Q', 'P':
		if len(body) < f.Size-wire.HeaderLen {
			s.inHand.messageLen = f.Size
			return 0, NeedMore, true
		}
		if s.mustCampaignFirst(f.Type, body) {
			return 0, NeedCampaign, true
		}
		if s.concerns(body) {
			return s.relayText(f, body, p)
		}
	case 'B':
		if len(s.fenceStatements) == 0 {
			return 0, NeedNothing, false
		}
		if len(body) < f.Size-wire.HeaderLen && !namesAreThere(body) {
			s.inHand.messageLen = f.Size
			return 0, NeedMore, true
		}
		_, rest, _ := wire.CString(body)
		name, _, _ := wire.CString(rest)
		if e := s.fenceStatements[string(wire.CutName(name))]; e != nil {
			if len(body) < f.Size-wire.HeaderLen {
				s.inHand.messageLen = f.Size
				return 0, NeedMore, true
			}
			return s.relayStatements([]sqltext.Statement{*e.statement}, f, p)
		}
	}
	return 0, NeedNothing, false
}

// concerns reports whether a text may be about Fencepost, or may undo what the session has chosen.
func (s *Session) concerns(text []byte) bool {
	return sqltext.ConcernsFencepost(text) || s.choices.session != nil && sqltext.MayReset(text) || len(s.fenceStatements) > 0 && sqltext.MayExecute(text)
}

// mustCampaignFirst reports whether the candidacy of a worker whose writes are left to guards has to be given the chance to lead
// first: no one leads, and the text may write.
func (s *Session) mustCampaignFirst(typ byte, body []byte) bool {
	if fencing.Checking && s.config.Tables && s.startup.Status().Vacant && s.isAtRest() && s.inHand.done < NeedCampaign && s.leftToGuards() {
		a := Attempt{}
		s.attemptMessage(&a, &madeBy{}, typ, body)
		return a.Write
	}
	return false
}

// relayText relays a text that may be about Fencepost, or deals with it.
func (s *Session) relayText(f wire.Frame, body []byte, p *gate.Plan) (taken int, need NeedKind, handled bool) {
	name, sql := []byte(nil), body
	if f.Type == 'P' {
		name, sql, _ = wire.CString(body)
	}
	sql, _, _ = wire.CString(sql)
	if sqltext.DependsOnSettings(sql) && sqltext.PreparesTransaction(sql) {
		// What was relayed before it may change the settings. The server reports them with ReadyForQuery.
		if need := s.awaitRelayed(p); need != NeedNothing || s.err != nil {
			return 0, need, true
		}
		if s.relay.inBatch {
			return s.relayRefusal(f, name, sql, false, fencing.TwoPhaseRefusal, p)
		}
	}
	t, need := s.analyze(sql)
	if need != NeedNothing {
		return 0, need, true
	}
	if !t.Known {
		switch {
		case sqltext.PreparesTransaction(sql):
			return s.relayRefusal(f, name, sql, false, fencing.TwoPhaseRefusal, p)
		case sqltext.MayChoose(sql):
			return s.relayRefusal(f, name, sql, false, fencing.UnreadableChoiceRefusal, p)
		default:
			return 0, NeedNothing, false
		}
	}
	for i := range t.Statements {
		st := &t.Statements[i]
		switch {
		case st.Kind == sqltext.Refused:
			return s.relayRefusal(f, name, sql, true, fencing.TwoPhaseRefusal, p)
		case s.executesChoice(st):
			return s.relayRefusal(f, name, sql, true, fencing.ExecutedChoiceRefusal, p)
		case st.Kind == sqltext.SetFence:
			if r := s.decideSet(st); r != nil {
				return s.relayRefusal(f, name, sql, true, r, p)
			}
		}
	}
	if f.Type == 'P' {
		if len(t.Statements) == 1 && !s.relay.inBatch && s.changesChoice(&t.Statements[0]) {
			if need := s.awaitRelayed(p); need != NeedNothing || s.err != nil {
				return 0, need, true
			}
			s.inHand.settled = true
			s.stopRelay()
			return 0, NeedNothing, true
		}
		if len(t.Statements) == 1 {
			s.trackFenceStatement(wire.CutName(string(name)), &entry{statement: &t.Statements[0], text: auditText(sql), proven: true})
		}
		return 0, NeedNothing, false
	}
	return s.relayStatements(t.Statements, f, p)
}

// relayStatements relays statements that are about to run and may be about Fencepost, or deals with them.
func (s *Session) relayStatements(all []sqltext.Statement, f wire.Frame, p *gate.Plan) (taken int, need NeedKind, handled bool) {
	r := &s.relay
	shows := false
	var sets *sqltext.Statement // of the epoch
	for i := range all {
		st := &all[i]
		switch {
		case i == 0 && s.txn == 'E' && r.quiet() && !r.inBatch: // Postgres refuses it
		case fencing.Checking && joinsCandidacy(st), s.changesChoice(st):
			if need := s.awaitRelayed(p); need != NeedNothing || s.err != nil {
				return 0, need, true
			}
			if (r.inBatch || s.endsBySync) && !joinsForBlock(st) {
				return s.relayRefusal(f, nil, nil, true, insideRefusal(st), p)
			}
			s.inHand.settled = true // the settled session deals with it
			s.stopRelay()
			return 0, NeedNothing, true
		case st.Kind == sqltext.SetFence:
			sets = st
		case st.Kind == sqltext.ShowFence:
			shows = true
		}
	}
	if shows {
		if need := s.campaign(); need != NeedNothing && r.quiet() {
			return 0, need, true
		}
		var o own
		if s.show(&o); len(o.sql) > 0 {
			return s.relayOwn(o, p)
		}
		r.shows = true
	}
	if sets != nil {
		if e, ok := epochOf(sets); ok {
			r.sets, r.epoch = true, e
		}
		s.settings.shown = shown{} // the server has the client's value
	}
	return 0, NeedNothing, false
}

// changesChoice reports whether a statement sets a token, or what the session has chosen.
func (s *Session) changesChoice(st *sqltext.Statement) bool {
	return fencing.Checking && (joinsForSession(st) || s.choices.session != nil && st.Does(sqltext.ResetsAll))
}

// insideRefusal is the refusal of a statement that chooses for the session, or sets a token, inside a transaction.
func insideRefusal(st *sqltext.Statement) *fencing.Refusal {
	if st.Name == "token" {
		return fencing.TokenInTransactionRefusal
	}
	return fencing.ChooseInTransactionRefusal
}

// relayOwn sends something of Fencepost's own, once all that was relayed is answered.
func (s *Session) relayOwn(o own, p *gate.Plan) (taken int, need NeedKind, handled bool) {
	if need := s.awaitRelayed(p); need != NeedNothing || s.err != nil {
		return 0, need, true
	}
	r := &s.relay
	if s.txn == 'E' || s.endsBySync && !r.inBatch {
		return 0, NeedNothing, false
	}
	if s.relayEntry.failures >= maxFailures {
		s.err = errMode
		return 0, NeedNothing, true
	}
	if r.inBatch {
		p.Own(o.appendWithin(nil))
	} else {
		p.Own(o.appendTo(nil))
	}
	r.own = &o
	return 0, NeedRoom, true
}

// relayRefusal sends, in place of a message, a text that Postgres cannot parse, once all that was relayed before is answered.
func (s *Session) relayRefusal(f wire.Frame, name, sql []byte, known bool, refusal *fencing.Refusal, p *gate.Plan) (taken int, need NeedKind, handled bool) {
	if need := s.awaitRelayed(p); need != NeedNothing || s.err != nil {
		return 0, need, true
	}
	if s.txn == 'E' && refusal != fencing.TwoPhaseRefusal { // Postgres refuses it, too
		return 0, NeedNothing, false
	}
	text := poison(sql, known)
	s.relay.refusal, s.relay.refused = refusal, Attempt{Text: auditText(sql), Write: true}
	if f.Type == 'Q' {
		s.gate.PassText(p, wire.AppendQuery(nil, []byte(text)), unparsable(text))
		s.relay.clientSent('Q', []byte(text))
	} else {
		s.gate.PassText(p, wire.AppendParse(nil, string(name), text), unparsable(text))
		s.relay.clientSent('P', nil)
	}
	s.body = passthrough{left: 0}
	return f.Size, NeedNothing, true
}

// awaitRelayed waits until everything that was relayed is answered. In a batch, the server is asked for the answers.
func (s *Session) awaitRelayed(p *gate.Plan) NeedKind {
	r := &s.relay
	switch {
	case r.isUncertain():
		s.err = errLost
		return NeedNothing
	case r.quiet():
		r.awaitsReplies = false
		return NeedNothing
	case r.queue.last() == kindStep:
		p.Own(flush)
		r.sent('H', 0)
	}
	r.awaitsReplies = true
	return NeedRoom
}

// followRelayed follows a message that is relayed. body is what has arrived of it.
func (s *Session) followRelayed(typ byte, body []byte) {
	r := &s.relay
	s.endsBySync = s.endsBySync || typ == 'Q' && r.inBatch
	r.clientSent(typ, body)
	switch typ {
	case 'P':
		if name, sql, ok := wire.CString(body); ok {
			sql, _, _ = wire.CString(sql)
			r.keepText(sql)
			r.named = append(r.named, wire.CutName(name)...)
			if len(s.fenceStatements) > 0 && !sqltext.ConcernsFencepost(sql) {
				delete(s.fenceStatements, string(wire.CutName(name)))
			}
			if len(name) > 0 && s.config.Mode == ModeFenced {
				s.nameRelayed(wire.CutName(name), sql)
			}
		}
	case 'B':
		if _, rest, ok := wire.CString(body); ok {
			if name, _, ok := wire.CString(rest); ok && len(name) > 0 && !bytes.Equal(wire.CutName(name), r.named) {
				r.text, r.stmt, r.named = r.text[:0], append(r.stmt[:0], wire.CutName(name)...), r.named[:0]
			}
		}
	}
}

// maxRelayedNames bounds how many names of prepared statements a relayed session keeps for the audit.
const maxRelayedNames = 1024

// nameRelayed keeps the text of a prepared statement for the audit.
func (s *Session) nameRelayed(name, sql []byte) {
	if len(s.names) >= maxRelayedNames {
		return
	}
	if s.names == nil {
		s.names = names{}
	}
	s.names[string(name)] = &entry{text: string(sql[:min(len(sql), maxRelayedText)])}
}

// relayReply takes the message of the server's that begins at in[n], or more of one.
func (s *Session) relayReply(in []byte, n int, p *gate.Segments) (taken int, err error) {
	r := &s.relay
	f, ok, err := wire.PeekFrame(in[n:])
	if err != nil || !ok {
		return 0, err
	}
	avail := min(f.Size, len(in)-n)
	if r.own != nil {
		return s.relayOwnReply(in, n, f, p)
	}
	drop := false
	switch f.Type {
	case 'E', 'S', 'Z':
		if avail < f.Size {
			return 0, nil
		}
		if drop, err = s.followReply(f, in[n:n+f.Size], p); err != nil {
			return 0, err
		}
	default:
		if f.Type == 'C' && s.settings.shown.valid {
			tag, _, _ := wire.CString(in[n+wire.HeaderLen : n+avail])
			s.settings.followTag(unsafeString(tag))
		}
		r.answered(f.Type)
	}
	if !drop {
		p.Forward(n, n+avail)
	}
	s.reply = passthrough{f.Size - avail, drop}
	return avail, nil
}

// followReply follows a message of the server's that the session reads. drop says that it does not go to the client.
func (s *Session) followReply(f wire.Frame, msg []byte, p *gate.Segments) (drop bool, err error) {
	r := &s.relay
	body := msg[wire.HeaderLen:]
	switch f.Type {
	case 'E':
		e, ok := wire.DecodeError(body)
		if !ok {
			return false, fmt.Errorf("%w: an error that cannot be read", ErrUnexpectedReply)
		}
		out := s.relayedError(msg, &e)
		if e.Fatal() {
			end := Event{Kind: EventEnded, Err: e, Message: bytes.Clone(msg)}
			if out != nil {
				end.Message = bytes.Clone(out)
			}
			s.emit(end)
			return true, nil
		}
		r.answered('E')
		r.failed = true
		p.Insert(out)
		return out != nil, nil
	case 'S':
		return s.parameter(body), nil
	case 'Z':
		if len(body) != 1 {
			return false, fmt.Errorf("%w: a ReadyForQuery of %d bytes", ErrUnexpectedReply, f.Size)
		}
		s.relayReady(body[0], p)
	}
	return false, nil
}

// relayReady follows ReadyForQuery.
func (s *Session) relayReady(status byte, p *gate.Segments) {
	r := &s.relay
	failed := r.failed
	r.ready()
	r.failed = false
	s.txn = status
	s.countTransaction(status)
	if s.config.Shadow != nil && r.quiet() && !r.inBatch {
		s.config.Shadow.Ready(status)
	}
	if s.config.Mode != ModeFenced {
		return
	}
	if r.shows || r.sets {
		if r.sets && !failed {
			s.startup.epochs.expect(r.epoch)
		} else if r.shows && !failed {
			for _, one := range s.currentChoice().all {
				one.epochs.expect(one.shown)
			}
		}
		r.shows, r.sets = false, false
	}
	if status == 'I' {
		s.endsBySync = false
		if s.settings.shown.inBlock {
			s.settings.shown = shown{}
		}
		s.transactionEnded()
	}
	s.reportChanges(p)
}

// relayOwnReply follows a reply to something of Fencepost's own.
func (s *Session) relayOwnReply(in []byte, n int, f wire.Frame, p *gate.Segments) (taken int, err error) {
	r := &s.relay
	if len(in)-n < f.Size {
		return 0, nil
	}
	msg := in[n : n+f.Size]
	body := msg[wire.HeaderLen:]
	switch f.Type {
	case 'A':
		p.Forward(n, n+f.Size)
	case 'S':
		p.Forward(n, n+f.Size)
		s.settings.followParameter(body)
	case 'E':
		e, ok := wire.DecodeError(body)
		if !ok {
			return 0, fmt.Errorf("%w: an error that cannot be read", ErrUnexpectedReply)
		}
		if e.Fatal() {
			s.emit(Event{Kind: EventEnded, Err: e, Message: bytes.Clone(msg)})
			return f.Size, nil
		}
		s.ownFailed(r.own)
		if r.inBatch { // the server skips up to the Sync, as for an error of the client's
			out := bytes.Clone(msg)
			if s.inHand.refusal != nil {
				out = s.refuse(s.inHand.refusal, "ERROR", Attempt{})
			}
			p.Insert(out)
			r.skipping, r.failed, r.own = true, true, nil
		} else {
			r.own.failed = true
			if s.txn == 'T' {
				s.blockError = bytes.Clone(msg)
			}
		}
	case 'Z':
		if !r.own.failed {
			s.relayEntry.failures = 0
			s.ownWorked(r.own, body[0] != 'I')
		}
		s.txn, r.own = body[0], nil
	default:
		if r.inBatch && r.own.answered(f.Type) {
			s.ownWorked(r.own, true)
			r.own = nil
		}
	}
	return f.Size, nil
}

// relayedError returns what the client gets in place of an error, nil if it gets the error itself.
func (s *Session) relayedError(msg []byte, e *wire.ServerError) []byte {
	r := &s.relay
	switch {
	case r.refusal != nil && isRefusedWord(e):
		refusal := r.refusal
		r.refusal = nil
		return s.refuse(refusal, e.Severity, r.refused)
	case r.refusal != nil && e.Code == "42601":
		r.refusal = nil
		return s.ownSyntaxError(msg, e, r.refused.Text)
	case s.blockError != nil && e.Code == "25P02":
		out := s.blockError
		s.blockError = nil
		return out
	case s.config.Mode == ModeFenced && isGuardError(e):
		return s.guardError(msg, e)
	default:
		return nil
	}
}

// guardLines matches the lines of the triggers of guarded tables in the context of an error, which come first there. The
// names of functions do not depend on lc_messages. The name of a trigger function has no schema if the control role is called
// fencepost, because "$user" is in search_path. Nothing quoted may precede the name in the first line, or a function of the
// client's could imitate it.
var guardLines = regexp.MustCompile(`^[^\n"]*\bfencepost\.(?:refuse|guard_[0-9]+)\([^\n]*(?:\n|$)(?:[^\n]*\b(?:fencepost\.refuse|(?:fencepost\.)?guard_[0-9]+)[^\n]*(?:\n|$))*`)

// isGuardError reports whether an error comes from the trigger of a guarded table.
func isGuardError(e *wire.ServerError) bool {
	switch e.Code {
	case fencing.StateSuperseded, fencing.StateNotLeader, fencing.StateNoFence:
		return guardLines.MatchString(e.Where)
	default:
		return false
	}
}

// guardError is what the client sees of an error of a trigger. If its writes are left to the guards, it learns
// who leads.
func (s *Session) guardError(msg []byte, e *wire.ServerError) []byte {
	found, ok := fencing.DecodeFinding(e.Detail)
	st := s.startup.Status()
	if ok && found.Resource == s.startup.Resource && e.Code == fencing.StateNotLeader && s.config.Tables {
		r := fencing.GuardedRefusal(e.Message, s.startup.Resource, s.config.Worker, s.startup.Incarnation, st)
		return s.refuse(r, e.Severity, Attempt{Text: s.relayedText(), Write: true})
	}
	return wire.EditError(nil, msg, func(field byte, v []byte) ([]byte, bool) {
		switch field {
		case 'W':
			v = v[len(guardLines.Find(v)):]
			return v, len(v) > 0
		case 'M':
			return []byte(fencing.Marked(e.Message, e.Code)), true
		default:
			return v, true
		}
	})
}

// relayedText is the start of the text that the server runs, as far as it is known.
func (s *Session) relayedText() string {
	r := &s.relay
	if len(r.stmt) > 0 {
		if e := s.names[string(r.stmt)]; e != nil {
			return e.text
		}
		return ""
	}
	return string(r.text)
}

// relayIs is Is for a relayed session.
func (s *Session) relayIs(c Condition) bool {
	r := &s.relay
	switch c {
	case Ready:
		return r.own == nil && (r.quiet() || r.isUncertain() || r.queue.len() <= maxRelayed/2 && !r.awaitsReplies)
	case Quiet:
		return r.own == nil && r.quiet() && !s.partial && !s.muted
	case AtRest:
		return r.own == nil && s.isAtRest() && !s.partial
	case Working:
		return r.own != nil || r.isWorking(s.body.left > 0)
	case ReplyPending:
		return r.own != nil || !r.quiet()
	default:
		panic("protocol: no condition")
	}
}
