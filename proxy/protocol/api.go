package protocol

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/shadow"
	"github.com/fencepost/fencepost/proxy/wire"
)

// Mode is how the writes of a session are treated.
type Mode uint8

const (
	// ModeReadOnly is a connection without a resource, which may only read.
	ModeReadOnly Mode = iota
	// ModeFenced is a worker, which may write while it leads and its backend is registered.
	ModeFenced
	// ModePassing is a connection that may write without a fence, or whose resource is in shadow.
	ModePassing
)

// Candidacy is a candidacy that a session has joined.
type Candidacy struct {
	Resource string
	// Incarnation returns its random id, which is another one when the candidacy has taken the place of one of another
	// process.
	Incarnation func() string
	// Status returns its status. It must not block, and must return a new pointer whenever the
	// status has changed.
	Status func() *fencing.Status
	// Trouble returns what keeps the candidacy from leading, or nil. It may be nil itself.
	Trouble func() *fencing.Trouble
	// Announced is the epoch that the client knows, 0 for none.
	Announced fencing.Epoch
}

// Config is what a session knows from the start.
type Config struct {
	Mode    Mode
	Version gate.Version
	Cache   *sqltext.Cache // of analyses, shared by the sessions
	// Candidacy is that of the startup, in ModeFenced.
	Candidacy
	Worker string
	// Unfenced is what a write gets in ModeReadOnly.
	Unfenced *fencing.Refusal
	// Discards: the writes of the candidacy are discarded once it was superseded.
	Discards bool
	// Shadow follows, in ModePassing, a session whose resource is in shadow. It is nil otherwise.
	Shadow *shadow.Watch
	// Catalog returns what is known of the database's names now, or nil. Before 16, only what
	// it proves passes. It may be nil itself.
	Catalog func() *fencing.Catalog
	// Nameless: the client named no worker.
	Nameless bool
	// Registered: the backend was registered under the epoch Announced before the greeting.
	Registered bool
	// Tables: while the candidacy has never had an epoch, what its client sends is left to the guards
	// of the resource's tables, as long as there are any.
	Tables bool
	// Parameters are the bodies of the server's ParameterStatus messages, as they were before
	// Fencepost changed any.
	Parameters [][]byte
	// Carried, if not nil, is that of the session in whose place this one goes on. Parameters do not count then, and the
	// client has been greeted.
	Carried *Carried
	// SetUp: SetupSQL was executed during the startup, without an error.
	SetUp bool
}

// SetupSQL makes a session read-only. If the startup runs it before the first ReadyForQuery, the
// client gets the parameter with the others, and libpq's target_session_attrs=read-write finds
// the leader.
const SetupSQL = "SET default_transaction_read_only = on"

// Need is what a session must be given before it can continue with a client's message. Its owner
// meets it without the lock, says so by Answer, and calls FromClient again.
type Need struct {
	Kind     NeedKind
	Bytes    int              // of NeedMore: the length of the message, as far as its header says
	Text     string           // of NeedAnalysis
	Settings sqltext.Settings // of NeedAnalysis: how the server reads the text
	Join     JoinNeed         // of NeedJoin
	// Register are the resources of NeedRegister, with the epochs that were announced.
	Register []AnnouncedEpoch
	// Resource is that of the candidacy of NeedCampaign and NeedConfirm.
	Resource string
}

// JoinNeed says which candidacies the client wants to join.
type JoinNeed struct {
	// Token is that of the candidacy which takes the place of the startup's, 0 if it stays.
	Token int64
	// Resources are those that the client has chosen, if there is no Token: for one transaction if
	// Local, and otherwise for the session.
	Resources []string
	Local     bool
}

// AnnouncedEpoch is a resource, and an epoch of it that was announced to the client.
type AnnouncedEpoch struct {
	Resource string
	Epoch    fencing.Epoch
}

// NeedKind is the kind of a Need.
type NeedKind uint8

const (
	NeedNothing    NeedKind = iota
	NeedRegister            // register the backend for each of Register, or for none
	NeedCampaign            // call CampaignOnDemand: a write is about to be refused
	NeedConfirm             // wait until the lease is confirmed
	NeedMore                // the message is not whole: read at least Bytes; there is no Answer
	NeedTerminal            // the client has sent Terminate; there is no Answer
	NeedRoom                // wait for replies until the session is Ready; there is no Answer
	NeedCatalog             // read the database's catalog again
	NeedAnalysis            // analyze Text
	NeedJoin                // join the candidacies of Join
	NeedUnregister          // call Unregistered, and delete the registrations of the backend, which is at rest
)

