package protocol

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/gate"
)

// failure accounts for an ErrorResponse.
func (m *Machine) failure(msg []byte, p *gate.Segments) (drop bool, err error) {
	pe, ok := wire.DecodeError(msg[wire.HeaderLen:])
	if !ok {
		return false, fmt.Errorf("%w: an error that cannot be read", ErrSurprise)
	}
	if pe.Fatal() {
		m.fatal(pe, msg, p)
		return true, nil
	}
	e := m.front()
	skipping := gate.Skipping
	for e != nil && e.maybe() && !(e.malformed && pe.Code == protocolViolation) && !m.txn.Skips() {
		m.skip(e)
		e, skipping = m.front(), gate.PerhapsSkipping
	}
	began := m.copy.under() // so the server has passed all that was sent before
	if ignored, err := m.copyFails(pe); err != nil {
		p.Insert(msg)
		return true, err
	} else if ignored {
		e, skipping = m.front(), gate.PerhapsSkipping
	}
	if e == nil && skipping == gate.Skipping && m.batch.flushMayFail() {
		m.txn.Answer(gate.Skipping, false)
		m.ownFails()
		return false, nil
	}
	if e == nil {
		return false, fmt.Errorf("%w: an error while nothing is owed", ErrSurprise)
	}
	if e.unowed == strayUnowed && pe.Code == queryCanceled && !began {
		return false, fmt.Errorf("%w: an error that may answer a message of COPY outside a COPY", ErrSurprise)
	}
	if m.unknownCheck(e, pe) {
		return true, nil
	}
	m.down.failed = true
	if e.origin == ownCommit {
		m.ownFails()
		return false, nil
	}
	out, drop := m.intruded(pe, msg)
	if !drop {
		out, drop = m.errorFor(e, pe, msg)
	}
	p.Insert(out)
	m.copy.end()
	if e.own() && e.kind == closing {
		m.ownFails()
	}
	m.fail(e, skipping)
	if began && !drop && m.inDoubt(pe) {
		p.Insert(msg)
		return true, fmt.Errorf("%w: an error behind COPY data, of which it is not sure where the server goes on", ErrSurprise)
	}
	return drop, nil
}

// copyFails follows an error that ends a COPY, if one is under way, and reports whether that has ignored what may
// be pending in front of its data.
func (m *Machine) copyFails(pe wire.ServerError) (ignored bool, err error) {
	switch {
	case !m.copy.under():
	case ofCopyRead(pe) && pe.Code == queryCanceled:
		m.copyDone() // it was read up to the client's CopyFail
		return true, nil
	case ofCopyData(pe.Where):
		if m.pendingReplies.removeEarly() && !m.skipsByWords(pe) { // it has read data, and so the Syncs before them
			return false, fmt.Errorf("%w: an error in COPY data, of which it is not sure where the server goes on", ErrSurprise)
		}
		return true, nil
	case m.readNothing(pe):
		m.pendingReplies.answersSyncs()
	}
	return false, nil
}

// inDoubt reports that the server may have ignored a Sync in front of COPY data or among them, or may go on with
// it: a message behind it that may run something was skipped, or will be answered. No reply shows which.
func (m *Machine) inDoubt(pe wire.ServerError) bool {
	e := m.pendingReplies.front()
	if e == nil || e.kind != syncing || e.certainty != perhapsInBatch || endsCopyRead(pe) {
		return false
	}
	return (e.early || inCopy(pe.Where) < 0) && m.pendingReplies.runsBeforeSync()
}

// fatal ends the session by a FATAL error. With exit_on_error, which every role may set, the server
// says FATAL also where Fencepost has it refuse something.
func (m *Machine) fatal(pe wire.ServerError, msg []byte, p *gate.Segments) {
	end := Event{Kind: EventEnded, Err: pe, Message: bytes.Clone(msg)}
	if e := m.front(); e != nil && !e.maybe() && !endsSession(pe) {
		if out, own := m.errorFor(e, pe, msg); own {
			end.Message = nil
			p.Insert(m.down.edited(out, func(field byte, v []byte) ([]byte, bool) {
				if field == 'S' || field == 'V' {
					v = []byte("FATAL")
				}
				return v, true
			}))
		}
	}
	m.down.happens(end)
}

