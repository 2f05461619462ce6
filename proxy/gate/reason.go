package gate

import (
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

// Reason says why a message may go to the server. The zero Reason is none.
type Reason struct{ why why }

type why uint8

const (
	none why = iota
	readOnly
	harmless
	registered
	unfenced
	guarded
)

var whyNames = [...]string{"none", "covered by read-only mode", "unable to do anything",
	"while the backend is registered", "unfenced by configuration", "left to the guards of tables"}

func (r Reason) String() string { return whyNames[r.why] }

// must panics without a reason: nothing may have been sent by then.
func (r Reason) must() {
	if r.why == none {
		panic("gate: a message without a reason")
	}
}

// Unfenced is the reason of all messages of a session that the configuration
// lets write without a fence. It is also that of a binary whose checks were
// switched off at compile time, to show that the tests notice.
func Unfenced(allowed bool) (Reason, bool) {
	return Reason{unfenced}, allowed || !fencing.Checking
}

// ServerReadOnly is the reason of what runs in a transaction of which the server has said that it
// is read-only: it began while default_transaction_read_only was reported as on, or SET
// TRANSACTION READ ONLY has completed in it.
func ServerReadOnly(confirmed bool) (Reason, bool) { return Reason{readOnly}, confirmed }

// Unparsable is the reason of a text that is, or ends with, a statement of one word that is no keyword.
// Postgres parses a text as a whole before it runs any of it, so nothing of it runs. If a quote or a comment
// is open before the word, it is not closed either.
func Unparsable(text, word string) (Reason, bool) {
	before, ok := strings.CutSuffix(text, word)
	return Reason{harmless}, ok && (before == "" || strings.HasSuffix(before, "\n;"))
}

// Guarded is the reason of what is sent for a candidacy that has never had an epoch, on a resource
// whose guarded tables refuse its writes. It holds if there is such a table.
func Guarded(tables int) (Reason, bool) { return Reason{guarded}, tables > 0 }

// Malformed is the reason of a header over whose length the server ends the
// connection. No body follows it.
func Malformed(err error) (Reason, bool) { return Reason{harmless}, err != nil }

// Registered is the reason of whatever is sent while the backend is registered, so that a grant ends it.
func Registered(held bool) (Reason, bool) { return Reason{registered}, held }
