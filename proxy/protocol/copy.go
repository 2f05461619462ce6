package protocol

import (
	"bytes"
	"fmt"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/proxy/gate"
)

// copyState follows a COPY from the client. It begins with the server's CopyInResponse.
// What the client sends from then on closes it: the end of the data, or a message that
// has no place among them. It ends with the server's answer to that, or with an error
// before. The server sends no CommandComplete for it while it reads.
type copyState struct {
	phase    copyPhase
	executed bool // it was begun by an Execute, so that an error in it makes the server skip up to a Sync
	// intruder is the type of the client's message that has no place among the data, 0 if
	// there is none. sent: it was sent to the server.
	intruder byte
	sent     bool
	// unsure: by the words of an error alone, the server has skipped messages. See skipsByWords.
	unsure bool
	// data: the client has sent COPY data since it last executed something, whether the
	// server reads them or not.
	data bool
}

type copyPhase uint8

const (
	noCopy      copyPhase = iota
	copyReading           // the server reads data, whose end the client has not sent
	copyClosing           // the client has sent what closes it, and the server has not answered
)

// under reports that a COPY has begun and not ended.
func (c *copyState) under() bool { return c.phase != noCopy }

// stalls reports that the server answers nothing that was sent after the beginning of
// the COPY before the client sends more of it. An intruder it does answer: it ends the
// connection over it or, if the COPY has failed before, takes it for what it is.
func (c *copyState) stalls() bool { return c.reading() || c.under() && c.intruder != 0 && !c.sent }

// reading reports that the client's next message is read as part of a COPY.
func (c *copyState) reading() bool { return c.phase == copyReading }

func (c *copyState) begin(executed bool) {
	c.phase, c.executed, c.intruder, c.sent, c.unsure = copyReading, executed, 0, false, false
}

// close follows what ends the data: CopyDone or CopyFail, or an intruder.
func (c *copyState) close(intruder byte) { c.phase, c.intruder = copyClosing, intruder }

// certainty is that of a Sync which may be inside the COPY.
func (c *copyState) certainty() certainty {
	if c.executed {
		return perhapsInBatch
	}
	return perhaps
}

func (c *copyState) end() { c.phase = noCopy }

// copyStarted: the server has begun to read COPY data. Whatever was sent after the
// message that began it, up to the end of the COPY, it reads in that state: Sync and Flush
// are ignored, and any other message ends the connection, by an ERROR and a FATAL. Should the
// COPY fail before that, the message is taken for what it is.
func (m *Machine) copyStarted() {
	if m.copy.under() {
		m.down.phase.end(fmt.Errorf("%w: a COPY inside another", ErrSurprise))
		return
	}
	e := m.pendingReplies.front()
	if e.standIn != noStandIn || m.hidesCopy(e) { // see copiesIn: nobody would send the Sync that it needs
		m.down.phase.end(fmt.Errorf("%w: a COPY of a statement that was not known to be one", ErrSurprise))
		return
	}
	m.copy.begin(e.kind == execute)
	for i := 1; i < m.pendingReplies.len(); i++ {
		switch e := m.pendingReplies.at(i); {
		case e.kind == copyEnd:
			m.copy.close(0)
			return
		case e.kind == syncing, e.malformedFlush():
			e.certainty = m.copy.certainty()
		default:
			m.copy.close(m.firstOfClient(i))
			m.copy.sent = true
			return
		}
	}
}

// hidesCopy reports whether the COPY is not what the message of e runs itself, as far as that is known: a
// function that it calls has executed one.
func (m *Machine) hidesCopy(e *reply) bool { return e.stmt != nil && !m.names.copiesIn(e.stmt) }

// copyCompleted: a COPY has succeeded, with this tag. A COPY that a function has run, by EXECUTE, may have
// failed instead: if the function catches the error, the statement that called it goes on. Nobody knows then
// which of the client's messages the server took for data.
func (m *Machine) copyCompleted(tag []byte) {
	if !bytes.HasPrefix(tag, []byte("COPY ")) {
		m.down.phase.end(fmt.Errorf("%w: a COPY inside a statement with the tag %q", ErrSurprise, tag))
		return
	}
	if m.copy.reading() {
		m.down.phase.end(fmt.Errorf("%w: a COPY is complete before its data", ErrSurprise))
		return
	}
	m.copyDone()
}

// copyDone: a COPY was read to its end, so the Syncs inside it were ignored. If nothing was sent since, the batch
// goes on that they seemed to end.
func (m *Machine) copyDone() {
	m.copy.end()
	m.removeIgnored()
	if m.pendingReplies.len() == 1 { // the COPY
		m.txn.Answer(gate.SyncIgnored, false)
	}
}

// removeIgnored takes out what was sent among the data of a COPY that was read to its end, and that end.
func (m *Machine) removeIgnored() {
	replies, end := &m.pendingReplies, 1
	for end < replies.len() && replies.at(end).kind != copyEnd {
		end++
	}
	replies.remove(min(end+1, replies.len()), func(e *reply) bool {
		return e.kind == copyEnd || e.maybe() && (e.kind == syncing || e.malformedFlush())
	})
}

// firstOfClient is the type of the first message of the client's that the entries from
// the i-th on stand for.
func (m *Machine) firstOfClient(i int) byte {
	for ; i < m.pendingReplies.len(); i++ {
		switch e := m.pendingReplies.at(i); {
		case e.standIn != noStandIn:
			return 'Q'
		case !e.own() && e.kind <= function:
			return "PBDECSQF"[e.kind]
		}
	}
	return 0
}

// intruded is the error for a message inside COPY data, which names the type of
// the message: the client's, not that of what Fencepost has put in front of it.
func (m *Machine) intruded(pe wire.ServerError, msg []byte) ([]byte, bool) {
	if !m.copy.under() || m.copy.intruder == 0 || !endsCopyRead(pe) {
		return nil, false
	}
	return m.down.edited(msg, func(field byte, v []byte) ([]byte, bool) {
		if hex := bytes.Index(v, []byte("0x")); field == 'M' && hex >= 0 && hex+4 <= len(v) {
			return fmt.Appendf(nil, "%s0x%02X%s", v[:hex], m.copy.intruder, v[hex+4:]), true
		}
		return v, true
	}), true
}

// copyMessage follows the client while the server reads COPY data, as far as is
// known, and reports whether it has dealt with the message. There, Sync and Flush
// are ignored. The COPY may have failed already, though, and then the server
// takes a message for what it is: a Sync ends what is known of the transaction,
// and all that has no place in a COPY is taken for what follows it.
func (m *Machine) copyMessage(typ byte, n, avail, more int, p *gate.Plan) bool {
	malformed := avail+more > wire.HeaderLen // a Sync or Flush with a body
	switch typ {
	case 'd':
		m.copy.data = true
		m.gate.CopyData(p, n, n+avail, more)
		return true
	case 'X':
	case 'H':
		if malformed {
			e := m.push(closing, fromClient)
			e.certainty, e.malformed = m.copy.certainty(), true
		}
	case 'S':
		e := m.push(syncing, fromClient)
		e.certainty, e.early, e.malformed = m.copy.certainty(), !m.copy.data, malformed
		m.endBatchBySync()
	case 'c', 'f':
		m.push(copyEnd, fromClient)
		m.copy.close(0)
		m.batch.mayHaveCopied()
	default:
		m.copy.close(typ)
		return false
	}
	p.Relay(n, n+avail)
	return true
}
