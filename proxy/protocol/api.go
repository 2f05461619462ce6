package protocol

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/shadow"
	"github.com/fencepost/fencepost/proxy/wire"
)

// Config is what a machine knows from the start.
type Config struct {
	Mode    Mode
	Version gate.Version
	// Status returns the candidacy's status. It must not block, and must return a
	// new pointer whenever the status has changed.
	Status func() *fencing.Status
	Cache  *sqltext.Cache // of analyses, shared by the sessions
	// Fence, Resource, Worker and Incarnation name the fence and the candidacy. They
	// are empty without a resource.
	Fence                         int32
	Resource, Worker, Incarnation string
	// Unfenced is what a write gets in ModeReadOnly.
	Unfenced *fencing.Refusal
	// Catalog returns what is known of the database's names now, or nil. It is nil itself
	// if no read has to be proven: without a resource, on 16 and later.
	Catalog func() *fencing.Catalog
	// ProvenReads: a leader's transaction of nothing but proven reads goes unchecked.
	ProvenReads bool
	// Discards: the writes of the candidacy are discarded once it was superseded.
	Discards bool
	// Tables: while the candidacy has never had an epoch, what its client sends is left to the
	// guards of the resource's tables, as long as there are any.
	Tables bool
	// Shadow observes, in ModePassing, what ModeFenced would refuse. It is nil otherwise.
	Shadow *shadow.Watch
	// Nameless: the client named no worker.
	Nameless bool
	// Trouble returns what keeps the candidacy from leading, or nil. It must not block. It
	// may be nil itself.
	Trouble func() *fencing.Trouble
	// Parameters are the bodies of the server's ParameterStatus messages.
	Parameters [][]byte
}

// New returns the machine of a session that has authenticated.
func New(c Config) *Machine {
	m := &Machine{
		config:   c,
		checks:   newChecks(c.Fence, c.Worker, c.Incarnation, c.Discards),
		names:    names{unnamed: unknownStatement},
		settings: newSettings(c.Parameters),
	}
	m.around = m.surroundings()
	m.config.Parameters = nil // they are not needed again
	return m
}

// AppendPrepare appends the messages that prepare the session's checks on the
// server, with a Sync. They are the first messages after the authentication; call
// Prepared when ReadyForQuery has answered them.
func (m *Machine) AppendPrepare(dst []byte) []byte {
	if m.config.Mode == ModeFenced {
		m.checks.follow(m.config.Status())
	}
	return wire.AppendSync(m.checks.appendPrepare(dst, 0, ownAhead, new(replyQueue).push))
}

// Prepared says how the server has answered AppendPrepare: failed is the first error, nil
// if there was none. An error that is due to the client's own settings, such as a short
// statement_timeout, only means that the checks are prepared later. For any other it
// returns a refusal.
func (m *Machine) Prepared(failed *wire.ServerError) *fencing.Refusal {
	switch {
	case failed == nil:
		m.checks.confirm()
		return nil
	case ofClient(*failed):
		m.checks.rename()
		return nil
	default:
		return fencing.UncheckedRefusal(failed.Code, failed.Message)
	}
}

// AppendGreeting appends the parameters that tell the client its resource, worker,
// role and epoch, and takes announced for the epoch that the client knows. Nothing is
// appended without a resource.
func (m *Machine) AppendGreeting(dst []byte, st *fencing.Status, announced fencing.Epoch) []byte {
	m.epochs.current = announced
	if m.config.Mode != ModeFenced {
		return dst
	}
	m.down.reported = st
	dst = wire.AppendParameterStatus(dst, "fencepost.resource", fencing.ASCII(m.config.Resource))
	dst = wire.AppendParameterStatus(dst, "fencepost.worker", fencing.ASCII(m.config.Worker))
	dst = wire.AppendParameterStatus(dst, "fencepost.role", shownRole(st))
	return wire.AppendParameterStatus(dst, "fencepost.epoch", strconv.FormatInt(int64(shownEpoch(st)), 10))
}

