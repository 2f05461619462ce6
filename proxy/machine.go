package proxy

import (
	"github.com/fencepost/fencepost/fencing"
)

// mode is how the writes of a session are treated.
type mode uint8

const (
	// passing relays without a check: a connection without a resource whose
	// user is allowed to write unfenced.
	passing mode = iota
	// reading makes every transaction read-only: a connection without a
	// resource, by default.
	reading
	// fencedMode checks every transaction against the resource's fence.
	fencedMode
)

// cover is what a transaction has been given before the client's messages.
type cover uint8

const (
	uncovered   cover = iota
	readCovered       // read-only mode was set
	fullCovered       // the epoch was checked, and the sequence is locked
)

// need is what the machine must be given before it can go on with a client
// message. The shell does it without the lock and calls again.
type need uint8

const (
	needNothing   need = iota
	needEnter          // note the backend in the registry: call entered
	needDemand         // tell the candidacy that a write is about to be refused: call asked
	needConfirm        // wait until the lease is confirmed: call asked
	needMore           // the message is not whole: read at least machine.wants bytes
	needTerminal       // the client said Terminate
	needRoom           // more is owed than should be: wait until the server has answered some
	needCatalogue      // read the database's catalogue anew: call refreshed
)

// machine is the protocol state of one session between its startup and its
// end: bytes of either side go in, a plan of what to send on comes out. It does
// no I/O, reads no clock and knows no goroutine; its owner guards it by a lock.
//
// Every message sent to the server has an entry in owed, in order, the
// client's and ours alike, so each reply is known to be the client's or ours.
// A reply that cannot answer the entry in front ends the session.
type machine struct {
	mode       mode
	version    int // the server's major version
	standing   func() *fencing.Standing
	cache      *fencing.Cache
	settings   fencing.Settings
	checks     checks
	unfencedBy *fencing.Refusal // what a write gets in mode reading
	// catalogue returns what is known of the database's names now, or nil. It is
	// nil without a resource.
	catalogue func() *fencing.Catalogue
	// provenReads: a leader's transaction of nothing but proven reads goes
	// unchecked.
	provenReads bool

	owed replies

	// The client's side: what was sent to the server.

	skipUp   int  // bytes left of a body that is being passed on
	dropUp   bool // or dropped: a fast path call that is refused
	mute     bool // nothing more goes to the server, which ends the connection
	wants    int  // with needMore: how long the message is
	partial  bool // bytes of an incomplete message are left in the shell's buffer
	batch    uint64
	open     bool // extended messages were sent since the last Sync
	loose    bool // and a Query behind them: a failed one makes the server skip up to a Sync
	waiting  bool // with needRoom: until nothing is owed
	ours     bool // some of them ours
	ran      bool // the client executed something in this batch
	unsynced bool // and no Sync has come since, whatever else
	// snapshots: the client has parsed or bound a query in this batch.
	snapshots bool
	cover     cover
	failed    bool // the transaction is known to have failed before this batch
	inTx      bool // the server is known to be in a transaction block
	bare      bool // this batch began in no block, with nothing owed
	carried   bool // cover and failed were taken over for this batch
	begun     bool // something was carried
	unsure    bool // this batch began with something owed
	reparses  bool // a Parse of the unnamed statement is in hand, in who knows what transaction
	repeat    repeat
	stmts     map[string]*statement
	portals   map[string]binding
	unnamed   *statement
	leftovers bool      // the server has the unnamed statement and portal of a Query that went as messages
	hidden    bool      // a prepared statement may free names when SQL EXECUTE runs it
	one       statement // of the Query in hand
	copyIn    bool      // the server is reading COPY data
	data      bool      // the client has sent some, since it last executed something
	told      fencing.Epoch
	txTold    fencing.Epoch // what was told when the transaction began
	noted     bool          // the backend is in the registry
	leaving   bool          // its note is being deleted
	enterErr  *fencing.Refusal
	hasAsked  need // what was done for the message in hand: needDemand, needConfirm
	tried     bool // Enter was tried for the message in hand
	flush     bool // and the note is to be flushed
	renewed   bool // the catalogue was read anew for it
	scratch   []byte

	// The server's side: what it answered.

	skipDown int
	dropDown bool
	skipping bool  // the server skips everything up to Sync
	copying  bool  // a COPY from the client has begun and not ended
	executes bool  // by an Execute
	broken   error // what the client did cannot be followed: the session ends
	intruder byte  // the type of the client's message that has no place in it
	over     bool  // the client was told FATAL by the check: the session ends
	tx       byte  // of the last ReadyForQuery
	srvCover cover
	txCover  cover // srvCover at the last ReadyForQuery
	pending  struct {
		told fencing.Epoch
		set  bool
	}
	reported *fencing.Standing
	events   []event
	down     []byte // scratch for what is sent to the client
	heldBack []byte // a RowDescription that waits for what comes behind it
}

