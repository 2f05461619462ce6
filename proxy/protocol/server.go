package protocol

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/proxy/gate"
)

// ErrSurprise says that the server sent what cannot answer what was asked. The
// session ends: it is never guessed over.
var ErrSurprise = errors.New("unexpected reply of the server")

// server is FromServer, with the events in m.down.
func (m *Machine) server(in []byte, p *gate.Segments) (n int, err error) {
	for n < len(in) {
		if m.down.phase.muted() {
			return len(in), nil // nothing follows a FATAL error
		}
		if m.down.body.inside() {
			k, drop := m.down.body.take(len(in) - n)
			if !drop {
				p.Forward(n, n+k)
			}
			n += k
			continue
		}
		f, ok, err := wire.PeekFrame(in[n:])
		if err != nil {
			return n, err
		}
		if !ok {
			break
		}
		avail := min(f.Size, len(in)-n)
		if avail < f.Size && (!streamed(f.Type) || m.editsNotice(f) || m.holdsBack(f)) {
			break
		}
		drop, err := m.answer(f, in[n:n+avail], p)
		if err != nil {
			return n, err
		}
		if !drop {
			p.Forward(n, n+avail)
		}
		m.down.body.begin(f.Size-avail, drop)
		n += avail
	}
	return n, nil
}

// streamed reports whether messages of the server of this type are passed on
// without being read.
func streamed(typ byte) bool {
	switch typ {
	case 'D', 'd', 'T', 't', 'V', 'N', 'A':
		return true
	default:
		return false
	}
}

// holdsBack reports whether f is a RowDescription that is not sent on at once: of a
// statement that a Query runs before it describes its rows, so that an error or a notice
// comes first.
func (m *Machine) holdsBack(f wire.Frame) bool {
	if f.Type != 'T' {
		return false
	}
	e := m.front()
	return e != nil && e.kind == describe && e.standIn == lateStandIn
}

// answer accounts for one message of the server. drop says that it does not go
// to the client as it is; what goes in its place is in p.
func (m *Machine) answer(f wire.Frame, msg []byte, p *gate.Segments) (drop bool, err error) {
	switch f.Type {
	case 'A':
		m.sendCompletion(p)
		return false, nil
	case 'N':
		return m.notice(f, msg, p), nil
	case 'S':
		m.sendCompletion(p)
		m.settings.learn(msg[wire.HeaderLen:])
		return false, nil
	case 'E':
		return m.failure(msg, p)
	case 'Z':
		if f.Size != wire.HeaderLen+1 {
			return false, fmt.Errorf("%w: a ReadyForQuery of %d bytes", ErrSurprise, f.Size)
		}
	}
	m.batch.shown()
	if m.down.doubt.asked && m.resolveSync(f.Type, msg, p) {
		return true, nil
	}
	for {
		e := m.pendingReplies.front()
		if e == nil {
			return false, fmt.Errorf("%w: %q while nothing is owed", ErrSurprise, f.Type)
		}
		if e.kind == copyEnd { // which is owed nothing
			m.pendingReplies.pop()
			continue
		}
		if drop, ok := m.match(e, f.Type, msg, p); ok {
			return drop, m.down.phase.err
		}
		if !e.maybe() {
			return false, fmt.Errorf("%w: %q while kind %d is owed", ErrSurprise, f.Type, e.kind)
		}
		m.skip(e)
	}
}

// sendCompletion sends the CommandComplete that a Query which went as extended messages
// held back, after the end of its transaction.
func (m *Machine) sendCompletion(p *gate.Segments) {
	if !m.down.holds() {
		return
	}
	if e := m.front(); e != nil && e.kind == syncing {
		p.Insert(m.down.unhold())
	}
}

// front is the entry whose reply comes next. Ends of COPY owe none.
func (m *Machine) front() *reply {
	for {
		e := m.pendingReplies.front()
		if e == nil || e.kind != copyEnd {
			return e
		}
		m.pendingReplies.pop()
	}
}

// match lets the entry in front take a message of type typ. ok is false if that
// cannot answer it.
func (m *Machine) match(e *reply, typ byte, msg []byte, p *gate.Segments) (drop, ok bool) {
	drop = e.own()
	switch e.kind {
	case parse:
		if typ == '1' {
			if e.stmt != nil && !e.own() {
				e.stmt.parsed = parseConfirmed
			}
			if e.prepares == m.checks.generation {
				m.checks.confirm()
			}
			m.pendingReplies.pop()
			return drop, true
		}
	case bind:
		return drop, m.popOn(typ == '2')
	case closing:
		return drop, m.popOn(typ == '3')
	case describe:
		if typ == 't' {
			return drop, true
		}
		if typ == 'T' && e.standIn == lateStandIn {
			m.down.heldBack = append(m.down.heldBack[:0], msg...)
			return true, m.popOn(true)
		}
		return drop || typ == 'n' && e.standIn != noStandIn, m.popOn(typ == 'T' || typ == 'n')
	case run:
		return true, m.matchRun(e, typ, msg, p)
	case execute:
		if m.down.holds() {
			p.Insert(m.down.unhold())
		}
		if typ == 'C' && e.standIn != noStandIn {
			m.down.heldBack, drop = append(m.down.heldBack[:0], msg...), true
		}
		return drop, m.matchExecute(e, typ, msg)
	case query:
		return m.matchQuery(e, typ, msg, p)
	case function:
		if typ == 'V' {
			e.sql.done++
			return false, true
		}
		fallthrough
	case syncing:
		if typ == 'Z' && e.mayBeReady() {
			m.sendCompletion(p)
			m.ready(e, msg, p)
			return drop, true
		}
	}
	return false, false
}