// endsSession reports whether Postgres ends the session for this error whatever runs in it: an
// order of an administrator, a timeout of an idle session, a lost connection, or a fault of its own.
func endsSession(pe wire.ServerError) bool {
	switch pe.Code {
	case "57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04":
		return true
	default:
		return strings.HasPrefix(pe.Code, "08") || strings.HasPrefix(pe.Code, "XX")
	}
}

// ofCopyRead reports whether an error comes from the function in which the server reads
// the messages of a COPY. Unlike the text of the error, the name of that function does
// not depend on lc_messages.
func ofCopyRead(pe wire.ServerError) bool { return pe.Routine == "CopyGetData" }

// skipsByWords deals with what the server skips, by the words of an error, after a COPY that an Execute began:
// all up to the next Sync behind the data. A function can choose these words. Then the server goes on with a Sync
// in front of the data, runs what is behind that, and answers it. So what the client sends next waits until that is
// excluded (awaitSkip). skipsByWords reports false if it cannot wait: a registration would seem to be no longer needed.
// After a message that has no place among the data, the server ends the connection. A session that is not checked has
// nothing added to what its client sends.
func (m *Machine) skipsByWords(pe wire.ServerError) bool {
	m.copy.unsure = m.copy.executed && m.config.Mode != ModePassing && !endsCopyRead(pe) && m.pendingReplies.runsBeforeSync()
	return !m.copy.unsure || !m.registration.Held()
}

// readNothing reports that this is the error of a COPY which has read no message, not even a Sync: the client has
// sent neither data nor their end, so only a cancellation can come from where it reads. Of that, the context says
// nothing in the binary format.
func (m *Machine) readNothing(pe wire.ServerError) bool {
	return m.copy.reading() && !m.copy.data && pe.Code != queryCanceled && inCopy(pe.Where) < 0
}

// inCopy returns where the outermost line about a COPY begins in the context of an error, or -1.
func inCopy(where string) int { return strings.LastIndex("\n"+where, "\nCOPY ") }

// endsCopyRead reports whether an error answers a message that has no place among COPY data.
func endsCopyRead(pe wire.ServerError) bool { return ofCopyRead(pe) && pe.Code == protocolViolation }

// copyLine matches the line in the context of an error that says how many lines a COPY
// had read. Except in Japanese and Korean, its translations differ only in the word for
// "line". A COPY in line 0 has read no line yet, so it may have read no message either.
var copyLine = regexp.MustCompile(`(?s)^COPY [^\n]*, (\S+) [1-9][0-9]*(?:[ ,:\n]|$)(.*)$`)

// ofCopyData reports whether the context of an error says that a COPY of the client's
// had read data: its line is the outermost. A COPY within a function has lines of the
// function after its own. Those can be recognized in English only. In another language
// any further line counts as one, also if it is part of the data.
func ofCopyData(where string) bool {
	at := inCopy(where)
	if at < 0 {
		return false
	}
	line := copyLine.FindStringSubmatch(where[at:])
	switch {
	case line == nil:
		return false
	case line[1] == "line":
		return !strings.Contains(line[2], "\nPL/pgSQL function ") && !strings.Contains(line[2], "\nSQL statement ")
	default:
		return !strings.Contains(line[2], "\n")
	}
}

// queryCanceled is the SQLSTATE of a timeout and of a cancel request.
const queryCanceled = "57014"

// undefinedTable is the SQLSTATE for a relation that does not exist.
const undefinedTable = "42P01"

// failedTransaction is the SQLSTATE of what is sent to a block that has failed.
const failedTransaction = "25P02"

// readOnlyCode is the SQLSTATE of a write in a read-only transaction.
const readOnlyCode = "25006"

// protocolViolation is the SQLSTATE that answers a message with bytes too many or too few.
const protocolViolation = "08P01"

// fail follows what the server skips after an error that answers e.
func (m *Machine) fail(e *reply, skipping gate.Answered) {
	m.down.heldBack = m.down.heldBack[:0]
	m.failsVerdict()
	if e.readies() || e.kind == syncing {
		e.sql.done++
		return // ReadyForQuery follows, and everything after that runs
	}
	m.txn.Answer(skipping, false)
	for stands := e.own(); ; { // stands: the error is that of the client's message behind it
		e := m.pendingReplies.front()
		if e == nil || e.kind == syncing {
			return
		}
		if stands && !e.own() {
			stands = false
			if e.readies() { // without what Fencepost has put in front of it
				m.owesReady()
			}
		}
		m.skip(e)
	}
}

