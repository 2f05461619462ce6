package protocol

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// concerns reports whether a text may be about Fencepost, or may undo what the session has chosen.
func (s *Session) concerns(text []byte) bool {
	return sqltext.ConcernsFencepost(text) || s.choices.session != nil && sqltext.MayReset(text) || len(s.fenceStatements) > 0 && sqltext.MayExecute(text)
}

// mustCampaignFirst reports whether the candidacy of a worker whose writes are left to guards has to be given the
// chance to lead first: no one leads, and the text may write.
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
			s.inHand.leftRelay = true
			s.stopRelay()
			return 0, NeedNothing, true
		}
		if need, handled := s.relayDefinition(p); handled {
			return 0, need, true
		}
		if len(t.Statements) == 1 {
			s.trackFenceStatement(wire.CutName(string(name)), &prepared{statement: &t.Statements[0], text: auditText(sql), proven: true})
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
			s.inHand.leftRelay = true // the settled session deals with it
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
	} else if need, handled := s.relayDefinition(p); handled {
		return 0, need, true
	}
	if sets != nil {
		if e, ok := epochOf(sets); ok {
			r.sets, r.epoch = true, e
		}
		s.settings.shown = shown{} // the server has the client's value
	}
	return 0, NeedNothing, false
}

// relayDefinition makes Fencepost's parameters known to the server in front of the first text that may be about them. It
// would refuse to describe a SHOW of an unknown one, and drivers that prepare their statements have them described before
// they run them. The startup packet could set them too, but before version 16 the server sorts all its parameters for each
// one that is new to it, in each backend.
func (s *Session) relayDefinition(p *gate.Plan) (need NeedKind, handled bool) {
	if s.config.Mode != ModeFenced || s.settings.defined {
		return NeedNothing, false
	}
	var o own
	s.show(&o)
	_, need, handled = s.relayOwn(o, p)
	return need, handled
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
	if s.toRelay.failures >= maxFailures {
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

// relayRefusal sends, in place of a message, a text that Postgres cannot parse, once all that was relayed before is
// answered.
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
