package oracle

import (
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Facts are what an observer cannot see on the wire.
type Facts struct {
	Version     int  // of the server
	Fenced      bool // false for a connection without a resource, which may only read
	Fence       int32
	Resource    string // of the startup
	Incarnation string // of its candidacy
	ProvenReads bool   // a leader's proven reads go unchecked
	Database    string
	User        string
	// Settings are those that the server has reported.
	Settings map[string]string
}

// Observer watches one session. Its methods may be called by several goroutines. The
// bytes of each direction must be passed in order, and those for the server before they
// are sent.
type Observer struct {
	facts  Facts
	report func(complaint string)
	ledger func(epoch int64) (incarnation string, err error) // nil: the registry is trusted

	mu         sync.Mutex
	up, down   framer
	conforming bool // standard_conforming_strings
	safe       bool // client_encoding
	noted      bool
	doubtful   bool // a Sync may have been taken for part of failed COPY data
	over       bool // nothing is observed any more
	wrong      error
	proven     int // messages that went unchecked as proven reads

	confirmed set // the states before the first message of queue
	queue     []*message
	predicted set // the states after the last message of queue
	stale     bool
	unsaid    bool // something may have changed a setting since the last ReadyForQuery
	batch     int
	ran       int  // messages that may have run something of the user's
	synced    int  // the first batch after the last Sync
	open      bool // something was sent since the last Sync
	statements,
	portals map[string]*prepared
	resources map[string]candidacy // that the client has named besides the one of the startup
	script    transcript
}

// ErrUncovered means that a message may run anything without coverage.
var ErrUncovered = errors.New("a message would go to the server uncovered")

// New returns an observer for a session that has just been authenticated. report is
// called with each complaint; the session should end then.
func New(facts Facts, report func(complaint string)) *Observer {
	o := &Observer{
		facts: facts, report: report, up: framer{most: 64 << 20}, down: framer{most: 64 << 10, rows: true},
		confirmed: set{{}}, predicted: set{{}}, statements: map[string]*prepared{}, portals: map[string]*prepared{}, resources: map[string]candidacy{},
		conforming: true, safe: true,
	}
	for name, value := range facts.Settings {
		o.setting(name, value)
	}
	return o
}

// Sent processes bytes that are about to be sent to the server. An error means that
// they should not be sent.
func (o *Observer) Sent(b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.over {
		o.up.write(b, o.sent)
	}
	return o.wrong
}

// Received processes bytes that came from the server.
func (o *Observer) Received(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.over {
		o.down.write(b, o.received)
	}
}

// AskLedger makes the observer verify, for each registration, to whom its epoch was
// granted. The ledger is never changed, so a grant after the registration causes no
// race.
func (o *Observer) AskLedger(ledger func(epoch int64) (incarnation string, err error)) *Observer {
	o.ledger = ledger
	return o
}

// Rejoined says that the session has left its candidacy for another one of its worker. Nothing
// that the earlier one has covered may be unanswered then.
func (o *Observer) Rejoined(fence int32, incarnation string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.facts.Fence, o.facts.Incarnation = fence, incarnation
	o.script.add("rejoined as %q", incarnation)
	if o.noted {
		o.complain("the session rejoins while its backend is noted")
	}
}

// Registered says that the session's backend is in the registry under this epoch.
func (o *Observer) Registered(epoch int64) {
	granted, err := o.facts.Incarnation, error(nil)
	if o.ledger != nil {
		granted, err = o.ledger(epoch)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.noted = true
	o.script.add("noted under epoch %d", epoch)
	switch {
	case err != nil:
		o.complain("the ledger cannot be asked: %v", err)
	case granted != o.facts.Incarnation:
		o.complain("the backend is noted under epoch %d, which was granted to %q and not to this candidacy, %q", epoch, granted, o.facts.Incarnation)
	}
}

// Unregistered says that the registration is about to be deleted. Nothing that only the
// registration has covered may still run then.
func (o *Observer) Unregistered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.noted = false
	o.script.add("the note is deleted")
	if o.over {
		return
	}
	for _, m := range o.queue {
		if m.rests {
			o.complain("the note is deleted while a message %q that rests on it is not answered", m.typ)
			return
		}
	}
	for _, s := range o.confirmed {
		if s.noted && s.phase != idle {
			o.complain("the note is deleted while a transaction that it covers may go on: %s", s)
			return
		}
	}
}

// Proven returns how many messages went unchecked as proven reads.
func (o *Observer) Proven() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.proven
}

func (o *Observer) complain(format string, args ...any) {
	if o.over {
		return
	}
	o.over = true
	what := fmt.Sprintf(format, args...)
	o.wrong = fmt.Errorf("%w: %s", ErrUncovered, what)
	o.report(fmt.Sprintf("oracle: %s (database %s, user %s, PostgreSQL %d)\n%s", what, o.facts.Database, o.facts.User, o.facts.Version, o.script.String()))
}

// sent processes one message that is about to be sent to the server.
func (o *Observer) sent(f frame) {
	if o.over {
		return
	}
	if o.stale {
		o.predict()
	}
	m := o.message(f)
	o.script.sent(f)
	ok, bad := o.apply(o.predicted, m, true)
	o.predicted = union(ok, bad)
	o.queue = append(o.queue, m)
	o.unsaid = o.unsaid || !m.keepsSettings()
	if o.predicted.allIdle() {
		clear(o.portals) // no portal outlives its transaction
	}
	if m.runs() {
		o.ran++
	}
	m.ran = o.ran
	switch f.typ {
	case 'S', 'Q', 'F':
		o.batch++
		if f.typ == 'S' {
			o.synced = o.batch
		}
		o.open = f.typ != 'S' && o.open
	case 'P', 'B', 'D', 'E', 'C':
		o.open = true
	}
}

// predict computes the states after everything that was sent from the confirmed states.
func (o *Observer) predict() {
	o.stale, o.predicted = false, o.confirmed
	for _, m := range o.queue {
		ok, bad := o.apply(o.predicted, m, false)
		o.predicted = union(ok, bad)
	}
}

func union(x, y set) set {
	for _, s := range y {
		x.add(s)
	}
	return x
}

func (o *Observer) setting(name, value string) {
	switch name {
	case "standard_conforming_strings":
		o.conforming = value == "on"
	case "client_encoding":
		switch strings.ToUpper(value) {
		case "SJIS", "BIG5", "GBK", "UHC", "GB18030", "JOHAB", "SHIFT_JIS_2004", "SHIFTJIS2004":
			o.safe = false
		default:
			o.safe = true
		}
	}
}

// Named says which candidacy is meant by a resource, for the checks of transactions that have chosen
// it by SET fencepost.resource.
func (o *Observer) Named(resource string, fence int32, incarnation string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.resources[resource] = candidacy{itoa(int64(fence)), incarnation}
	o.script.add("%q is named: fence %d, %q", resource, fence, incarnation)
}
