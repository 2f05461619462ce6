package protocol

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// A session with Config.Discards continues when its worker was superseded. What would change rows is
// not executed then, and is answered as what has found no row to change:
//
//   - A Query is replaced by Parse and Describe of its text, and a Sync. The server reports the errors
//     of the text and describes its rows. It plans nothing.
//   - Parse, Bind and Describe messages pass. An Execute is replaced by a Close of a portal that does
//     not exist, and the reply to that by the CommandComplete.
//
// Both run in a read-only transaction. On 15, where a function that is called while a statement is
// parsed or planned could get it out of that mode and write, nothing is discarded: the statement is
// refused, as is everything else that writes.

// superseded reports whether the worker was superseded, and its session continues.
func (s *Session) superseded() bool {
	if !s.config.Discards || s.config.Mode != ModeFenced || s.refusedMembership() != &s.startup {
		return false
	}
	st := s.startup.Status()
	return st.Role == fencing.Superseded && fencing.Discardable(st)
}

// discards reports whether a statement is discarded now. Before 16, decide has refused a write that comes here.
func (s *Session) discards(st *sqltext.Statement) bool {
	return st.Command != sqltext.NoCommand && s.txn != 'E' && s.superseded()
}

// discardQuery sends what parses and describes a Query. Like the Query, it leaves no unnamed statement
// and no unnamed portal. Its exchange has begun.
func (s *Session) discardQuery(p *gate.Plan, sql []byte, st *sqltext.Statement) {
	s.exchange.discarded = st
	delete(s.names, "")
	b := wire.AppendParse(nil, "", string(sql))
	b = wire.AppendDescribeStatement(b, "")
	b = wire.AppendClosePortal(wire.AppendCloseStatement(b, ""), "")
	s.gate.PassText(p, wire.AppendSync(b), s.reason())
}

// discardExecute sends what takes the place of an Execute of e.
func (s *Session) discardExecute(p *gate.Plan, e *prepared) {
	s.exchange.ops = append(s.exchange.ops, op{reply: '3', prepared: e})
	p.Own(wire.AppendClosePortal(nil, ownName))
}

// dropsReply reports whether a reply is not that of a Query, but of what was sent in its place.
func (s *Session) dropsReply(typ byte) bool {
	return s.exchange.discarded != nil && typ != 'T'
}

// answerDiscarded answers a statement that was not executed.
func (s *Session) answerDiscarded(st *sqltext.Statement, text string, p *gate.Segments) {
	tag := st.Command.String() + " 0"
	if st.Command == sqltext.Insert {
		tag = "INSERT 0 0"
	}
	at := len(s.made)
	s.made = wire.AppendCommandComplete(s.made, tag)
	p.Insert(s.made[at:])
	s.complete(tag)
	r := s.Rejection(s.supersededRefusal(), Attempt{Text: text, Write: true})
	r.Kind = fencing.KindDiscarded
	s.emit(Event{Kind: EventDiscarded, Resource: s.startup.Resource})
	s.emit(Event{Kind: EventRefused, Rejection: &r})
}

func (s *Session) supersededRefusal() *fencing.Refusal {
	one := s.refusedMembership()
	return fencing.SupersededRefusal(one.Resource, s.config.Worker, one.Incarnation(), one.Status())
}