// ownFails follows an error that answers a Flush, Fencepost's or the client's, or a Sync that
// Fencepost has sent for the message in hand.
func (m *Machine) ownFails() {
	m.down.failed = true
	m.down.heldBack = m.down.heldBack[:0]
	m.inHand.wait.fails()
}

// skip takes out the entry in front, whose message the server has skipped.
func (m *Machine) skip(e *reply) {
	if e.kind == parse && e.stmt != nil && !e.own() {
		m.names.lose(e.stmt)
	}
	if e.kind == parse && e.own() && e.check != refusal && e.origin != ownRestated {
		m.checks.rename()
	}
	m.pendingReplies.pop()
}

// errorFor says what the client gets for an error that answers e: the message
// itself (drop is false) or out in its place.
func (m *Machine) errorFor(e *reply, pe wire.ServerError, msg []byte) (out []byte, drop bool) {
	g, refuse := e.check, e.refuse
	if e.origin == ownAhead || e.origin == ownAsking || e.own() && e.kind == syncing { // a timeout may come between messages, and is raised at the next
		if !ofClient(pe) {
			pe.Position = 0 // in another text
			m.down.ahead = &failedAhead{pe, bytes.Clone(msg)}
		}
		return nil, true
	}
	if e.kind == query {
		g, refuse, _ = e.insertedAt(e.sql.done)
	}
	if by := m.down.ahead; by != nil && g != noCheck && g != refusal && pe.Code == failedTransaction {
		pe, msg, m.down.ahead = by.pe, by.msg, nil
	}
	switch {
	case g == noCheck && ofGuard(pe):
		return m.guardError(e, pe, msg), true
	case g == noCheck && pe.Code == readOnlyCode && m.txn.ServerCoverage().IsReadOnly():
		return m.readOnlyError(e), true
	case g == noCheck && !e.sql.edited():
		return nil, false
	case g == noCheck:
		return m.shifted(e, msg), true
	case g == refusal && (pe.Code == raiseCode || refuse == fencing.TwoPhaseRefusal && pe.Code == endCode):
		refuse = m.explained(refuse)
		if !refuse.Usage {
			m.refused(e, refuse, m.findingOf(refuse.Detail))
		}
		return m.down.refusal(refuse), true
	case g == refusal && refuse == fencing.TwoPhaseRefusal && !ofClient(pe):
		return nil, false // why Postgres would not have prepared that transaction: a constraint, a temporary table
	case e.kind == query && e.sql.done == 0 && !ofCheck(e, pe, m.config.Fence):
		return m.shifted(e, msg), true
	default:
		return m.checkError(e, pe, msg), true
	}
}

// ofCheck reports whether the first error of a Query that begins with a check
// is the check's own. The server parses the whole text before it runs any of
// it, and what it finds there is the client's. If the fence's sequence is gone, it
// analyzes the prepared check again, whose position is not one in this text.
func ofCheck(e *reply, pe wire.ServerError, fence int32) bool {
	if pe.Code == undefinedTable && strings.Contains(pe.Message, fencing.SequenceName(fence)) {
		return true
	}
	if pe.Position > 0 {
		first := e.sql.first()
		return first.at < pe.Position && pe.Position <= first.at+first.n
	}
	switch pe.File {
	case "gram.y", "gram.c", "scan.l", "scan.c", "scansup.c", "parser.c":
		return false
	}
	switch pe.Code {
	case "42601", "22021", "22025", "22P05", "54000", "54001", protocolViolation:
		return false
	default:
		return true
	}
}

// shifted puts the position of an error or notice in a Query back to where it is in the
// client's text.
func (m *Machine) shifted(e *reply, msg []byte) []byte {
	return m.down.edited(msg, func(field byte, v []byte) ([]byte, bool) {
		if field != 'P' {
			return v, true
		}
		return e.sql.position(v), true
	})
}

// maxEditedNotice bounds the notices whose positions are put back: those of the
// server's own have a line or two, and what a function raises has no position.
const maxEditedNotice = 8 << 10