// FromClient takes bytes of the client, as many as it can, and plans what to send to
// the server. It stops at n when it needs something: send the plan, meet the need, and
// call it again with what follows n. An error ends the session.
func (m *Machine) FromClient(in []byte, p *gate.Plan) (n int, need Need, err error) {
	defer caught(p, &err)
	m.up.parsed = 0
	if n, need.Kind, err = m.client(in, p); err == nil {
		err = m.up.phase.err
	}
	m.up.partial = n < len(in)
	switch need.Kind {
	case NeedMore:
		need.Bytes = m.up.wants
	case NeedAnalysis:
		need.Text, need.Settings = m.inHand.analysis.sql, m.inHand.analysis.settings
	case NeedJoin:
		need.Join = m.inHand.joinNeed()
	case NeedCampaign, NeedConfirm:
		need.Resource = m.focusOf()
	}
	return n, need, err
}

// FromServer takes bytes of the server, as many as it can, and plans what to send to
// the client. The events are what the caller does besides, and are good until the next
// call. An error ends the session.
func (m *Machine) FromServer(in []byte, p *gate.Segments) (n int, events []Event, err error) {
	defer caught(p, &err)
	m.down.reset()
	m.reportShadow()
	n, err = m.server(in, p)
	return n, m.down.events, err
}

// RegisterRequest is what to register, after NeedRegister. The caller adds the process id.
func (m *Machine) RegisterRequest() fencing.RegisterRequest {
	m.inHand.status, m.inHand.registry = m.config.Status(), registryAnswer{}
	m.inHand.registry.held = m.held()
	return fencing.RegisterRequest{
		Worker: m.config.Worker, Incarnation: m.config.Incarnation,
		Announced: m.told(), Held: m.inHand.registry.held, Flushed: m.inHand.flush,
	}
}

// Answer says what has come of a Need.
type Answer struct {
	Need NeedKind // which was met
	// Refusal is why the backend was not registered, or the candidacy not joined.
	Refusal *fencing.Refusal
	Text    *sqltext.Text // the analysis, of NeedAnalysis
	// Canceled: the client has canceled the statement in hand, so it fails as if it had begun.
	Canceled bool
	// Joined describes the candidacy, of the same resource and worker, for which the session has
	// left its own, of NeedJoin with a Token; nil if it stays. Announced is the epoch that the
	// client then knows, 0 for none; it counts for the transaction that the message in hand begins.
	Joined    *Config
	Announced fencing.Epoch
	Chosen    []Chosen // of NeedJoin with Resources, in their order; none means that of the startup
}

// Answer takes what has come of the Need that FromClient returned last.
func (m *Machine) Answer(a Answer) {
	m.inHand.canceled = m.inHand.canceled || a.Canceled
	switch a.Need {
	case NeedRegister:
		m.inHand.registry.asked, m.inHand.registry.refusal = true, a.Refusal
		if !m.registration.Held() {
			m.registration = gate.Registered(a.Refusal)
		}
	case NeedAnalysis:
		m.inHand.analysis.text = a.Text
	case NeedCatalog:
		m.inHand.refreshed = true
	case NeedJoin:
		switch {
		case m.inHand.token.value == 0:
			m.answerChoice(a)
		default:
			m.inHand.token.asked, m.inHand.token.refusal = true, a.Refusal
			if a.Joined != nil {
				m.rejoins(a.Joined, a.Announced)
			}
		}
	default:
		m.inHand.done = max(m.inHand.done, a.Need)
	}
}

// rejoins follows the begin of another candidacy of the same resource and worker.
func (m *Machine) rejoins(c *Config, announced fencing.Epoch) {
	own := &m.config
	own.Status, own.Trouble, own.Catalog, own.Fence, own.Incarnation = c.Status, c.Trouble, c.Catalog, c.Fence, c.Incarnation
	m.inHand.status = c.Status()
	m.checks.become(c.Fence, c.Incarnation)
	m.epochs.rejoins(announced)
	m.stale, m.batch.claimed = staleness{}, false
}

