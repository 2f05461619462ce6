package protocol

import (
	"bytes"
	"fmt"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/proxy/gate"
)

// copyStarted: the server has begun to read COPY data. Whatever was sent
// behind, up to the end of the COPY, it reads in that state: Sync is ignored,
// and any other message ends the connection, by an ERROR and a FATAL. Should the
// COPY fail before that, the message is taken for what it is.
func (m *Machine) copyStarted() {
	m.copying, m.intruder, m.executes = true, 0, m.pendingReplies.front().kind == execute
	for i := 1; i < m.pendingReplies.len(); i++ {
		switch e := m.pendingReplies.at(i); e.kind {
		case copyEnd:
			return
		case syncing:
			e.maybe, e.skips = true, m.executes
		default:
			m.intruder = m.firstOfClient(i)
			return
		}
	}
	m.copyIn = true
}

// copyDone: a COPY was read to its end, so the Syncs inside it were ignored.
func (m *Machine) copyDone() {
	m.copying = false
	for i := 1; i < m.pendingReplies.len(); {
		switch e := m.pendingReplies.at(i); {
		case e.kind == copyEnd:
			m.pendingReplies.remove(i)
			return
		case e.kind == syncing && e.maybe:
			m.pendingReplies.remove(i)
		default:
			i++
		}
	}
}

// firstOfClient is the type of the first message of the client's that the
// entries from the i-th on stand for.
func (m *Machine) firstOfClient(i int) byte {
	for ; i < m.pendingReplies.len(); i++ {
		switch e := m.pendingReplies.at(i); {
		case e.hideNoData:
			return 'Q'
		case !e.ours && e.kind <= function:
			return "PBDECSQF"[e.kind]
		}
	}
	return 0
}

// intruded is the error for a message inside COPY data, which names the type of
// the message: the client's, not that of what stands in front of it.
func (m *Machine) intruded(pe wire.ServerError, msg []byte) ([]byte, bool) {
	if !m.copying || m.intruder == 0 || !ofCopyRead(pe) || pe.Code != protocolViolation {
		return nil, false
	}
	at := len(m.down)
	m.down = wire.EditError(m.down, msg, func(field byte, v []byte) ([]byte, bool) {
		if hex := bytes.Index(v, []byte("0x")); field == 'M' && hex >= 0 && hex+4 <= len(v) {
			return fmt.Appendf(nil, "%s0x%02X%s", v[:hex], m.intruder, v[hex+4:]), true
		}
		return v, true
	})
	return m.down[at:], true
}

// copyMessage follows the client while the server reads COPY data, as far as is
// known, and reports whether it has dealt with the message. There, Sync and Flush
// are ignored. The COPY may have failed already, though, and then the server
// takes a message for what it is: a Sync ends what is known of the transaction,
// and all that has no place in a COPY is taken for what follows it.
func (m *Machine) copyMessage(typ byte, n, avail, more int, p *gate.Plan) bool {
	switch typ {
	case 'd':
		m.data = true
		m.gate.CopyData(p, n, n+avail, more)
		return true
	case 'H', 'X':
	case 'S':
		e := m.push(syncing, false)
		e.maybe, e.skips, e.early, e.malformed = true, m.executes, !m.data, avail+more > wire.HeaderLen
		m.endBatch()
	case 'c', 'f':
		m.push(copyEnd, false)
		m.copyIn = false
	default:
		m.copyIn, m.intruder = false, typ
		return false
	}
	p.Relay(n, n+avail)
	return true
}