// editsNotice reports whether f is a notice that may point into a Query's text
// with statements of Fencepost's in it.
func (m *Machine) editsNotice(f wire.Frame) bool {
	if f.Type != 'N' || f.Size > maxEditedNotice {
		return false
	}
	e := m.front()
	return e != nil && (e.kind == query && e.sql.edited() || e.kind == run && e.check == verdict)
}

// notice puts the position of a notice back to where it is in the client's text.
func (m *Machine) notice(f wire.Frame, msg []byte, p *gate.Segments) (drop bool) {
	if e := m.front(); e != nil && e.origin == ownRestated {
		return true // of a text of the client's that is prepared again: it had it at its Parse
	}
	if !m.editsNotice(f) {
		return false
	}
	if e := m.front(); e.kind == run {
		p.Insert(m.warning(e, msg))
		return true
	}
	p.Insert(m.shifted(m.front(), msg))
	return true
}

func (m *Machine) readOnlyError(e *reply) []byte {
	by := m.answering()
	if (by == nil || by.own) && m.goesOn() && m.shownStatus().Role == fencing.Superseded {
		return m.staleError(e)
	}
	r := m.config.Unfenced
	if m.config.Mode == ModeFenced {
		c := m.candidacy(by)
		st := c.Status()
		r = m.explained(fencing.ReadOnlyRefusal(c.Resource, m.config.Worker, c.Incarnation, st))
		if st.CanWrite() {
			m.expect(by, st.Epoch)
		}
	}
	m.refused(e, r, m.finding())
	return m.down.refusal(r)
}

// guardLines matches the lines of the triggers of guarded tables in the context of an error.
// They are the innermost. The names of functions do not depend on lc_messages. In the first line, nothing quoted
// stands in front of the name: a function of the client's can have that in its own name only within quotes.
var guardLines = regexp.MustCompile(`^[^\n"]*\bfencepost\.(?:refuse|guard_[0-9]+)\([^\n]*(?:\n|$)(?:[^\n]*\bfencepost\.(?:refuse|guard_[0-9]+)[^\n]*(?:\n|$))*`)

// ofGuard reports whether an error comes from the trigger of a guarded table.
func ofGuard(pe wire.ServerError) bool {
	switch pe.Code {
	case fencing.StateSuperseded, fencing.StateNotLeader, fencing.StateNoFence:
		return guardLines.MatchString(pe.Where)
	default:
		return false
	}
}

// guardError is what the client sees of an error of a trigger. If the session claims an
// epoch of its own resource that is over, it ends, as at a check. What it claims of another
// resource says nothing of its own.
func (m *Machine) guardError(e *reply, pe wire.ServerError, msg []byte) []byte {
	found, ok := fencing.DecodeFinding(pe.Detail)
	st := m.concerned(found.Resource)
	mine := m.config.Mode == ModeFenced && ok && (st != nil || found.Resource == m.config.Resource)
	over := mine && pe.Code == fencing.StateSuperseded
	switch {
	case over && st == nil && m.goesOn():
		over = false
		m.foundStale()
		m.refused(e, &fencing.Refusal{SQLState: pe.Code, Message: pe.Message, Hint: pe.Hint}, m.findingOf(pe.Detail))
	case over:
		m.superseded(e, st, &fencing.Refusal{SQLState: pe.Code, Message: pe.Message, Hint: pe.Hint}, found)
	case mine && st == nil && pe.Code == fencing.StateNotLeader && m.config.Tables && !m.config.Status().CanWrite():
		r := fencing.GuardedRefusal(pe.Message, m.config.Resource, m.config.Worker, m.config.Incarnation, m.config.Status())
		m.refused(e, r, m.findingOf(r.Detail))
		return m.down.refusal(r)
	case mine && pe.Code == fencing.StateNotLeader:
		m.down.happens(Event{Kind: EventUnclaimed, Resource: resourceOf(st)})
	}
	return m.down.edited(msg, func(field byte, v []byte) ([]byte, bool) {
		switch {
		case field == 'W':
			v = v[len(guardLines.Find(v)):]
			return v, len(v) > 0
		case field == 'M':
			return []byte(fencing.Marked(pe.Message, pe.Code)), true
		case over && (field == 'S' || field == 'V'):
			return []byte("FATAL"), true
		default:
			return v, true
		}
	})
}

