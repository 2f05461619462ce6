package protocol

import (
	"fmt"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// A session whose stale writes are discarded sends a verdict where another one sends the
// check, and a Flush. The client's message waits for the answer, because what is sent
// depends on it. The worker leads: the transaction is covered, as by the check. It was
// superseded: the transaction is read-only, and each write in it is parsed, bound and
// described as it is, but a statement that does nothing is executed in its place, whose tag
// becomes that of a write which changes nothing.

// verdictState is how far the verdict for the message in hand has come.
type verdictState uint8

const (
	noVerdict     verdictState = iota
	verdictAsked               // it was sent
	verdictFailed              // it failed, or what was sent with it
	verdictGone                // the server does not know its prepared statement, and nothing was done
	verdictGiven               // it was answered
)

// staleness is what verdicts have said of the worker.
type staleness struct {
	shown    *fencing.Status // what the client is told of; nil before any of them was stale
	warnedIn uint64          // the transaction, by its number, in which the client was warned
	found    fencing.Finding // with that warning
}

// ask sends the verdict that first names in front of the message in hand, which then waits.
func (m *Machine) ask(first action, s *statement, p *gate.Plan) NeedKind {
	before := m.pendingReplies.len()
	if first == undoVerdictFirst {
		m.runOnce(readWriteSQL, noCheck, own, s, p)
	}
	if first == lapsedVerdictFirst {
		m.checks.build(m.epochs.inHand.announced, m.held())
		m.runOnce(fencing.LapsedVerdictSQL(m.config.Fence, m.config.Worker, m.config.Incarnation,
			m.epochs.inHand.announced, m.inHand.status.Epoch), verdict, own, s, p)
	} else {
		m.runCheck(verdict, s, p)
	}
	m.flushFor(waitsForOwn, p)
	m.pendingReplies.ask()
	m.inHand.verdict, m.inHand.asked = verdictAsked, m.pendingReplies.len()-before
	return NeedRoom
}

// takeVerdict goes on with a message of type typ that has waited for a verdict. done says that
// nothing is left to do for it.
func (m *Machine) takeVerdict(typ byte, p *gate.Plan) (done bool, need NeedKind) {
	switch {
	case m.inHand.verdict == verdictGiven:
		return false, NeedNothing
	case m.pendingReplies.certain() && !m.copy.stalls(): // else the server ends the connection
		return false, NeedRoom
	case m.inHand.verdict == verdictGone: // the message begins again, behind a Sync of Fencepost's
		m.syncSkipped(p)
		m.inHand.verdict = noVerdict
		return false, NeedRoom
	}
	failed := m.inHand.verdict == verdictFailed
	m.inHand.verdict = verdictGiven
	m.inHand.wait.answeredOwn()
	if !m.txn.Skips() {
		m.txn.Send(gate.TakeVerdict, false)
		return false, NeedNothing
	}
	if typ != 'Q' || !failed {
		return false, NeedNothing // the server skips it, as it would without a verdict
	}
	m.syncInstead(p) // what failed was in the Query's place
	m.inHand.dropped = true
	return true, NeedNothing
}

// failsVerdict follows an error that answers the entry in front. Nothing was sent behind a
// verdict that is waited for, so that what was sent with it are the last entries.
func (m *Machine) failsVerdict() {
	if m.inHand.verdict == verdictAsked && m.pendingReplies.len() <= m.inHand.asked {
		m.inHand.verdict = verdictFailed
	}
}

// syncInstead ends a batch in the place of a Query of the client's: the ReadyForQuery is the
// client's.
func (m *Machine) syncInstead(p *gate.Plan) {
	at := len(m.scratch)
	m.scratch = wire.AppendSync(m.scratch)
	p.Own(m.scratch[at:])
	m.push(syncing, fromClient)
	m.names.dropUnnamed(true)
	m.endBatch()
	m.batch.synced()
}

// discardExecute answers an Execute in the place of the server. The Describe of its portal
// fails where the portal is not there.
func (m *Machine) discardExecute(portal []byte, s *statement, p *gate.Plan) {
	at := len(m.scratch)
	m.scratch = wire.AppendDescribePortal(m.scratch, string(portal))
	p.Own(m.scratch[at:])
	m.push(describe, own)
	m.runNothing(s, noStandIn, p)
	m.batch.ran()
	m.inHand.dropped = true
}

// discardQuery sends all of a Query but the execution of its statement.
func (m *Machine) discardQuery(s *statement, p *gate.Plan) {
	at := len(m.scratch)
	m.scratch = wire.AppendUnnamedBind(wire.AppendParse(m.scratch, "", s.text))
	r, _ := m.txn.Covered()
	m.gate.PassText(p, m.scratch[at:], r)
	m.push(parse, own)
	m.push(bind, own)
	m.push(describe, fromClient).standIn = queryStandIn
	m.runNothing(s, queryStandIn, p)
	m.syncInstead(p)
	m.inHand.dropped = true
}

// runNothing executes what does nothing in the place of s.
func (m *Machine) runNothing(s *statement, in standIn, p *gate.Plan) {
	m.runOnce(fencing.DiscardedSQL, nothing, own, s, p)
	m.batch.mayUndo = false
	m.pendingReplies.at(m.pendingReplies.len() - 2).standIn = in // of Close, Parse, run and Close
}

// mayUndo follows a message that was sent for s without executing it. To plan a statement may
// run functions, and before PostgreSQL 16 those can undo the read-only mode of a stale
// transaction.
func (m *Machine) mayUndo(s *statement) {
	if m.txn.Coverage() == gate.Discarded && m.txn.State() != gate.Failed && !m.config.Version.KeepsReadOnly() && !m.read(s) {
		m.batch.mayUndo = true
	}
}

// staysReadOnly fails if a function has undone the read-only mode of a stale transaction. It
// stands in front of what could commit.
func (m *Machine) staysReadOnly(p *gate.Plan) {
	if m.batch.mayUndo && !m.txn.Skips() {
		m.runOnce(fencing.DiscardedSQL, stillReadOnly, own, unknownStatement, p)
	}
	m.batch.mayUndo = false
}

// judged follows the tag of a verdict.
func (m *Machine) judged(msg []byte) {
	switch tag, _, _ := wire.CString(msg[wire.HeaderLen:]); view(tag) {
	case "SELECT 0":
		m.passed(fullCheck, msg)
	case "SELECT 1":
		m.txn.Answer(gate.VerdictStale, false)
		m.foundStale()
	default:
		m.down.phase.end(fmt.Errorf("%w: a verdict with the tag %q", ErrSurprise, tag))
	}
}

// discarded follows the tag of what was executed in the place of a write.
func (m *Machine) discarded(e *reply, msg []byte, p *gate.Segments) {
	if tag, _, _ := wire.CString(msg[wire.HeaderLen:]); view(tag) != "SELECT 0" {
		m.down.phase.end(fmt.Errorf("%w: what runs in the place of a discarded write has the tag %q", ErrSurprise, tag))
		return
	}
	tag := e.stmt.info.Command.String() + " 0"
	if e.stmt.info.Command == sqltext.Insert {
		tag = "INSERT 0 0"
	}
	if answer := m.down.complete(tag); e.standIn == noStandIn {
		p.Insert(answer)
	} else {
		m.down.heldBack = append(m.down.heldBack[:0], answer...)
	}
	text, _ := m.ofStatement(e.stmt)
	r := m.rejection(m.staleRefusal(), m.staleFinding(), text, true)
	r.Kind = fencing.KindDiscarded
	m.down.happens(Event{Kind: EventDiscarded}) // the verdict on its transaction may be older than what the worker knows
	m.down.happens(Event{Kind: EventRefused, Rejection: &r})
}

// warning is what the client sees of a notice in the answer to the verdict e: the verdict's
// own warning once for each transaction.
func (m *Machine) warning(e *reply, msg []byte) []byte {
	n, ok := wire.DecodeError(msg[wire.HeaderLen:])
	if !ok || n.Code != fencing.StateSuperseded {
		return msg
	}
	m.stale.found = m.findingOf(n.Detail)
	if m.stale.warnedIn == e.after.number {
		return nil
	}
	m.stale.warnedIn = e.after.number
	return m.down.edited(msg, func(field byte, v []byte) ([]byte, bool) {
		if field == 'M' {
			return []byte(fencing.Marked(n.Message, n.Code)), true
		}
		return v, field != 'W'
	})
}

// goesOn reports whether the session goes on although its worker was superseded.
func (m *Machine) goesOn() bool { return m.config.Discards && fencing.Discardable(m.config.Status()) }

// foundStale follows what shows that the worker was superseded, while the session goes on.
func (m *Machine) foundStale() {
	m.down.happens(Event{Kind: EventStale})
	if m.stale.shown == nil {
		st := *m.config.Status()
		st.Role = fencing.Superseded
		m.stale.shown = &st
	}
}

// shownStatus is the status that the client is told of. The candidacy may learn later that it is
// superseded.
func (m *Machine) shownStatus() *fencing.Status {
	if st := m.config.Status(); m.stale.shown == nil || st.Role == fencing.Superseded {
		return st
	}
	return m.stale.shown
}

// staleFinding is what the last verdict has found, or what the proxy knows.
func (m *Machine) staleFinding() fencing.Finding {
	if m.stale.found.Current > 0 {
		return m.stale.found
	}
	return m.finding()
}

// staleRefusal says that the worker was superseded.
func (m *Machine) staleRefusal() *fencing.Refusal {
	st, found := *m.config.Status(), m.staleFinding()
	if found.Current > st.Holder.Epoch {
		st.Holder = fencing.Record{Epoch: found.Current, Worker: found.Holder}
	}
	return fencing.SupersededRefusal(m.config.Resource, m.config.Worker, m.config.Incarnation, &st)
}

// staleError takes the place of the error of a write that only the server's read-only mode
// detected in a stale transaction.
func (m *Machine) staleError(e *reply) []byte {
	r := m.staleRefusal()
	m.down.happens(Event{Kind: EventDiscarded})
	m.refused(e, r, m.staleFinding())
	return m.down.refusal(r)
}
