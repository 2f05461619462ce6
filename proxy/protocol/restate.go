package protocol

import (
	"encoding/binary"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

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
