package protocol

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// Mode is how the writes of a session are treated.
type Mode uint8

const (
	// ModePassing relays without a check: a connection without a resource whose
	// user is allowed to write unfenced.
	ModePassing Mode = iota
	// ModeReadOnly makes every transaction read-only: a connection without a
	// resource, by default.
	ModeReadOnly
	// ModeFenced checks every transaction against the resource's fence.
	ModeFenced
)

// Need is what the machine must be given before it can go on with a client message. The shell
// does it without the lock, says so by Answer, and calls FromClient again.
type Need struct {
	Kind     NeedKind
	Bytes    int              // of NeedMore: the length of the message, as far as its header says
	Text     string           // of NeedAnalysis
	Settings sqltext.Settings // of NeedAnalysis: how the server reads the text
	Join     JoinNeed         // of NeedJoin
	// Resource is that of the candidacy of NeedCampaign and NeedConfirm, "" for that of the startup.
	Resource string
}

// JoinNeed says which candidacies the client wants, in the place of those that it has.
type JoinNeed struct {
	// Token is that of the candidacy which takes the place of the startup's, 0 if it stays.
	Token int64
	// Resources are those that the client has chosen, if there is no Token: for one transaction if
	// Local, and otherwise for the session. None means that of the startup.
	Resources []string
	Local     bool
}

// NeedKind is the kind of a Need.
type NeedKind uint8

const (
	NeedNothing  NeedKind = iota
	NeedRegister          // register the backend: see RegisterRequest
	NeedCampaign          // tell the candidacy that a write is about to be refused
	NeedConfirm           // wait until the lease is confirmed
	NeedMore              // the message is not whole: read at least Bytes; there is no Answer
	NeedTerminal          // the client has sent Terminate; there is no Answer
	NeedRoom              // wait for replies until the machine is Ready; there is no Answer
	NeedCatalog           // read the database's catalog again
	NeedAnalysis          // analyze Text
	NeedJoin              // join the candidacies of Join
)

// Machine is the protocol state of one session between its startup and its
// end: bytes of either side go in, a plan of what to send on comes out. It does
// no I/O, reads no clock and knows no goroutine; its owner guards it by a lock.
//
// Every message that was sent to the server and is owed a reply has an entry in
// pendingReplies, in order, whether it was the client's or Fencepost's own, so each
// reply is known to be the one's or the other's. A reply that cannot answer the entry
// in front ends the session.
type Machine struct {
	config   Config
	settings settings
	checks   checks
	around   surroundings

	pendingReplies replyQueue

	// The client's side: what was sent to the server.

	up           upstream
	gate         gate.Gate
	txn          gate.Txn
	batch        batch
	retry        retry
	injectors    injectors
	inHand       inHand
	names        names
	copy         copyState
	epochs       announced
	chain        chain
	registration gate.Registration // in the registry
	stale        staleness
	scratch      []byte

	// The server's side: what it answered.
	down downstream
}

// inHand is what is known of the message in hand, and what was done for it.
type inHand struct {
	status    *fencing.Status  // when it was looked at
	catalog   *fencing.Catalog // when its last statement was decided about, if that needed a proof
	analysis  analysis         // of its text
	done      NeedKind         // NeedCampaign or NeedConfirm, if that was met
	registry  registryAnswer
	token     tokenAnswer // to SET fencepost.token
	choosing  *choosing   // by SET fencepost.resource; nil if it chooses nothing
	aim       *aim        // nil if it is decided by the candidacy of the startup
	verdict   verdictState
	asked     int  // how many replies the verdict is owed, with what was sent along with it
	flush     bool // the registration that it needs must be durable
	refreshed bool // the catalog was read again
	wait      wait // with NeedRoom
	dropped   bool // nothing of the message is sent
	canceled  bool // the client has canceled it while it waited for a Need
}

// Event is something the shell does after a plan was made.
type Event struct {
	Kind      EventKind
	Rejection *fencing.Rejection // of EventRefused and EventSuperseded
	Resource  string             // of EventSuperseded, EventStale, EventDiscarded and EventUnclaimed; "" is that of the startup
	Resources []string           // of EventChosen; none if it is that of the startup
	Err       wire.ServerError   // of EventEnded
	Message   []byte             // of EventEnded
}

type EventKind uint8

const (
	// EventRefused: a check or refusal failed in front of a statement.
	EventRefused EventKind = iota
	// EventEnded: the server said FATAL; message is the whole ErrorResponse, which
	// was not put into the plan.
	EventEnded
	// EventUnregister: the backend's entry in the registry can be deleted; do it before the
	// plan is sent.
	EventUnregister
	// EventAnnounce: the plan tells the client an epoch; call Announced if nothing of the
	// client's is pending when it is sent.
	EventAnnounce
	// EventChosen: the server has answered what the session is in from now on.
	EventChosen
	// EventSuperseded: the check said ZF001; the connection is over after the plan.
	EventSuperseded
	// EventStale: the worker was superseded, and the session goes on: make sure that the
	// candidacy knows, before the plan is sent.
	EventStale
	// EventDiscarded: EventStale came before, and another write of its transaction was discarded or
	// failed: inform the candidacy, before the plan is sent.
	EventDiscarded
	// EventUnclaimed: a guarded table has refused a statement because the session claims no
	// epoch: read the fence's record again, before the plan is sent.
	EventUnclaimed
	// EventReplay: wake the pump that reads the client: FromClient has something to
	// send, whatever else comes.
	EventReplay
)

// beginBatch takes what the last ReadyForQuery said of the transaction over for the
// message in hand, if it still holds.
func (m *Machine) beginBatch() {
	if !m.pendingReplies.certain() {
		m.chain.had = m.pendingReplies.had
	}
	if !m.txn.Send(gate.Starts, !m.pendingReplies.empty()) {
		return
	}
	outside := m.txn.IsOutside()
	m.batch.rests(outside)
	if outside {
		m.epochs.begins()
		m.chain = chain{}
		m.retry.rest()
		m.names.portals.clear() // they ended with their transaction
		m.aim()
	}
}

// push notes that a message goes to the server, and what it is owed.
func (m *Machine) push(k kind, from origin) *reply {
	m.txn.Send(gate.Message, false)
	e := m.pendingReplies.push(k, from)
	e.after, e.unowed = m.epochs.inHand, m.batch.unowed
	m.batch.shown()
	return e
}

// endBatch forgets what covered the messages up to now: after a Query or a fast path call only
// ReadyForQuery says what holds.
func (m *Machine) endBatch() {
	m.txn.Send(gate.EndBatch, false)
	m.batch.end()
	if !m.config.Version.QueryContinuesBatch() {
		m.batch.commits()
	}
}

// endBatchBySync is endBatch for a Sync.
func (m *Machine) endBatchBySync() {
	m.txn.Send(gate.EndBySync, false)
	m.batch.end()
}

// settled forgets what was done for the message in hand.
func (m *Machine) settled() {
	if n := m.pendingReplies.len(); m.chain.adds != 0 && n > 0 {
		m.pendingReplies.at(n - 1).adds = m.chain.adds
	}
	m.chain.adds = 0
	m.inHand = inHand{}
	m.copy.sent = m.copy.intruder != 0
}
