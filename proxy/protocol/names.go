package protocol

import (
	"github.com/fencepost/fencepost/proxy/wire"
)

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
	s := t.last(name)
	if s == nil || s == unknownStatement || s.parsed == parseLost || s.parsed == parseSent && s.batch != batch {
		return t.unknown(name)
	}
	return s
}

// unanswered reports whether it is not known how the Parse of that name went.
func (t *names) unanswered(name []byte) bool {
	s := t.last(name)
	return s != nil && s.parsed == parseSent
}

// last returns the statement of the last Parse with this name, nil if there is none.
func (t *names) last(name []byte) *statement {
	if len(name) == 0 {
		return t.unnamed
	}
	return t.statements.get(wire.CutName(name))
}

// unknown returns what stands for a name of which the server's statement is not known.
func (t *names) unknown(name []byte) *statement {
	switch name = wire.CutName(name); {
	case t.statements.choosers.has(name):
		return unknownChooser
	case t.statements.importers.has(name):
		return unknownImporter
	default:
		return unknownStatement
	}
}

// define follows a Parse that was sent.
func (t *names) define(name []byte, s *statement) {
	name = wire.CutName(name)
	if s.importsSnapshot() {
		t.statements.importers.add(name)
	}
	if s.mayChoose() {
		t.statements.choosers.add(name)
	}
	t.statements.chains = t.statements.chains || len(name) > 0 && (!s.known || s.info.Chain)
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
	s.parsed = parseLost
	if s.name != "" && t.statements.byName[s.name] == s {
		t.statements.remove(s.name)
	}
}