// event is something the shell does after a plan was made.
type event struct {
	kind    eventKind
	err     pgError
	text    string
	write   bool
	message []byte
}

type eventKind uint8

const (
	// refused: a check or refusal failed in front of text.
	refused eventKind = iota
	// ended: the server said FATAL; message is the whole ErrorResponse, which
	// was not put into the plan.
	ended
	// leave: the registry's note can be deleted; do it before the plan is sent.
	leave
	// tell: the client is to be told an epoch when the plan is sent.
	tell
	// superseded: the check said ZF001; the connection is over after the plan.
	superseded
	// again: wake the pump that reads the client: machine.client has something to
	// send, whatever else comes.
	again
)

func newMachine(m mode, version int, standing func() *fencing.Standing, cache *fencing.Cache, c checks) *machine {
	return &machine{
		mode: m, version: version, standing: standing, cache: cache, checks: c,
		stmts: map[string]*statement{}, portals: map[string]binding{}, unnamed: unknownStatement,
		tx: 'I', settings: fencing.Settings{StandardConformingStrings: true, SafeEncoding: true},
	}
}

// quiet reports that the server owes nothing.
func (m *machine) quiet() bool { return m.owed.len() == 0 }

// carry takes what the last ReadyForQuery said of the transaction over for the
// messages that follow, if it still holds.
func (m *machine) carry() {
	if !m.begun {
		m.begun, m.txTold = true, m.told // no transaction has begun before
	}
	if m.carried || !m.quiet() {
		m.unsure = m.unsure || !m.carried
		m.carried = true
		return
	}
	m.unsure = false
	m.carried, m.loose = true, false
	m.cover, m.failed, m.inTx = uncovered, false, false
	switch m.tx {
	case 'T':
		m.cover, m.inTx = m.txCover, true
	case 'E':
		m.failed = true
	case 'I':
		m.txTold, m.bare, m.unsynced = m.told, true, false
		m.repeat.rest()
		clear(m.portals) // they ended with their transaction
	}
}

// boundary forgets what covered the messages up to now: after a Sync or a
// Query only ReadyForQuery says what holds.
func (m *machine) boundary() {
	m.cover, m.failed, m.inTx, m.carried, m.unsure = uncovered, false, false, false, false
	m.loose = m.loose || m.open
	m.open, m.ours, m.ran, m.bare, m.snapshots = false, false, false, false, false
	m.batch++
}

// verdict is what goes in front of a client's statement.
type verdict uint8

const (
	forward      verdict = iota // nothing
	checkFirst                  // the check; it also refuses those who do not lead
	readFirst                   // read-only mode
	lapsedFirst                 // a refusal by the database: the lease is not confirmed
	refuseFirst                 // a refusal of the proxy's own
	byRegistry                  // the statement runs alone, under a note
	answerFirst                 // SHOW fencepost.…: its value is set in front
	needsMoreFor                // not decided: see need
)

