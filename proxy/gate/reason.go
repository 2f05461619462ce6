package gate

import (
	"bytes"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// Reason says why a message may go to the server. The zero Reason is none.
type Reason struct{ why why }

type why uint8

const (
	none why = iota
	checked
	readOnly
	harmless
	registered
	failed
	unfenced
	guarded
)

var whyNames = [...]string{"none", "covered by a check", "covered by read-only mode", "unable to do anything",
	"while the backend is registered", "in what has failed", "unfenced by configuration",
	"left to the guards of tables"}

func (r Reason) String() string { return whyNames[r.why] }

// must panics without a reason: nothing may have been sent by then.
func (r Reason) must() {
	if r.why == none {
		panic("gate: a message without a reason")
	}
}

// And is the reason of a text whose parts have these two: none if one of them
// has none. Of two reasons the second is told.
func (r Reason) And(next Reason) Reason {
	if r.why == none {
		return r
	}
	return next
}

// Unfenced is the reason of all messages of a session that the configuration
// lets write without a fence. It is also that of a binary whose checks were
// switched off at compile time, to show that the tests notice.
func Unfenced(allowed bool) (Reason, bool) {
	return Reason{unfenced}, allowed || !fencing.Checking
}

// Guarded is the reason of what is sent for a candidacy that has never had an epoch, on a resource
// whose guarded tables refuse its writes. It holds if there is such a table.
func Guarded(tables int) (Reason, bool) { return Reason{guarded}, tables > 0 }

// Proven is the reason of a statement that the catalog proves harmless now.
func Proven(c *fencing.Catalog, s *sqltext.Statement) (Reason, bool) {
	proven, _ := sqltext.Proven(c, s)
	return Reason{harmless}, proven
}

// Empty is the reason of a text that the grammar found to hold nothing.
func Empty(t *sqltext.Text) (Reason, bool) {
	return Reason{harmless}, t.Known && len(t.Statements) == 0
}

// Malformed is the reason of a header over whose length the server ends the
// connection. No body follows it.
func Malformed(err error) (Reason, bool) { return Reason{harmless}, err != nil }

// Inert is the reason of a message with this body, all of it, that the server
// rejects before it runs anything of it, and of the Describe of a portal, which
// only looks.
func Inert(typ byte, body []byte) (Reason, bool) {
	inert := false
	switch typ {
	case 'Q':
		end := endOfString(body)
		inert = end != len(body)
	case 'P':
		inert = endOfString(body) < 0 || endOfString(body[endOfString(body):]) < 0
	case 'B':
		inert = endOfString(body) < 0 || endOfString(body[endOfString(body):]) < 0
	case 'E':
		inert = endOfString(body) < 0
	case 'D':
		inert = len(body) == 0 || body[0] != 'S'
	case 'C', 'H':
		inert = true // these can do nothing, whatever their bodies
	}
	return Reason{harmless}, inert
}

// endOfString returns the offset after the first NUL byte, or -1.
func endOfString(b []byte) int {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return i + 1
	}
	return -1
}

// Registration says that the backend is in the registry, so that a grant ends it. The zero
// Registration says that it is not. Registered makes one.
type Registration struct{ held bool }

// Registered returns the Registration after an attempt to register the backend, which
// failed if err is not nil.
func Registered(err *fencing.Refusal) Registration { return Registration{held: err == nil} }

// Held reports whether the backend is registered.
func (n Registration) Held() bool { return n.held }

// Reason is the reason of whatever runs while the backend is registered.
func (n Registration) Reason() (Reason, bool) { return Reason{registered}, n.held }