// bind follows a Bind of the statement with this name.
func (t *names) bind(portal, name []byte, b binding) {
	if b.stmt.unknown() && len(name) == 0 { // it may be the one that a Parse not yet answered made
		t.statements.hide(t.unnamed)
	}
	if b.stmt.mayChoose() {
		t.portals.choosers++
	}
	t.portals.importers = t.portals.importers || b.stmt.importsSnapshot()
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

// copiesIn reports whether s may be a COPY from the client, or an EXECUTE of one. Such a
// Query is never sent as messages: the server would ignore the Sync behind them, as it
// does in COPY data, and the client sends none.
func (t *names) copiesIn(s *statement) bool {
	if name := []byte(s.info.Name); s.info.Executes && !opaque(name) {
		if s = t.statements.get(wire.CutName(name)); s == nil {
			return t.statements.copies // else by SQL, and PREPARE accepts no COPY; or there is none
		}
	}
	return !s.known || s.info.CopiesIn || s.info.Executes
}

// choosesIn reports whether s may run one that chooses resources by EXECUTE: SQL cannot prepare that.
func (t *names) choosesIn(s *statement) bool {
	if !s.known {
		return s.guess.Executes && !t.statements.choosers.empty()
	}
	if !s.info.Executes {
		return false
	}
	name := wire.CutName([]byte(s.info.Name))
	if s = t.statements.get(name); s != nil && s.parsed == parseConfirmed && s != unknownStatement {
		return s.mayChoose()
	}
	return t.statements.choosers.has(name)
}

// statements are a session's prepared statements by the names that the server keeps,
// without those whose names it may read otherwise (see opaque).
type statements struct {
	byName map[string]*statement
	bytes  int // of their texts
	// freeing counts those that free names of others when SQL EXECUTE runs them;
	// hidden is set once such a one may exist that is not listed here.
	freeing int
	hidden  bool
	// copies is set once there may be one that reads COPY data and is not listed here.
	copies bool
	// importers are the names under which the client has prepared what may import a
	// snapshot, and choosers what may choose resources. SQL cannot prepare either.
	importers, choosers nameSet
	// chains is set once the client has prepared under a name what may be COMMIT or ROLLBACK AND CHAIN.
	// SQL EXECUTE of it has its effect at the next ReadyForQuery, which says the same as without, and
	// no tag tells of it if a function runs it.
	chains bool
}

// nameSet is a set of names of prepared statements, from which none is taken away.
type nameSet struct {
	names map[string]bool
	all   bool // it may have any name
}

// maxNames bounds how many names a nameSet keeps.
const maxNames = 256

func (n *nameSet) add(name []byte) {
	if n.all = n.all || opaque(name) || len(n.names) == maxNames; n.all {
		return
	}
	if n.names == nil {
		n.names = map[string]bool{}
	}
	n.names[string(name)] = true
}

func (n *nameSet) has(name []byte) bool { return n.all || n.names[string(name)] }

func (n *nameSet) empty() bool { return !n.all && len(n.names) == 0 }

// get returns nil for a name that is not known.
func (t *statements) get(name []byte) *statement { return t.byName[string(name)] }

func (t *statements) set(name string, s *statement) {
	t.remove(name)
	if t.byName == nil {
		t.byName = map[string]*statement{}
	}
	t.byName[name] = s
	t.bytes += len(s.text)
	if s.freesNames() {
		t.freeing++
	}
}

func (t *statements) remove(name string) {
	s := t.byName[name]
	if s == nil {
		return
	}
	delete(t.byName, name)
	t.bytes -= len(s.text)
	if s.freesNames() {
		t.freeing--
	}
}

// free follows what frees a name, if the server runs it.
func (t *statements) free(name string) {
	if s := t.byName[name]; s != nil {
		t.hide(s) // it is still there if the server skips that
	}
	t.remove(name)
}

// doubt follows a PREPARE of that name. It fails where the name is taken, as far
// as is known, unless it was freed in a way the proxy did not see.
func (t *statements) doubt(name string) {
	if s := t.byName[name]; s != nil {
		t.hide(s)
		t.set(name, unknownStatement)
	}
}

// hide follows a statement that may be on the server without being listed here.
func (t *statements) hide(s *statement) {
	t.hidden = t.hidden || s.freesNames()
	t.copies = t.copies || !s.known || s.info.CopiesIn
}

// forget drops all of them, though some may still be on the server.
func (t *statements) forget() {
	for _, s := range t.byName {
		t.hide(s)
	}
	clear(t.byName)
	t.bytes, t.freeing = 0, 0
}

// mayFree reports whether SQL EXECUTE of some name may free others.
func (t *statements) mayFree() bool { return t.hidden || t.freeing > 0 }

// freesNames reports whether running s may free names of prepared statements.
func (s *statement) freesNames() bool {
	return s.hides() || frees(&s.info)
}

// binding is what a Bind has put into a portal.
type binding struct {
	stmt  *statement
	batch uint64 // in which the Bind was sent
	// transaction is the number of the last transaction that had begun when the Bind was
	// sent, as far as is known. The portal ends with that one at the earliest: whatever
	// ended a transaction before is in front of the Bind.
	transaction uint64
	number      uint64 // Binds are counted
}

// portals are those that a Bind of the client's has made.
type portals struct {
	unnamed binding // kept apart from the others because most clients use no other
	byName  map[string]binding
	bytes   int // of their statements' texts
	// choosers counts those that may choose resources, and were not executed in their batch.
	choosers int
	// importers: some of them may import snapshots.
	importers bool
	bound     uint64 // the number of the last Bind
}

// get returns a binding without a statement for a name that is not known.
func (t *portals) get(name []byte) binding {
	if len(name) == 0 {
		return t.unnamed
	}
	return t.byName[view(wire.CutName(name))]
}

func (t *portals) set(name []byte, b binding) {
	t.remove(name)
	t.bytes += len(b.stmt.text)
	if len(name) == 0 {
		t.unnamed = b
		return
	}
	if t.byName == nil {
		t.byName = map[string]binding{}
	}
	t.byName[string(wire.CutName(name))] = b
}

// executed follows the Execute of a portal that may choose resources, in its batch. Nobody can execute
// it again.
func (t *portals) executed(name []byte) {
	t.choosers--
	t.remove(name)
}

func (t *portals) remove(name []byte) {
	b := t.get(name)
	if b.stmt == nil {
		return
	}
	t.bytes -= len(b.stmt.text)
	if len(name) == 0 {
		t.unnamed = binding{}
		return
	}
	delete(t.byName, view(wire.CutName(name)))
}

func (t *portals) clear() {
	if len(t.byName) > 0 {
		clear(t.byName)
	}
	t.unnamed, t.bytes, t.choosers, t.importers = binding{}, 0, 0, false
}

// endBefore forgets the portals of transactions before the one with that number.
func (t *portals) endBefore(transaction uint64) {
	if t.unnamed.transaction < transaction {
		t.remove(nil)
	}
	for name, b := range t.byName {
		if b.transaction < transaction {
			t.bytes -= len(b.stmt.text)
			delete(t.byName, name)
		}
	}
}

// boundIn reports whether one was bound in that batch.
func (t *portals) boundIn(batch uint64) bool {
	if t.unnamed.stmt != nil && t.unnamed.batch == batch {
		return true
	}
	for _, b := range t.byName {
		if b.batch == batch {
			return true
		}
	}
	return false
}