func (m *Machine) popOn(ok bool) bool {
	if ok {
		m.pendingReplies.pop()
	}
	return ok
}

// matchRun follows Bind, Execute and Close of Fencepost's.
func (m *Machine) matchRun(e *reply, typ byte, msg []byte, p *gate.Segments) bool {
	switch typ {
	case '2', 'D':
		return true
	case 'C':
		switch e.check {
		case verdict:
			m.judged(msg)
		case nothing:
			m.discarded(e, msg, p)
		default:
			m.passed(e.check, msg)
		}
		return true
	case '3':
		m.pendingReplies.pop()
		return true
	default:
		return false
	}
}

func (m *Machine) matchExecute(e *reply, typ byte, msg []byte) bool {
	switch typ {
	case 'D', 'H', 'W', 'd', 'c':
		return true
	case 'G':
		m.copyStarted()
		return true
	case 'C':
		begins, leaves := m.completed(e, msg)
		if leaves && e.stmt != nil && e.stmt.ends() {
			m.confirm(e.after)
		}
		m.pendingReplies.runs(begins, leaves && !e.keepsBlock())
		m.pendingReplies.pop()
		return true
	case 'I', 's':
		m.pendingReplies.pop()
		return true
	default:
		return false
	}
}

// keepsBlock reports whether an Execute that is answered by the tag of ROLLBACK was a ROLLBACK TO, which has
// that tag too.
func (e *reply) keepsBlock() bool {
	return e.stmt != nil && e.stmt.known && e.stmt.info.EndsSavepoint && e.adds&hadUnsure == 0
}

// matchQuery follows the results of a Query, in which statements of Fencepost's may
// stand between the client's.
func (m *Machine) matchQuery(e *reply, typ byte, msg []byte, p *gate.Segments) (drop, ok bool) {
	g, _, drop := e.insertedAt(e.sql.done)
	switch typ {
	case 'T', 'D', 'H', 'd', 'c', 'W':
		return drop, true
	case 'I':
		e.sql.done++
		return drop, true
	case 'G':
		m.copyStarted()
		return drop, true
	case 'C':
		if after, ended := e.sql.ended(); ended {
			m.confirm(after)
		}
		e.sql.done++
		if !drop {
			m.completed(e, msg)
			return false, true
		}
		m.passed(g, msg)
		return true, true
	case 'Z':
		if !e.mayBeReady() {
			return false, false
		}
		drop = e.own() // of a Query that is sent again
		m.ready(e, msg, p)
		return drop, true
	default:
		return false, false
	}
}

// passed follows the CommandComplete of a statement of Fencepost's. All that say something of the
// transaction are a SELECT.
func (m *Machine) passed(g injectedCheck, msg []byte) {
	if tag, _, _ := wire.CString(msg[wire.HeaderLen:]); (g == fullCheck || g == readOnly) && !bytes.HasPrefix(tag, []byte("SELECT ")) {
		m.down.phase.end(fmt.Errorf("%w: %q for a check", ErrSurprise, tag))
		return
	}
	switch g {
	case fullCheck:
		m.txn.Answer(gate.CheckPassed, false)
	case readOnly:
		m.txn.Answer(gate.ReadOnlySet, false)
	}
}

// completed follows a CommandComplete of the client's. begins and leaves say that its tag is one
// that the begin or the end of a block has, whatever was known of the statement.
func (m *Machine) completed(e *reply, msg []byte) (begins, leaves bool) {
	tag, _, _ := wire.CString(msg[wire.HeaderLen:])
	switch view(tag) {
	case "COMMIT", "ROLLBACK": // the latter of ROLLBACK TO as well
		m.txn.Answer(gate.TransactionEnded, false)
		leaves = true
	case "PREPARE TRANSACTION":
		leaves = true
	case "BEGIN", "START TRANSACTION":
		begins = true
	case "DISCARD ALL": // is committed at once, whatever fails behind it
		m.settleBase(false)
	case "RELEASE", "RESET", "SET": // 14 and 15 let a RESET undo read-only mode, and RELEASE one set since the savepoint
		m.txn.Answer(gate.ReadOnlyUndone, false)
	}
	if m.checks.claims && view(tag) == "RESET" {
		m.txn.Answer(gate.SettingsReset, false)
	}
	if e.announces {
		m.announces(e)
	}
	if m.copy.under() {
		m.copyCompleted(tag)
	}
	return begins, leaves
}
