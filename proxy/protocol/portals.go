package protocol

import "github.com/fencepost/fencepost/proxy/wire"

// binding is what a Bind has put into a portal.
type binding struct {
	stmt  *statement
	batch uint64 // in which the Bind was sent
	// transaction is the number of the last transaction that had begun when the Bind was
	// sent, as far as is known. The portal ends with that one at the earliest: whatever
	// ended a transaction before is in front of the Bind.
	transaction uint64
}

// portals are those that a Bind of the client's has made.
type portals struct {
	byName map[string]binding
	bytes  int // of their statements' texts
}

// get returns a binding without a statement for a name that is not known.
func (t *portals) get(name []byte) binding { return t.byName[view(wire.CutName(name))] }

func (t *portals) set(name []byte, b binding) {
	t.remove(name)
	if t.byName == nil {
		t.byName = map[string]binding{}
	}
	t.byName[string(wire.CutName(name))] = b
	t.bytes += len(b.stmt.text)
}

func (t *portals) remove(name []byte) {
	if b, ok := t.byName[view(wire.CutName(name))]; ok {
		t.bytes -= len(b.stmt.text)
		delete(t.byName, view(wire.CutName(name)))
	}
}

func (t *portals) clear() {
	clear(t.byName)
	t.bytes = 0
}

// endBefore forgets the portals of transactions before the one with that number.
func (t *portals) endBefore(transaction uint64) {
	for name, b := range t.byName {
		if b.transaction < transaction {
			t.bytes -= len(b.stmt.text)
			delete(t.byName, name)
		}
	}
}

// boundIn reports whether one was bound in that batch.
func (t *portals) boundIn(batch uint64) bool {
	for _, b := range t.byName {
		if b.batch == batch {
			return true
		}
	}
	return false
}
