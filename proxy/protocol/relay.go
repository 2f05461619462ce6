package protocol

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/gate"
)

// relay passes the messages of a session on as they are. A session is relayed while its backend is registered, or if it
// may write without a fence. It adds to the stream only SETs before a SHOW of Fencepost's parameters, a Flush when it
// has to wait within a batch, and a text that fails in place of one that is refused. It follows only what it needs in
// order to know whether the session is at rest (pending).
//
// It begins at rest. It ends where nothing is due: before a SET of fencepost.resource or fencepost.token, and before a
// message that begins a transaction while the worker does not lead or its lease is not confirmed.
type relay struct {
	on bool
	pending
	failed        bool        // the server has said ERROR since the last ReadyForQuery
	reason        gate.Reason // of what is relayed
	awaitsReplies bool        // a message waits for the replies to everything before it
	// own is what Fencepost has sent, and is not answered. Nothing of the client's is sent meanwhile.
	own     *own
	refusal *fencing.Refusal // of a text that was replaced by one that fails, and is not answered
	refused Attempt          // what was
	shows   bool             // a SHOW of Fencepost's parameters is not answered
	sets    bool             // a SET fencepost.epoch is not, which has named epoch
	epoch   fencing.Epoch
	// text is the start of the last text, or "" if stmt is the name of the last statement that was bound.
	text, stmt []byte
	named      []byte // the name of the prepared statement of which text is the text
}

// maxRelayed bounds what is not answered, in runs of messages, so that a client cannot fill the memory by messages
// whose replies it does not read.
const maxRelayed = 16 << 10

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

// leftToGuards reports whether the writes of a worker that does not lead are left to the guards of the resource's
// tables. It has never had an epoch, so that none was announced to its client.
func (s *Session) leftToGuards() bool {
	if !s.config.Tables || s.currentChoice() != &s.choices.startup || s.startup.epochs.current != 0 {
		return false
	}
	st := s.startup.Status()
	return st.Epoch == 0 && st.Holder.Guards > 0 && st.Fault == nil
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

// startRelay begins the relay, between two exchanges.
func (s *Session) startRelay() {
	r := &s.relay
	s.relay = relay{on: true, pending: pending{queue: r.queue}, text: r.text[:0], stmt: r.stmt[:0], named: r.named[:0]}
	s.relay.reason = s.relayReason()
	s.exchange, s.toRelay = exchange{}, toRelay{}
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
		s.apply(op{reply: '1', name: name, prepared: e})
	}
}

// isAtRest reports that the server has answered all that was relayed, is outside a transaction, and has been sent
// nothing since.
func (s *Session) isAtRest() bool { return s.relay.quiet() && !s.relay.inBatch && s.txn == 'I' }

// isPortable is the condition Portable.
func (s *Session) isPortable() bool {
	c := &s.choices
	switch {
	case !s.relay.on || s.relay.own != nil || s.relay.lost:
		return false
	case s.config.Mode == ModePassing:
		return s.config.Shadow == nil
	}
	for _, e := range s.fenceStatements {
		if len(e.text) >= maxAuditText { // there may be more of it
			return false
		}
	}
	return s.leads() && len(s.registered) == 1 && s.registered[0] == &s.startup && !s.startup.epochs.hasPending &&
		c.session == nil && c.local == nil && len(c.known) == 0 && !s.config.Tables && !s.config.Discards
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
