package protocol

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/proxy/gate"
)

// errCopyFlood says that a client sent more Syncs inside COPY data, where they
// are ignored, than any client has reason to.
var errCopyFlood = errors.New("too many messages inside COPY data")

// errInDoubt says that nobody knows which messages the server has skipped.
var errInDoubt = fmt.Errorf("%w: an error in a COPY, of which it is not sure where the server goes on", ErrSurprise)

// serverReads reports whether a server reads messages of this type in a session.
func serverReads(typ byte) bool {
	switch typ {
	case 'Q', 'P', 'B', 'D', 'E', 'C', 'S', 'H', 'X', 'F', 'd', 'c', 'f':
		return true
	default:
		return false
	}
}

// maxScratch is how much Fencepost plans to send before it sends that, in bytes: small messages may
// each need a long check.
const maxScratch = 1 << 20

// client is FromClient for bytes that follow what was taken before.
func (m *Machine) client(in []byte, p *gate.Plan) (n int, need NeedKind, err error) {
	m.scratch = reuse(m.scratch)
	m.up.flushed = false
	if m.up.phase.muted() {
		return len(in), NeedNothing, nil
	}
	if m.retry.stage == retrySync && !m.up.body.inside() {
		m.retry.stage = retryIdle
		m.syncInstead(p)
	}
	if m.retry.stage == retryDiscarding && len(in) > 0 {
		return 0, NeedRoom, nil
	}
	if m.retry.stage == retryDue {
		if need := m.replay(p); need != NeedNothing {
			return 0, need, nil
		}
	}
	for n < len(in) {
		if m.up.body.inside() {
			k, drop := m.up.body.take(len(in) - n)
			if !drop {
				m.gate.Rest(p, n, n+k)
			}
			n += k
			continue
		}
		if m.pendingReplies.len() >= maxPending {
			if m.copy.reading() { // the server answers nothing before the data ends
				return n, NeedNothing, errCopyFlood
			}
			return n, NeedRoom, nil
		}
		if n > 0 && len(m.scratch) > maxScratch && !m.copy.under() {
			return n, NeedRoom, nil // what is planned is sent first
		}
		taken, need := m.begin(in, n, p)
		n += taken
		if need != NeedNothing {
			return n, need, nil
		}
	}
	if m.down.doubt.due && !m.up.body.inside() {
		m.askDoubtful(p)
	}
	return n, NeedNothing, nil
}

// begin takes the message that begins at in[n], as much as is there of it.
func (m *Machine) begin(in []byte, n int, p *gate.Plan) (taken int, need NeedKind) {
	known := serverReads(in[n])
	f, ok, err := wire.PeekClientFrame(in[n:])
	if (in[n] == 'X' || !known || err != nil) && m.maySendAgain() {
		m.inHand.wait.begin(waitsForReplies) // it ends the session
		return 0, NeedRoom
	}
	if !known {
		// The server ends the connection over the type alone, also inside a COPY.
		// Input that it leaves unread would reset the connection, and a reset
		// discards what it has said and not yet delivered.
		p.Relay(n, n+1)
		m.up.phase.mute()
		return len(in) - n, NeedNothing
	}
	if err != nil {
		// The server ends the connection over that header, in its own words.
		r, _ := gate.Malformed(err)
		m.gate.Pass(p, n, n+wire.HeaderLen, 0, r)
		m.up.phase.mute()
		return len(in) - n, NeedNothing
	}
	if !ok {
		m.up.wants = wire.HeaderLen
		return 0, NeedMore
	}
	avail := min(f.Size, len(in)-n)
	if avail < f.Size && !m.startable(f, in[n+wire.HeaderLen:]) {
		m.up.wants = f.Size
		return 0, NeedMore
	}
	if need := m.message(f, n, avail, p); need != NeedNothing {
		return 0, need
	}
	m.up.body.begin(f.Size-avail, m.inHand.dropped)
	m.settled()
	m.retry.keep(f, in[n:n+avail])
	if f.Type == 'X' {
		return avail, NeedTerminal
	}
	return avail, NeedNothing
}

// startable reports whether a message can be begun with the part of its body
// that is there.
func (m *Machine) startable(f wire.Frame, body []byte) bool {
	switch f.Type {
	case 'd', 'F':
		return true
	case 'B':
		_, name, ok := bindNames(body)
		return ok && (f.Size > maxWholeBind || !m.restates(m.named(name), name))
	default:
		return false
	}
}

// bindNames reads the portal and the statement that a Bind names.
func bindNames(body []byte) (portal, stmt []byte, ok bool) {
	portal, rest, ok := wire.CString(body)
	if !ok {
		return nil, nil, false
	}
	stmt, _, ok = wire.CString(rest)
	return portal, stmt, ok
}

