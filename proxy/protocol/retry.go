package protocol

import (
	"encoding/binary"
	"fmt"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// maxKept bounds what of a client's is kept to be sent once more.
const maxKept = 8 << 10

// retry sends a client's messages once more if the check in front of them was
// unknown to the server: a function of the client's has hidden a DEALLOCATE ALL,
// which nobody sees on the wire. It does so only where nothing of the client's can have
// run: outside a transaction block, with the check as the first of all, and with
// everything that was sent since the session was last at rest in hand, which is
// one Query, or one batch with the Sync or the Query after it. A Query there is
// skipped with the batch, so that a Sync of Fencepost's ends it first.
//
// It begins again whenever the session is at rest. Once the check was unknown, the replies
// to what was kept are discarded, then it is sent, which ends it.
type retry struct {
	keeping   keeping
	kept      []byte // whole messages
	stage     retryStage
	sync      bool   // the server skips up to a Sync of Fencepost's, which goes first
	replaying []byte // what is sent once more
	at        int    // how much of it was taken
	plan      gate.Plan
	scratch   []byte
}

// keeping says what kept is of that which was sent since the session was at rest.
type keeping uint8

const (
	keepsNothing keeping = iota
	keepsAll             // all of it
	keepsWhole           // all of it, and it ends with a Query or a Sync
)

// retryStage is how far the sending once more has come.
type retryStage uint8

const (
	retryIdle       retryStage = iota
	retryDiscarding            // ReadyForQuery comes first, and is dropped
	retryDue                   // something is to be sent
	retrySync                  // a Sync is to be sent, whose ReadyForQuery is the client's
)

// rest begins to keep what is sent. What is sent once more is not kept again.
func (r *retry) rest() {
	if r.keeping = keepsAll; r.stage == retryDue {
		r.keeping = keepsNothing
	}
	r.kept = r.kept[:0]
}

// first reports that nothing was sent yet since the session was at rest.
func (r *retry) first() bool { return r.keeping == keepsAll && len(r.kept) == 0 }

// keep keeps a message that was taken; msg is what has come of it.
func (r *retry) keep(f wire.Frame, msg []byte) {
	switch {
	case r.keeping == keepsNothing:
	case r.keeping == keepsWhole, len(msg) < f.Size, len(r.kept)+len(msg) > maxKept:
		r.keeping = keepsNothing
	default:
		r.kept = append(r.kept, msg...)
		if f.Type == 'Q' || f.Type == 'S' {
			r.keeping = keepsWhole
		}
	}
}

// begin sends once more what was kept, which must be whole. before is what comes first.
func (r *retry) begin(before retryStage, sync bool) {
	if r.keeping != keepsWhole || r.stage != retryIdle {
		panic("protocol: what was not kept is sent once more")
	}
	r.replaying, r.at = append(r.replaying[:0], r.kept...), 0
	r.keeping, r.stage, r.sync = keepsNothing, before, sync
}

// unknownCheck reports whether an error that answers e says that the prepared
// check is gone, in front of messages that can be sent again. If so, their
// replies are dropped.
func (m *Machine) unknownCheck(e *reply, pe wire.ServerError) bool {
	if pe.Code != "26000" || !e.first || e.sql.done > 0 || !m.checks.mentioned(pe.Message) {
		return false
	}
	if e.check == verdict { // the client's message waits, and was not sent
		m.checks.gone()
		m.fail(e, gate.Skipping)
		m.inHand.verdict = verdictGone
		return true
	}
	if m.retry.keeping != keepsWhole {
		return false
	}
	m.checks.gone()
	m.fail(e, gate.Skipping)
	if e := m.pendingReplies.front(); e != nil {
		e.origin = own // the Query itself, or the batch's Sync
		m.retry.begin(retryDiscarding, false)
	} else {
		m.retry.begin(retryDue, true)
		m.down.happens(Event{Kind: EventReplay})
	}
	return true
}

// maySendAgain reports whether the reply of a check is pending that decides whether what
// was kept is sent once more. What ends the session has to wait for it.
func (m *Machine) maySendAgain() bool {
	if m.retry.keeping != keepsWhole || m.copy.stalls() || !m.pendingReplies.certain() {
		return false
	}
	for i := range m.pendingReplies.len() {
		if e := m.pendingReplies.at(i); e.first && e.sql.done == 0 {
			return true
		}
	}
	return false
}

// repliesDropped follows the ReadyForQuery that was dropped.
func (m *Machine) repliesDropped() {
	if m.retry.stage == retryDiscarding {
		m.retry.stage = retryDue
		m.down.happens(Event{Kind: EventReplay})
	}
}

// replay takes what was kept as if it had come now.
func (m *Machine) replay(p *gate.Plan) NeedKind {
	r := &m.retry
	if r.sync {
		r.sync = false
		m.syncSkipped(p)
	}
	r.plan.Reset(r.replaying)
	var n NeedKind
	for r.at < len(r.replaying) && n == NeedNothing {
		f, _, _ := wire.PeekFrame(r.replaying[r.at:]) // kept whole
		if n = m.message(f, r.at, f.Size, &r.plan); n == NeedNothing {
			m.settled()
			r.at += f.Size
		}
	}
	r.scratch = p.Append(&r.plan, r.scratch)
	if r.at == len(r.replaying) {
		r.stage = retryIdle
	}
	return n
}

// owesReady follows an error of Fencepost's message in front of a Query or a fast path call that
// is skipped with it. To the client the error is that of its own message, so ReadyForQuery is due.
func (m *Machine) owesReady() {
	if m.retry.stage != retryIdle {
		m.down.phase.end(fmt.Errorf("%w: an error in front of a Query, while another is sent again", ErrSurprise))
		return
	}
	m.retry.keeping, m.retry.stage = keepsNothing, retrySync
	m.down.happens(Event{Kind: EventReplay})
}

// syncSkipped ends a batch of which the server skips what is left.
func (m *Machine) syncSkipped(p *gate.Plan) {
	at := len(m.scratch)
	m.scratch = wire.AppendSync(m.scratch)
	p.Own(m.scratch[at:])
	m.push(syncing, own)
	m.endBatch()
	m.batch.synced()
}

// What passes for its text alone, as BEGIN and SET do, must be that text. A name does
// not say so: DEALLOCATE and PREPARE in a function give it to another statement, which
// nobody sees. So the text is prepared again in front of the message that names it,
// under a name of Fencepost's, and that name put in the place of the client's. The three go to
// the server at once, so nothing runs between them.

// restates reports whether a message that names s must not rest on that name.
func (m *Machine) restates(s *statement, name []byte) bool {
	if len(name) == 0 || !s.known || m.config.Mode == ModePassing || !fencing.Checking || m.txn.State() == gate.Failed {
		return false // no SQL names the unnamed statement
	}
	if s.pushed == m.pendingReplies.pushed {
		return false // its Parse is the last message that could run anything
	}
	_, harmless := m.txn.Harmless(&s.info, m.config.Version)
	return harmless
}

const (
	// maxRestated bounds, in bytes, a text that is prepared again for each message
	// that names it: a message of a few bytes must not cost many.
	maxRestated = 1 << 10
	// maxWholeBind bounds, in bytes, a Bind that is waited for as a whole because its
	// statement is prepared again. One without values is that short.
	maxWholeBind = 4 << 10
)

// restatable reports whether the text of s is there and would be read as it was.
func (m *Machine) restatable(s *statement) bool {
	text := bytesOf(s.text)
	if !s.whole || len(text) > maxRestated {
		return false
	}
	switch sqltext.DependenceOf(text) {
	case sqltext.OnNothing:
		return true
	case sqltext.OnEncoding:
		return !m.unsettled(text) && s.settingChanges == m.settings.changes
	default:
		return false
	}
}

// hasNoParameters reports whether a Bind, of which that follows the names, gives no
// values. To a statement that takes none, Postgres refuses them with its name.
func hasNoParameters(rest []byte) bool {
	if len(rest) < 2 {
		return false
	}
	formats := int(binary.BigEndian.Uint16(rest))
	return len(rest) >= 4+2*formats && binary.BigEndian.Uint16(rest[2+2*formats:]) == 0
}

// restate sends the Bind or Describe that before and after make with the name of a
// statement between them, for s by a name of Fencepost's.
func (m *Machine) restate(typ byte, before []byte, s *statement, after []byte, r gate.Reason, p *gate.Plan) {
	at, name := len(m.scratch), m.checks.ownName()
	m.scratch = wire.AppendCloseStatement(m.scratch, name)
	m.push(closing, own)
	m.scratch = wire.AppendParse(m.scratch, name, s.text)
	m.push(parse, ownRestated)
	m.scratch = append(m.scratch, typ)
	m.scratch = binary.BigEndian.AppendUint32(m.scratch, uint32(4+len(before)+len(name)+1+len(after)))
	m.scratch = append(append(append(m.scratch, before...), name...), 0)
	m.scratch = append(m.scratch, after...)
	if typ == 'B' {
		m.push(bind, fromClient)
	} else {
		m.push(describe, fromClient)
	}
	m.scratch = wire.AppendCloseStatement(m.scratch, name)
	m.push(closing, own)
	m.gate.PassText(p, m.scratch[at:], r)
	m.batch.sent()
}