// Unregistered says that the backend is not registered any more.
func (m *Machine) Unregistered() { m.registration = gate.Registration{} }

// Condition is something that is so of a machine, or is not.
type Condition uint8

const (
	// Ready: after NeedRoom, FromClient can go on.
	Ready Condition = iota
	// Quiet: no reply is pending, no message of the client is incomplete, and it has sent nothing
	// over which the server ends the connection.
	Quiet
	// Owed: a reply is pending, whether or not the client has asked for it.
	Owed
	// AtRest: the session can end without losing anything. It is Quiet, and no transaction is
	// open.
	AtRest
	// Holding: FromClient has not taken all that the client has sent.
	Holding
	// InsideReply: a message of the server was sent to the client in part.
	InsideReply
	// Working: the server is known to be working for the client.
	Working
	// Leading: writes may be tried, in the transaction in hand.
	Leading
	// ReplayDue: FromClient has something to send, whether or not the client sends more.
	ReplayDue
	// ReplayPending: it has, or will have once the server has answered.
	ReplayPending
)

// Is reports whether c is so now.
func (m *Machine) Is(c Condition) bool {
	switch c {
	case Ready:
		return m.hasRoom()
	case Quiet:
		return m.pendingReplies.empty() && !m.up.partial && !m.up.phase.muted()
	case AtRest:
		return m.txn.AtRest() && !m.up.partial
	case Holding:
		return m.up.partial
	case InsideReply:
		return m.down.body.inside()
	case Working:
		return m.works()
	case Owed:
		return !m.pendingReplies.empty()
	case Leading:
		return leads(m.config.Status(), m.epochs.inHand.announced)
	case ReplayDue:
		return m.retry.stage == retryDue || m.retry.stage == retrySync || m.down.doubt.due && !m.up.partial && !m.up.body.inside()
	case ReplayPending:
		return m.retry.stage != retryIdle
	default:
		panic("protocol: no condition")
	}
}

// hasRoom reports, after NeedRoom, that FromClient can go on.
func (m *Machine) hasRoom() bool {
	switch serverWaits := m.copy.stalls(); {
	case m.inHand.wait != noWait: // what it has waited for may never come
		return !m.pendingReplies.certain() || m.doubtsSync() || serverWaits
	case m.retry.stage == retryDiscarding:
		return !m.pendingReplies.certain()
	default: // a server that reads COPY data answers nothing, so that too many are an error
		return m.pendingReplies.len() <= maxPending/2 || m.copy.reading()
	}
}

// Announced says that the epochs of an announce event reach a client of which nothing was
// pending, and returns those epochs. It does nothing and returns none if something is pending
// again.
func (m *Machine) Announced() []Told {
	if !m.Is(Quiet) {
		return nil
	}
	return m.epochs.settleAll()
}

// ClientEnded says that nothing more comes from the client, so that nothing new is
// kept to be sent again.
func (m *Machine) ClientEnded() { m.retry.keeping = keepsNothing }

// ErrBug says that the machine panicked over what a peer sent.
var ErrBug = errors.New("bug in the proxy")

// BugRefusal is what the client is told; the log has the rest.
var BugRefusal = &fencing.Refusal{SQLState: "XX000", Message: "Fencepost ran into a bug, see its log"}

// SurpriseRefusal is what the client is told after ErrSurprise; the log has the rest.
var SurpriseRefusal = &fencing.Refusal{
	SQLState: "08P01",
	Message:  "the server's reply does not fit what was sent, so Fencepost ends the session",
	Hint:     "Whether the last statements were run is not known. The log of Fencepost says what was expected. A COPY that a function executes is not supported.",
}

// caught turns a panic of the machine into an error, deferred by those who
// enter it: whatever a peer found ends its own session and no other.
func caught(p interface{ Reset([]byte) }, err *error) {
	if r := recover(); r != nil {
		p.Reset(nil) // it may be half made
		*err = fmt.Errorf("%w: %v: %s", ErrBug, r, debug.Stack())
	}
}