// reuse empties a buffer for its next use, or drops it if it has become large.
func reuse(b []byte) []byte {
	const large = 64 << 10
	if cap(b) > large {
		return nil
	}
	return b[:0]
}

// message handles one client message of which in[n:n+avail] is there.
func (m *Machine) message(f wire.Frame, n, avail int, p *gate.Plan) NeedKind {
	m.inHand.status, m.inHand.aim = m.config.Status(), nil
	if m.epochs.number == 0 {
		m.epochs.begins() // no transaction has begun before
	}
	m.aim()
	if m.config.Mode == ModeFenced { // in shadow, nothing is added to what the client sends
		m.checks.follow(m.inHand.status)
	}
	body, more := p.Input()[n+wire.HeaderLen:n+avail], f.Size-avail
	if m.copy.reading() && m.copyMessage(f.Type, n, avail, more, p) {
		return NeedNothing
	}
	if m.inHand.verdict != noVerdict {
		if done, need := m.takeVerdict(f.Type, p); done || need != NeedNothing {
			return need
		}
	}
	if m.skipped(f.Type, n, avail, more, p) {
		return NeedNothing
	}
	if need := m.awaitAnswers(f.Type, body, p); need != NeedNothing {
		return need
	}
	if m.wantsAnalysis(f.Type, body) {
		return NeedAnalysis
	}
	if m.names.leftovers && strings.IndexByte("PBDEC", f.Type) >= 0 {
		m.closeLeftovers(p)
	}
	if f.Type == 'Q' || f.Type == 'F' {
		m.staysReadOnly(p)
	}
	switch f.Type {
	case 'Q':
		return m.queryMessage(body, n, avail, p)
	case 'P':
		return m.parseMessage(body, n, avail, p)
	case 'B':
		return m.bindMessage(body, n, avail, more, p)
	case 'D':
		return m.describeMessage(body, n, avail, p)
	case 'E':
		return m.executeMessage(body, n, avail, p)
	case 'F':
		return m.functionMessage(n, avail, more, p)
	case 'd':
		m.copy.data = true
		m.batch.strayed()
		m.gate.CopyData(p, n, n+avail, more)
		return NeedNothing
	default:
		return m.inertMessage(f.Type, body, n, avail, p)
	}
}

// skipped handles a message that the server skips.
func (m *Machine) skipped(typ byte, n, avail, more int, p *gate.Plan) bool {
	switch m.batch.follow(m.inHand.wait, typ) {
	case replaced:
		m.syncInstead(p)
		m.inHand.dropped = true
		return true
	case leftOut:
		m.inHand.dropped = true
		return true
	}
	if r, ok := m.txn.Skipped(!m.pendingReplies.empty()); ok && typ != 'S' {
		// An error ended the batch and its Sync was not sent yet: the server
		// reads this message, and neither runs nor answers it.
		m.gate.Pass(p, n, n+avail, more, r)
		return true
	}
	if m.txn.Skips() && !m.pendingReplies.certain() && gate.Runs(typ) {
		// The same, as it seems by the words of an error, which a function can
		// choose: the message is left out, since the server would not run it.
		if m.doubtsSync() {
			return false
		}
		m.inHand.dropped = true
		return true
	}
	return false
}

// inertMessage handles a message that runs nothing, whole.
func (m *Machine) inertMessage(typ byte, body []byte, n, avail int, p *gate.Plan) NeedKind {
	switch typ {
	case 'C':
		m.beginBatch()   // nothing runs yet, but a message that follows finds a reply pending
		m.claimAtRest(p) // for what follows in this batch
		m.closeMessage(body)
	case 'S':
		m.staysReadOnly(p)
		e := m.push(syncing, fromClient)
		e.early, e.malformed = !m.copy.data, len(body) > 0
		m.endBatchBySync()
		m.batch.synced()
	case 'H':
		if len(body) > 0 {
			return m.unreadable(closing, 'H', n, avail, p)
		}
		m.pendingReplies.ask()
		m.batch.flushed()
		m.up.flushed = true
	case 'c', 'f':
		m.batch.strayed()
		// For a COPY whose start the server has not answered yet; else ignored.
		if !m.pendingReplies.empty() {
			m.push(copyEnd, fromClient)
			m.batch.mayHaveCopied()
		}
	}
	p.Relay(n, n+avail)
	return NeedNothing
}

// unreadable forwards a message that the server will refuse as malformed.
func (m *Machine) unreadable(k kind, typ byte, n, avail int, p *gate.Plan) NeedKind {
	r, _ := gate.Inert(typ, p.Input()[n+wire.HeaderLen:n+avail])
	m.push(k, fromClient).malformed = true
	m.batch.sent()
	m.gate.Pass(p, n, n+avail, 0, r)
	return NeedNothing
}

// view returns b as a string that shares its memory: for a question that is
// answered before b changes.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
