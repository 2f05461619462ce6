package protocol

import "github.com/fencepost/fencepost/proxy/wire"

// names is what the proxy knows of the prepared statements and the portals that the
// client's names stand for. A Parse defines a statement and a Bind a portal, and both are
// believed as soon as they are sent. A name ends with a Close, with SQL that frees it,
// with a Parse that the server refuses or skips, and a portal with its transaction. A
// Query ends the unnamed ones. What may have happened unseen makes a name unknown.
type names struct {
	statements statements
	portals    portals
	unnamed    *statement
	// leftovers: the server has the unnamed statement and portal of a Query that went as
	// extended messages. They must be gone before a message that could name them.
	leftovers bool
}

// statement returns what is known, for a message of that batch, of the statement with
// this name.
func (t *names) statement(name []byte, batch uint64) *statement {
	s := t.unnamed
	if len(name) > 0 {
		s = t.statements.get(wire.CutName(name))
	}
	if s == nil || s.lost || !s.confirmed && s.batch != batch {
		return unknownStatement
	}
	return s
}

// define follows a Parse that was sent.
func (t *names) define(name []byte, s *statement) {
	name = wire.CutName(name)
	switch old := t.statements.get(name); {
	case len(name) == 0:
		t.unnamed = s
	case opaque(name):
		t.statements.hide(s)
	case old != nil:
		// Taken already, as far as is known: this Parse will fail, or the name
		// was freed in a way the proxy did not see. Which one is unknown.
		t.statements.hide(s)
		t.statements.doubt(string(name))
	default:
		s.name = string(name)
		t.statements.set(s.name, s)
	}
}

// lose follows a Parse that the server has refused or skipped.
func (t *names) lose(s *statement) {
	s.lost = true
	if s.name != "" && t.statements.byName[s.name] == s {
		t.statements.remove(s.name)
	}
}

// bind follows a Bind of the statement with this name.
func (t *names) bind(portal, name []byte, b binding) {
	if b.stmt == unknownStatement && len(name) == 0 { // it may be the one that a Parse not yet answered made
		t.statements.hide(t.unnamed)
	}
	t.portals.set(portal, b)
}

// dropUnnamed follows a Query, which ends the unnamed statement and the unnamed portal.
// leftovers says that it went as extended messages, which leave such ones of their own.
func (t *names) dropUnnamed(leftovers bool) {
	t.unnamed, t.leftovers = unknownStatement, leftovers
	t.portals.remove(nil)
}

// textBytes is the size of the texts that are kept.
func (t *names) textBytes() int { return t.statements.bytes + t.portals.bytes + len(t.unnamed.text) }

// maxTexts bounds, in bytes, the texts of a session's statements that the proxy
// keeps. A statement beyond it is still followed, but not shown in an audit line,
// and counts as a write where its text alone would tell.
const maxTexts = 768 << 10

// alwaysKept is the length, in bytes, of a text for which there is always room: it takes
// no more than what is known of a statement besides.
const alwaysKept = 64

// keeps returns as much of a statement's text as there is room for.
func (m *Machine) keeps(sql []byte) string {
	if len(sql) > maxAnalyzed {
		sql = sql[:maxAuditText] // nothing will be parsed of it
	}
	if m.names.textBytes()+m.pendingReplies.texts+len(sql) > maxTexts && len(sql) > alwaysKept {
		return ""
	}
	return string(sql)
}
