package shadow

import (
	"bytes"

	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/wire"
)

// What is kept of a session is bounded. Nothing is known of a prepared statement or a portal beyond maxNames or
// maxPortals. Beyond maxTexts, the text of one is missing from what is recorded.
const (
	maxText    = 4 << 10   // of one text, in bytes, for the audit
	maxTexts   = 512 << 10 // of all texts of the statements, and of the portals
	maxNames   = 2048
	maxPortals = 256
)

// entry is what is known of a prepared statement or a portal.
type entry struct {
	statement *sqltext.Statement // nil if nothing is known
	text      []byte             // the start of it
}

// plainRead is the statement of every read, and of what the server rejects.
var plainRead = &sqltext.Statement{Read: true}

// cut returns what is kept of a text.
func cut(text []byte) []byte { return bytes.Clone(text[:min(len(text), maxText)]) }

// entries are prepared statements or portals, by their names.
type entries struct {
	byName map[string]entry
	max    int // how many there may be
	size   int // of their texts
}

// get returns an entry without a statement for a name that is not known.
func (t *entries) get(name []byte) entry { return t.byName[string(wire.CutName(name))] }

func (t *entries) set(name []byte, e entry) {
	t.remove(name)
	if len(t.byName) >= t.max {
		return
	}
	if t.byName == nil {
		t.byName = map[string]entry{}
	}
	if t.size+len(e.text) > maxTexts {
		e.text = nil
	}
	t.byName[string(wire.CutName(name))] = e
	t.size += len(e.text)
}

func (t *entries) remove(name []byte) {
	t.size -= len(t.get(name).text)
	delete(t.byName, string(wire.CutName(name)))
}

func (t *entries) clear() {
	clear(t.byName)
	t.size = 0
}
