package protocol

import (
	"bytes"
	"strings"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// wantsSync reports whether a Query would notice a check that was executed
// in this batch.
func (m *Machine) wantsSync(text []byte) bool {
	if m.inHand.verdict != noVerdict || !m.batch.onlyChecked() {
		return false
	}
	if len(text) <= maxAuditText {
		t := m.analyze(text)
		if len(t.Statements) > 0 {
			switch s := &t.Statements[0]; {
			case s.Isolation && !m.batch.snapshot:
				return true
			case s.Kind == sqltext.NonTransactional, discardsAll(s):
				return true
			case s.Kind == sqltext.Begin && len(t.Statements) == 1:
				return false // the block goes on with the transaction of the batch
			}
		}
		if m.tooLate(t) {
			return false
		}
	}
	return m.config.Version.QueryContinuesBatch()
}

// tooLate reports whether a text sets the isolation of its first transaction after
// a query of the batch, or READ WRITE after READ ONLY, so that it fails where no Sync of
// Fencepost's has ended that.
func (m *Machine) tooLate(t *sqltext.Text) bool {
	if !m.batch.snapshot {
		return false
	}
	readOnly := false
	for i := range t.Statements {
		switch s := &t.Statements[i]; {
		case s.SetsIsolation, readOnly && s.Isolation && !s.ChoosesReadOnly:
			return true
		case s.EndsTransaction:
			return false
		default:
			readOnly = readOnly || s.Isolation && s.ChoosesReadOnly
		}
	}
	return false
}

// stillOpen reports that what the client has executed since its last Sync may not be
// committed yet, although a Query or a function call came after it.
func (m *Machine) stillOpen() bool {
	return m.config.Version.QueryContinuesBatch() && m.batch.unsynced != nothingUnsynced
}

// awaitsReplies reports whether a message that begins a batch has to wait
// until what came before it is answered, while something is pending.
//
// On 18 only the answer to a Query or function call says whether the transaction of what
// was executed in front of it goes on, or has failed and is over; in the latter case a
// check in front would leave open one that the client has not. A Close waits too, because no other message
// waits behind it in its batch.
//
// Only such an answer says, too, whether the transaction goes on that may have imported a
// snapshot, and what a text means that seems to import one. The same is true of a text in a
// transaction that has chosen: what cannot be read goes by the registry, which is not for that.
//
// A session whose stale writes are discarded waits anyway: a verdict is only asked for where
// the transaction is known.
//
// A Bind that begins a batch may name a statement whose Parse is not answered. It waits to know
// the statement: what is not known goes by the registry, which takes longer, and fails in a block
// that has failed, where the end of the block does not.
//
// A claim of the session at rest has to be made before a batch begins: on 18, none can be made inside it before
// something was executed.
//
// In a block that has failed, Postgres still looks for the portal of an Execute before it
// says that the block has failed: it may answer that there is none, or that its Bind left
// it empty. A check in front would fail first.
func (m *Machine) awaitsReplies(typ byte, body []byte) bool {
	switch {
	case m.config.Mode == ModePassing, m.copy.stalls():
		return false
	case (m.epochs.choices.changes || m.epochs.unconfirmed()) && strings.IndexByte("QPBDEFC", typ) >= 0: // whether that has failed decides
		return true
	case (m.claimIsDue() || m.stillOpen()) && strings.IndexByte("PBDC", typ) >= 0:
		return true
	case typ == 'E', (m.chain.imported || m.config.Discards) && strings.IndexByte("QPBDFC", typ) >= 0:
		return true
	case strings.IndexByte("QPBDF", typ) < 0:
		return false
	case m.stillOpen():
		return true
	case typ == 'B':
		_, name, ok := bindNames(body)
		return ok && m.names.unanswered(name)
	default:
		text, _, ok := wire.CString(body)
		return typ == 'Q' && ok && m.unsettled(text) && (m.epochs.inHand.choice != nil || sqltext.GuessOf(text).ImportsSnapshot)
	}
}

// awaitAnswers has a message wait until what came before it is answered, where what becomes of it
// depends on that. A server that has ignored the Syncs among COPY data keeps what it answers to the COPY, so a
// Flush follows the end of the data.
func (m *Machine) awaitAnswers(typ byte, body []byte, p *gate.Plan) NeedKind {
	if (gate.Runs(typ) || typ == 'C' || m.inHand.wait != noWait) && m.doubtsSync() {
		m.inHand.wait.answered() // what it has waited for may never come
		return m.awaitSync(p)
	}
	if m.inHand.wait != noWait && m.pendingReplies.certain() && !m.copy.stalls() {
		return NeedRoom
	}
	m.inHand.wait.answered()
	switch {
	case m.copy.unsure && !m.txn.Skips() && (gate.Runs(typ) || typ == 'C'):
		return m.awaitSkip(p)
	case m.awaitsDoubtful(typ):
		m.parseNothing(p)
		m.inHand.wait.begin(waitsForOwn)
		return NeedRoom
	case (typ == 'Q' || typ == 'F') && m.config.Mode != ModePassing && m.batch.flushMayFail() && m.batch.unowed == flushPending && !m.copy.stalls():
		return m.awaitFlush(p)
	case !m.batch.open() && m.pendingReplies.certain() && m.awaitsReplies(typ, body):
		if m.pendingReplies.endsCopy() {
			m.flushFor(waitsForOwn, p)
		} else {
			m.inHand.wait.begin(waitsForReplies)
		}
		return NeedRoom
	case m.checks.claims && m.claimMayFail(typ):
		return m.awaitBatch(p)
	default:
		return NeedNothing
	}
}

// syncBefore ends a batch of which only the check has been executed, before a
// message that is not of the extended protocol: PostgreSQL 18 would not commit
// it after the check's Execute, and a BEGIN could fix no isolation after it. Of
// the client's there are only Parse, Bind, Describe and Close. Should one of them
// fail, the server skips the message, so their answers come first.
func (m *Machine) syncBefore(p *gate.Plan) NeedKind {
	if !m.batch.onlyChecked() {
		return NeedNothing
	}
	if m.copy.stalls() {
		return NeedNothing // the message in hand has no place in the COPY, and ends the connection
	}
	if need := m.awaitBatch(p); need != NeedNothing {
		return need
	}
	m.staysReadOnly(p)
	at := len(m.scratch)
	m.scratch = wire.AppendSync(m.scratch)
	p.Own(m.scratch[at:])
	m.push(syncing, ownCommit)
	m.batch.syncedBefore()
	m.txn.Send(gate.MayEnd, false) // a transaction without a block ends here, and the check with it
	m.inHand.wait.begin(waitsForOwn)
	return NeedRoom
}

// awaitFlush has a Query or a fast path call wait until the server has processed a Flush of the
// client's right in front of it. If nothing is pending, only the reply to a message behind the Flush
// shows that. Should an expired statement_timeout be raised at the Flush, the server skips the
// message, and no ReadyForQuery follows. If the two came at different times, that error would have
// come before the message.
func (m *Machine) awaitFlush(p *gate.Plan) NeedKind {
	if m.pendingReplies.certain() { // which the Flush asks for
		m.inHand.wait.begin(waitsForReplies)
		return NeedRoom
	}
	m.closeNothing(p)
	if m.up.flushed {
		m.flushFor(waitsForFlush, p)
	} else {
		m.flushFor(waitsForOwn, p)
	}
	return NeedRoom
}

// awaitSkip has a message wait until it is sure that the server has skipped what it seems to have skipped: the next
// reply is then that to a message of Fencepost's. Otherwise the session ends, with an unexpected reply.
func (m *Machine) awaitSkip(p *gate.Plan) NeedKind {
	if !m.pendingReplies.certain() {
		m.copy.unsure = false
		m.closeNothing(p)
	}
	m.flushFor(waitsForOwn, p)
	return NeedRoom
}

// awaitsDoubtful reports whether a message has to wait until it is known which of the messages that the server may
// have skipped, or taken for COPY data, it answers. Otherwise their replies could be taken for those of what is sent
// now. A server that skips messages answers nothing before a Sync.
func (m *Machine) awaitsDoubtful(typ byte) bool {
	return m.doubtful() && (gate.Runs(typ) && typ != 'd' || typ == 'C' || typ == 'S')
}

// doubtful reports whether it is open if anything that is pending is answered, and whether a batch of Fencepost's can
// show that.
func (m *Machine) doubtful() bool {
	return m.front() != nil && m.batch.fresh() && !m.stillOpen() && !m.pendingReplies.certain() && !m.txn.Skips() && !m.copy.under() &&
		m.config.Mode != ModePassing
}

// leavesDoubtful follows a ReadyForQuery. If only Syncs are pending behind it of which it is open whether they are
// answered, the client may send nothing more, and the session would never be at rest. So FromClient asks at once.
func (m *Machine) leavesDoubtful(status gate.Answered) {
	if m.pendingReplies.empty() || !m.pendingReplies.onlyDoubtfulSyncs() {
		return
	}
	if status == gate.Idle { // nothing that runs was sent since
		m.batch.rests(true)
	}
	if m.doubtful() {
		m.down.doubt.due = true
		m.down.happens(Event{Kind: EventReplay})
	}
}

// askDoubtful sends that question between two messages of the client's, if nothing has answered it since.
func (m *Machine) askDoubtful(p *gate.Plan) {
	m.down.doubt.due = false
	if m.doubtful() {
		m.parseNothing(p)
	}
}

// doubtsSync reports whether it is open if a COPY that has failed has read the client's Sync in front, and so whether
// the server goes on behind that Sync or skips what comes. A later Sync, which is answered for sure, will show that.
func (m *Machine) doubtsSync() bool {
	e := m.front()
	return e != nil && e.kind == syncing && e.certainty == perhapsInBatch && m.txn.Skips() && !m.down.doubt.asked &&
		!m.pendingReplies.hasSync() && m.config.Mode != ModePassing
}

// awaitSync has the message in hand wait until that is known: a Sync of Fencepost's ends what the server skips, and a
// batch of Fencepost's alone follows. Of the ReadyForQuery in front of its ParseComplete, the last is that of Fencepost's
// Sync, and the others are those of the client's last Syncs. If there is none of these, the client's batch has failed, and
// what it holds is left out up to its next Sync. Where anything but Syncs is pending, its replies could be taken for
// those, and the session ends.
func (m *Machine) awaitSync(p *gate.Plan) NeedKind {
	if !m.pendingReplies.onlyDoubtfulSyncs() {
		m.up.phase.end(errInDoubt)
		return NeedRoom
	}
	m.syncSkipped(p)
	m.parseNothing(p)
	m.inHand.wait.begin(waitsForFlush)
	m.down.doubt.asked = true
	return NeedRoom
}

// resolveSync follows a message of type typ behind the question of awaitSync. held reports that it is a ReadyForQuery
// of which it is not known yet whose it is.
func (m *Machine) resolveSync(typ byte, msg []byte, p *gate.Segments) (held bool) {
	d := &m.down.doubt
	if typ == 'Z' {
		if len(d.ready) > 0 { // the one before was not the last
			e := m.front()
			e.certainty, d.goesOn = answered, true
			m.ready(e, d.ready, p)
			p.Insert(bytes.Clone(d.ready))
		}
		d.ready = append(d.ready[:0], msg...)
		return true
	}
	if len(d.ready) > 0 { // otherwise an error has answered the question, which ends the session
		for e := m.front(); !e.own(); e = m.front() {
			m.skip(e)
		}
		m.ready(m.front(), d.ready, p)
		if !d.goesOn {
			m.ownFails()
		}
	}
	*d = doubt{ready: d.ready[:0], due: d.due}
	return false
}

// parseNothing has the server answer a batch of Fencepost's alone, whose first reply is like none of those that are
// in doubt: these can be CloseComplete and ReadyForQuery only. The empty text can be parsed in a block that has failed.
func (m *Machine) parseNothing(p *gate.Plan) {
	at, name := len(m.scratch), m.checks.ownName()
	m.scratch = wire.AppendCloseStatement(wire.AppendParse(m.scratch, name, ""), name)
	p.Own(m.scratch[at:])
	m.push(parse, ownAsking)
	m.push(closing, ownAhead)
	m.batch.checked()
	m.syncAhead(p)
}

// closeNothing sends a message whose reply is like no other's that can be pending: it closes a portal that need
// not be there.
func (m *Machine) closeNothing(p *gate.Plan) {
	at := len(m.scratch)
	m.scratch = wire.AppendClosePortal(m.scratch, "fencepost_"+m.checks.nonce+"_none")
	p.Own(m.scratch[at:])
	m.push(closing, own)
}

// awaitBatch has the server answer what was sent in the batch, and the message in hand wait
// for that.
func (m *Machine) awaitBatch(p *gate.Plan) NeedKind {
	if !m.pendingReplies.certain() {
		return NeedNothing
	}
	if m.inHand.wait == noWait {
		m.flushFor(waitsForOwn, p)
	}
	return NeedRoom
}

// flushFor has the server send its answers, for which the message in hand waits as w says.
func (m *Machine) flushFor(w wait, p *gate.Plan) {
	p.Own(flushMessage)
	m.batch.flushed()
	m.inHand.wait.begin(w)
}

var flushMessage = []byte{'H', 0, 0, 0, 4}