// checkError turns an error of a check into what the client sees.
func (m *Machine) checkError(e *reply, pe wire.ServerError, msg []byte) []byte {
	severity := ""
	found, _ := fencing.DecodeFinding(pe.Detail)
	st := m.concerned(found.Resource)
	switch {
	case pe.Code == fencing.StateSuperseded && st == nil && m.goesOn():
		m.foundStale()
	case pe.Code == fencing.StateSuperseded:
		severity = "FATAL"
	case pe.Code == fencing.StateStartOver && m.epochs.choices.shown != nil:
		m.expect(st, m.findingOf(pe.Detail).Current)
	case pe.Code == fencing.StateStartOver:
		m.epochs.expect(e.announced)
	case pe.Code == raiseCode && m.epochs.choices.shown != nil: // the server has another value than was chosen
		r := fencing.ChosenOtherwiseRefusal
		m.refused(e, r, m.finding())
		return m.down.refusal(r)
	case strings.HasPrefix(pe.Code, "ZF"):
	case ofClient(pe):
		// The client's own timeout, cancel, deadlock or failed transaction; or a snapshot
		// older than the grant, which the check found.
		text := pe.Message
		if found, ok := fencing.DecodeFinding(pe.Detail); ok {
			r := &fencing.Refusal{SQLState: pe.Code, Message: pe.Message}
			m.refused(e, r, found)
			text = r.Text()
		}
		return m.down.edited(msg, func(field byte, v []byte) ([]byte, bool) {
			if field == 'M' {
				return []byte(text), true
			}
			return v, field != 'W' && field != 'P'
		})
	default:
		m.checks.rename()
		r := fencing.UncheckedRefusal(pe.Code, pe.Message)
		m.refused(e, r, m.finding())
		return m.down.refusal(r)
	}
	r := m.explainedFor(st, &fencing.Refusal{SQLState: pe.Code, Message: pe.Message, Hint: pe.Hint})
	if found := m.findingOf(pe.Detail); severity != "" {
		m.superseded(e, st, r, found)
	} else {
		m.refused(e, r, found)
	}
	return m.down.edited(msg, func(field byte, v []byte) ([]byte, bool) {
		switch {
		case field == 'M':
			return []byte(r.Text()), true
		case severity != "" && (field == 'S' || field == 'V'):
			return []byte(severity), true
		case field == 'H' && pe.Code == fencing.StateNotLeader:
			return m.hintUnproven(e, []byte(r.Hint)), true
		default:
			return v, field != 'W' && field != 'P'
		}
	})
}

// explained returns a refusal with what is known of its cause.
func (m *Machine) explained(r *fencing.Refusal) *fencing.Refusal {
	return m.explainedFor(m.answering(), r)
}

// explainedFor is explained for a refusal because of st, which is nil for the candidacy of the
// startup.
func (m *Machine) explainedFor(st *standing, r *fencing.Refusal) *fencing.Refusal {
	if m.config.Mode != ModeFenced || r.SQLState != fencing.StateNotLeader {
		return r
	}
	c := m.candidacy(st)
	s := fencing.Standing{Resource: c.Resource, Worker: m.config.Worker, Nameless: m.config.Nameless, Status: c.Status()}
	if c.Trouble != nil {
		s.Trouble = c.Trouble()
	}
	return r.Explained(s)
}

// ofClient reports whether an error that hit the check is the client's own: it
// would have met the client's statement as well.
func ofClient(pe wire.ServerError) bool {
	switch pe.Code {
	case "XX000": // 18, after a Query in a batch that had executed something
		return strings.HasPrefix(pe.Message, "StartTransactionCommand: unexpected state")
	case "57014", "55P03", "40P01", "40001", failedTransaction, "53200", "53300", "57P01", "57P02", "57P03":
		return true
	default:
		return false
	}
}

// AppendRefusal appends an ErrorResponse for r. The severity is "ERROR" or "FATAL".
func AppendRefusal(dst []byte, severity string, r *fencing.Refusal) []byte {
	return wire.AppendServerError(dst, wire.ServerError{Severity: severity, Code: r.SQLState, Message: r.Text(), Detail: r.Detail, Hint: r.Hint})
}

// AppendNotice appends a NoticeResponse with the text and the hint of r.
func AppendNotice(dst []byte, r *fencing.Refusal) []byte {
	return wire.AppendServerNotice(dst, wire.ServerError{Severity: "NOTICE", Code: "00000", Message: r.Message, Hint: r.Hint})
}