// Answer is the answer to a Need.
type Answer struct {
	Need     NeedKind
	Refusal  *fencing.Refusal // of NeedRegister and NeedJoin: why not
	Resource string           // of a Refusal of NeedRegister: for which resource
	Text     *sqltext.Text    // of NeedAnalysis
	Canceled bool             // the client has canceled the statement in hand
	// Joined is the candidacy for which the session has left its own, of NeedJoin with a Token; nil if it stays.
	Joined *Candidacy
	// Chosen are the candidacies of NeedJoin with Resources, in their order. Of one that the session knows,
	// only Resource counts.
	Chosen []Candidacy
}

// Event is something that the session's owner does after a plan was made.
type Event struct {
	Kind      EventKind
	Rejection *fencing.Rejection // of EventRefused and EventSuperseded
	Resource  string             // of EventSuperseded and EventDiscarded
	Resources []string           // of EventChosen and EventUnregister
	Name      string             // of EventRenamed
	Err       wire.ServerError   // of EventEnded
	Message   []byte             // of EventEnded; nil if the plan has it
}

// EventKind is the kind of an Event.
type EventKind uint8

const (
	// EventRefused: a statement was refused.
	EventRefused EventKind = iota
	// EventEnded: the server said FATAL. Message is the whole ErrorResponse.
	EventEnded
	// EventAnnounce: the plan announces an epoch to the client. Call Announced if nothing of the
	// client's is pending when it is sent.
	EventAnnounce
	// EventSuperseded: the worker was superseded on Resource; the connection is over after the plan.
	EventSuperseded
	// EventChosen: the session goes by Resources from now on.
	EventChosen
	// EventUnregister: delete the registrations of the backend for Resources, before the plan is sent.
	EventUnregister
	// EventDiscarded: the plan shows the client that its worker was superseded on Resource, where stale writes are
	// discarded: one was, or was refused. An EventRefused follows.
	EventDiscarded
	// EventRenamed: the client of a session that is not fenced has set application_name to Name, as the plan reports to
	// it.
	EventRenamed
)

// Condition is something that is so of a session, or is not.
type Condition uint8

const (
	// Ready: after NeedRoom, FromClient can continue.
	Ready Condition = iota
	// Quiet: no reply is pending, and all that the client has sent was taken.
	Quiet
	// ReplyPending: a reply is pending, whether or not the client has asked for it.
	ReplyPending
	// AtRest: the session can end, or leave, without losing anything: no reply is pending, all that the client has sent
	// was taken, and the server is outside a transaction. Unlike Quiet, it is so also if what was sent last ends the
	// connection.
	AtRest
	// Holding: FromClient has not taken all that the client has sent.
	Holding
	// InsideReply: a message of the server was sent to the client in part.
	InsideReply
	// Working: the server is working for the client.
	Working
	// Leading: the candidacy leads, and the client knows that.
	Leading
	// Registered: the backend is registered.
	Registered
	// Portable: a new session that begins with what this one carries could go on in its place when it is at rest. It
	// writes without a fence and is not in shadow, or its backend is registered for the resource of its startup, under the
	// epoch that its client knows, and for no other.
	Portable
	// Whole: no message was sent in part in either direction. It is asked of a session that is AtRest and Portable.
	Whole
)

// ErrUnexpectedReply says that the server sent what cannot be a reply to what was sent.
var ErrUnexpectedReply = errors.New("unexpected reply of the server")

// ErrBug says that the session panicked over what a peer sent.
var ErrBug = errors.New("bug in the proxy")

// errCopy says that the client has sent a message that has no place among COPY data.
var errCopy = errors.New("a message that does not belong into COPY data")

// errMode says that the server does not make the session read-only.
var errMode = errors.New("the session cannot be made read-only")

// errLost ends a session whose client wants something of Fencepost's after it has sent messages
// in an order that no driver uses.
var errLost = errors.New("a statement for Fencepost follows messages in an order in which its place in the stream is unknown")