// judge decides what goes in front of a message that may run s. The transaction
// of that message has been carried.
func (m *machine) judge(s *statement) (v verdict, n need, r *fencing.Refusal) {
	if m.mode == passing || !fencing.Checking {
		return forward, needNothing, nil
	}
	// In a failed transaction nothing runs but its end; a text that cannot be
	// read may go on behind that.
	if s.known && (m.failed || unguarded(&s.info) && !m.undoes(s)) {
		return forward, needNothing, nil
	}
	if s.twoPhase || s.known && s.info.Kind == fencing.Refused {
		return refuseFirst, needNothing, twoPhaseRefusal
	}
	if m.mode == reading {
		return m.judgeReading(s)
	}
	st := m.standing()
	if st.Fault != nil {
		return refuseFirst, needNothing, faultRefusal(st.Fault)
	}
	// In a block, what cannot share a transaction is an error of the server's.
	alone := !s.known || s.info.Kind == fencing.Alone && !m.inTx
	if st.May() && m.txTold != 0 {
		switch {
		case alone, m.failsOutside(s):
			return m.judgeAlone(s)
		case m.cover == fullCovered, m.provenReads && m.bare && s.proof != nil && m.proven(s):
			return forward, needNothing, nil
		default:
			return checkFirst, needNothing, nil
		}
	}
	if m.cover == fullCovered && !alone {
		return forward, needNothing, nil // checked while it led: the grant waits for this transaction
	}
	if !alone && m.read(s) {
		switch {
		case m.version < readOnlyHolds && !m.proven(s):
			if m.catalogue != nil && !m.renewed {
				return needsMoreFor, needCatalogue, nil
			}
		case m.cover >= readCovered:
			return forward, needNothing, nil
		default:
			return readFirst, needNothing, nil
		}
	}
	return m.judgeRefused(st)
}

// judgeRefused is for a write that would be refused: it first gives the
// candidacy the chance to lead.
func (m *machine) judgeRefused(st *fencing.Standing) (verdict, need, *fencing.Refusal) {
	switch {
	case st.Vacant && m.hasAsked < needDemand:
		return needsMoreFor, needDemand, nil
	case st.Lapsed && m.txTold != 0 && m.hasAsked < needConfirm:
		return needsMoreFor, needConfirm, nil
	case st.Lapsed && m.txTold == st.Epoch:
		return lapsedFirst, needNothing, nil
	default:
		return checkFirst, needNothing, nil
	}
}

// judgeAlone sends a statement that cannot share its transaction by the
// registry. If it may not enter, the check in front of it says why.
func (m *machine) judgeAlone(s *statement) (verdict, need, *fencing.Refusal) {
	switch {
	case m.noted:
		return byRegistry, needNothing, nil
	case !m.tried, m.enterErr == nil: // the last also if the note has gone with a transaction before
		m.flush = s.known && s.info.Kind == fencing.Alone && !s.info.EndsTx // VACUUM, and others as rare
		return needsMoreFor, needEnter, nil
	case m.enterErr != nil && m.enterErr.SQLState == fencing.StateNoFence:
		return refuseFirst, needNothing, m.enterErr
	default:
		return checkFirst, needNothing, nil
	}
}

func (m *machine) judgeReading(s *statement) (verdict, need, *fencing.Refusal) {
	if !s.known || s.info.Kind == fencing.Alone || !m.read(s) {
		return refuseFirst, needNothing, m.unfencedBy
	}
	if m.cover >= readCovered {
		return forward, needNothing, nil
	}
	return readFirst, needNothing, nil
}

// entered tells how noting the backend in the registry went.
func (m *machine) entered(r *fencing.Refusal) {
	m.tried, m.enterErr = true, r
	m.noted = m.noted || r == nil
}

// asked tells that a need was met, whatever came of it.
func (m *machine) asked(n need) { m.hasAsked = max(m.hasAsked, n) }

// refreshed tells that the catalogue was read anew, or cannot be.
func (m *machine) refreshed() { m.renewed = true }

// roomy reports that no more is owed than with needRoom may be.
func (m *machine) roomy() bool {
	if m.waiting || m.repeat.discard {
		return !m.owed.certain()
	}
	return m.owed.len() <= maxOwed/2
}

// settled forgets what was done for the message in hand.
func (m *machine) settled() {
	m.hasAsked, m.tried, m.enterErr, m.renewed, m.waiting = needNothing, false, nil, false, false
}