// Session is the protocol state of one session. New makes one.
type Session struct {
	config     Config
	settings   settings
	startup    membership // in the candidacy of the startup
	choices    choices
	names      names
	needsNames bool // what was prepared before is asked for before the next exchange
	// unknownUnnamed: there may be an unnamed statement of which nothing is known.
	unknownUnnamed  bool
	fenceStatements map[string]*prepared // prepared statements that show or set parameters of Fencepost's

	// registered is what the backend is registered for.
	registered []*membership
	relay      relay

	// The client's side.

	gate    gate.Gate
	body    passthrough // the rest of a message of which the start was taken
	inHand  inHand
	parts   parts
	partial bool // some bytes were not taken, and come again
	parsed  int  // bytes of text, by this call of FromClient
	muted   bool // what was sent last ends the connection
	err     error

	// The exchange.

	txn byte // of the last ReadyForQuery
	// endsBySync means that the block, if there is one, may be the implicit one of a batch that a Query has ended in
	// place of a Sync: PostgreSQL 18 leaves it open after the Query, and a Sync commits it.
	endsBySync bool
	ended      uint64
	exchange   exchange
	toRelay    toRelay

	// The server's side.

	reply      passthrough
	closed     bool // the client was sent the error that ends the session, and gets nothing more
	events     []Event
	made       []byte
	reported   reported
	blockError []byte // the error of an own exchange that has failed the client's block
}

// passthrough follows the rest of a message that was processed when only its start had arrived.
type passthrough struct {
	left int
	drop bool // it is not sent on
}

// inHand is what is known of the message in hand, and was done for it.
type inHand struct {
	sql              string // of the analysis
	settings         sqltext.Settings
	text             *sqltext.Text
	done             NeedKind // NeedCampaign or NeedConfirm, if that was met
	refreshed        bool     // the catalog was read again
	joined           bool
	refusal          *fencing.Refusal // of NeedJoin, or because the client has canceled
	registerAnswered bool             // NeedRegister was answered
	denied           *fencing.Refusal // by that: what a write gets
	join             JoinNeed
	value            string  // of the SET fencepost.resource that needs it
	chosen           *choice // by that
	blockUnused      bool    // the block was found to have run nothing
	leftRelay        bool    // the session has left the relay for this message
	messageLen       int     // with NeedMore: the length of the message
	awaitsRuns       bool    // for the replies to the Executes of a batch
	awaitsBatch      bool    // for all replies of a batch
}

// New returns a session after its startup, which is between two exchanges.
func New(c Config) *Session {
	s := &Session{config: c, txn: 'I', startup: newMembership(c.Candidacy)}
	s.choices.startup.all = []*membership{&s.startup}
	if c.Carried != nil {
		s.settings.take(*c.Carried)
		s.takeStatements(c.Carried.Prepared)
		s.reported.role, s.reported.epoch, s.reported.resource = c.Carried.Role, c.Carried.Epoch, fencing.ASCII(s.startup.Resource)
	} else {
		s.settings.begin(c.Parameters)
	}
	s.settings.readOnly = s.settings.readOnly || c.SetUp
	s.settings.reportedReadOnly = s.settings.readOnly
	if c.Registered {
		s.registered = []*membership{&s.startup}
	}
	if s.mayRelay() {
		s.startRelay()
	}
	s.config.Parameters, s.config.Carried = nil, nil // they are not needed again
	return s
}

// FromClient takes bytes of the client, as many as it can, and plans what to send to the
// server. It stops at n when it needs something: send the plan, meet the need, and call it
// again with what follows n. An error ends the session.
func (s *Session) FromClient(in []byte, p *gate.Plan) (n int, need Need, err error) {
	defer recoverPanic(p, &err)
	s.parsed = 0
	for n < len(in) && need.Kind == NeedNothing && s.err == nil {
		var taken int
		taken, need.Kind = s.message(in, n, p)
		n += taken
		if need.Kind == NeedNothing {
			s.inHand = inHand{}
		}
		if taken > 0 && need.Kind == NeedTerminal {
			break
		}
	}
	if n > len(in) {
		return 0, Need{}, fmt.Errorf("%w: %d of %d bytes taken", ErrBug, n, len(in))
	}
	s.partial = n < len(in)
	switch need.Kind {
	case NeedMore:
		need.Bytes = s.inHand.messageLen
	case NeedAnalysis:
		need.Text, need.Settings = s.inHand.sql, s.inHand.settings
	case NeedJoin:
		need.Join = s.inHand.join
	case NeedRegister:
		need.Register = s.unregisteredEpochs()
	case NeedCampaign, NeedConfirm:
		need.Resource = s.refusedMembership().Resource
	}
	return n, need, s.err
}

// FromServer takes bytes of the server, as many as it can, and plans what to send to the
// client. The events are good until the next call. An error ends the session.
func (s *Session) FromServer(in []byte, p *gate.Segments) (n int, events []Event, err error) {
	defer recoverPanic(p, &err)
	s.events, s.made = s.events[:0], s.made[:0]
	for _, r := range s.Shadowed() {
		s.emit(Event{Kind: EventRefused, Rejection: &r})
	}
	for n < len(in) && !s.closed {
		taken, err := s.takeReply(in, n, p)
		if taken == 0 || err != nil {
			return n, s.events, err
		}
		n += taken
	}
	if s.closed {
		n = len(in)
	}
	return n, s.events, nil
}

// Answer takes the answer to the Need that FromClient returned last.
func (s *Session) Answer(a Answer) {
	if a.Canceled {
		s.inHand.refusal = canceledRefusal
	}
	switch a.Need {
	case NeedAnalysis:
		s.inHand.text = a.Text
	case NeedCatalog:
		s.inHand.refreshed = true
	case NeedRegister:
		s.inHand.registerAnswered = true
		s.registrationAnswered(a.Refusal, a.Resource)
	case NeedJoin:
		switch s.inHand.joined = true; {
		case a.Refusal != nil:
			s.inHand.refusal = a.Refusal
		case a.Joined != nil:
			s.startup = newMembership(*a.Joined)
		case s.inHand.join.Token == 0:
			s.inHand.chosen = s.choice(a.Chosen)
		}
	case NeedCampaign, NeedConfirm:
		s.inHand.done = max(s.inHand.done, a.Need)
	default: // Unregistered has said so
	}
}

// Unregistered says that the backend is not registered any more, or is about to be, which the owner may begin
// whenever the session is AtRest.
func (s *Session) Unregistered() { s.registered = nil }

// Is reports whether c is so now.
func (s *Session) Is(c Condition) bool {
	switch c {
	case Holding:
		return s.partial
	case InsideReply:
		return s.reply.left > 0
	case Leading:
		return s.leads()
	case Registered:
		return len(s.registered) > 0
	case Portable:
		return s.isPortable()
	case Whole:
		return !s.partial && !s.muted && s.body.left == 0 && s.reply.left == 0
	}
	if s.relay.on {
		return s.relayIs(c)
	}
	x := &s.exchange
	switch c {
	case Ready:
		return x.kind == noExchange || x.copyIn || s.inHand.awaitsRuns && !s.awaitsRuns() || s.inHand.awaitsBatch && x.inner == nil && (x.unanswered == 0 || x.failed)
	case Quiet:
		return x.kind == noExchange && (!s.partial || s.parts.failed && s.parts.alone) && !s.muted && s.body.left == 0
	case AtRest:
		return x.kind == noExchange && !s.partial && s.body.left == 0 && s.txn == 'I'
	case ReplyPending:
		return x.kind != noExchange
	case Working:
		return x.kind != noExchange && !x.copyIn && (x.kind != batchExchange || x.synced || x.flushed)
	default:
		panic("protocol: no condition")
	}
}

// Announced says that what an EventAnnounce announced has reached a client of which nothing was
// pending, and returns the epochs. There are none if something is pending again.
func (s *Session) Announced() (all []AnnouncedEpoch) {
	if !s.Is(Quiet) {
		return nil
	}
	for _, st := range append([]*membership{&s.startup}, s.choices.known...) {
		if st.epochs.hasPending {
			st.epochs.current, st.epochs.hasPending = st.epochs.pending, false
			all = append(all, AnnouncedEpoch{st.Resource, st.epochs.current})
		}
	}
	return all
}

// Transactions returns how many of the client's transactions have ended, whether or not they were committed. A
// statement outside a block is one.
func (s *Session) Transactions() uint64 { return s.ended }

// FencedResources returns the resources that the transaction in hand is fenced for, none if it is not fenced.
func (s *Session) FencedResources() []string {
	if s.config.Mode != ModeFenced {
		return nil
	}
	return s.currentChoice().resources()
}

// Shadowed returns what was observed of a resource in shadow, and not reported by FromServer.
func (s *Session) Shadowed() []fencing.Rejection {
	if s.config.Shadow == nil {
		return nil
	}
	return s.config.Shadow.Found()
}

// recoverPanic turns a panic into an error. The entry points of a session defer it.
func recoverPanic(p interface{ Reset([]byte) }, err *error) {
	if r := recover(); r != nil {
		p.Reset(nil) // it may be half made
		*err = fmt.Errorf("%w: %v: %s", ErrBug, r, debug.Stack())
	}
}
