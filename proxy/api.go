package proxy

import (
	"strconv"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// machineConfig is what a machine knows from the start.
type machineConfig struct {
	Mode    mode
	Version int // the server's major version
	// Status returns the candidacy's status. It must not block, and must return a
	// new pointer whenever the status has changed.
	Status func() *fencing.Status
	Cache  *sqltext.Cache // of analyses, shared by the sessions
	// Fence, Resource, Worker and Incarnation name the fence and the candidacy. They
	// are empty without a resource.
	Fence                         int32
	Resource, Worker, Incarnation string
	// Unfenced is what a write gets in the mode reading.
	Unfenced *fencing.Refusal
	// Catalog returns what is known of the database's names now, or nil. It is nil
	// without a resource.
	Catalog func() *fencing.Catalog
	// ProvenReads: a leader's transaction of nothing but proven reads goes unchecked.
	ProvenReads bool
	// Parameters are the bodies of the server's ParameterStatus messages.
	Parameters [][]byte
}

// NewMachine returns the machine of a session that has authenticated.
func NewMachine(c machineConfig) *machine {
	m := &machine{
		mode: c.Mode, version: c.Version, status: c.Status, cache: c.Cache,
		checks:     newChecks(c.Fence, c.Resource, c.Worker, c.Incarnation),
		unfencedBy: c.Unfenced, catalog: c.Catalog, provenReads: c.ProvenReads,
		unnamed:  unknownStatement,
		settings: sqltext.Settings{StandardConformingStrings: true, SafeEncoding: true},
	}
	for _, body := range c.Parameters {
		m.parameter(body)
	}
	return m
}

// AppendPrepare appends the messages that prepare the session's checks on the
// server, with a Sync. They are the first messages after the authentication; call
// Prepared when ReadyForQuery has answered them.
func (m *machine) AppendPrepare(dst []byte) []byte {
	return wire.AppendSync(m.checks.appendPrepare(dst, 0, true, new(replyQueue).push))
}

// Prepared says that the server has prepared the checks.
func (m *machine) Prepared() { m.checks.confirmed = true }

// AppendGreeting appends the parameters that tell the client its resource, worker,
// role and epoch, and takes announced for the epoch that the client knows. Nothing is
// appended without a resource.
func (m *machine) AppendGreeting(dst []byte, st *fencing.Status, announced fencing.Epoch) []byte {
	m.announced = announced
	if m.mode != fencedMode {
		return dst
	}
	m.reported = st
	dst = wire.AppendParameterStatus(dst, "fencepost.resource", fencing.ASCII(m.checks.resource))
	dst = wire.AppendParameterStatus(dst, "fencepost.worker", fencing.ASCII(m.checks.worker))
	dst = wire.AppendParameterStatus(dst, "fencepost.role", shownRole(st))
	return wire.AppendParameterStatus(dst, "fencepost.epoch", strconv.FormatInt(int64(shownEpoch(st)), 10))
}

// FromClient takes bytes of the client, as many as it can, and plans what to send to
// the server. It stops at n when it needs something: send the plan, meet the need, and
// call it again with what follows n. An error ends the session.
func (m *machine) FromClient(in []byte, p *gate.Plan) (n int, need need, err error) {
	defer caught(p, &err)
	n, need, err = m.client(in, p)
	m.partial = n < len(in)
	return n, need, err
}

// FromServer takes bytes of the server, as many as it can, and plans what to send to
// the client. The events are what the caller does besides, and are good until the next
// call. An error ends the session.
func (m *machine) FromServer(in []byte, p *gate.Segments) (n int, events []event, err error) {
	defer caught(p, &err)
	m.down, m.events = m.down[:0], m.events[:0]
	n, err = m.server(in, p)
	return n, m.events, err
}

// Wants is the length in bytes of the message that FromClient waits for, after needMore.
func (m *machine) Wants() int { return m.wants }

// RegisterRequest is what to register, after needRegister. The caller adds the process id.
func (m *machine) RegisterRequest() fencing.RegisterRequest {
	m.registerHeld = m.held()
	return fencing.RegisterRequest{
		Worker: m.checks.worker, Incarnation: m.checks.incarnation,
		Announced: m.txAnnounced, Held: m.registerHeld, Flushed: m.flush,
	}
}

// Registered says that the backend is registered, or why it is not.
func (m *machine) Registered(r *fencing.Refusal) {
	m.tried, m.registerErr = true, r
	if !m.registration.Held() {
		m.registration = gate.Registered(r)
	}
}

// Asked says that needCampaign or needConfirm was met, whatever came of it.
func (m *machine) Asked(n need) { m.hasAsked = max(m.hasAsked, n) }

// Refreshed says that the catalog was read again, or cannot be.
func (m *machine) Refreshed() { m.renewed = true }

// WantedAnalysis returns the text to analyze, after needAnalysis.
func (m *machine) WantedAnalysis() (sql string, s sqltext.Settings) {
	return m.inHand.sql, m.inHand.settings
}

// Analyzed takes the analysis of what WantedAnalysis returned.
func (m *machine) Analyzed(t *sqltext.Text) { m.inHand.text = t }

// HasRoom reports, after needRoom, that FromClient can go on.
func (m *machine) HasRoom() bool {
	if m.waiting || m.retry.discard {
		return !m.pendingReplies.certain() || m.waiting && m.copying // the server waits for the client
	}
	return m.pendingReplies.len() <= maxPending/2
}

// Quiet reports that no reply is pending and no message of the client is incomplete.
func (m *machine) Quiet() bool { return m.pendingReplies.empty() && !m.partial }

// AtRest reports a point at which the session can end without losing anything: no
// reply is pending, no transaction is open, and no message of the client is incomplete.
func (m *machine) AtRest() bool { return m.txn.AtRest() && !m.partial }

// InsideReply reports that a message of the server was sent to the client in part.
func (m *machine) InsideReply() bool { return m.skipDown > 0 }

// MayWrite reports whether writes may be tried now, in the transaction in hand.
func (m *machine) MayWrite() bool { return m.status().CanWrite() && m.txAnnounced != 0 }

// Announced says that the epoch of an announce event reached a client of which
// nothing was pending. It does nothing if something is pending again.
func (m *machine) Announced() {
	if m.Quiet() {
		m.announced, m.pending.set = m.pending.told, false
	}
}

// Replays reports that FromClient has something to send again, whether or not the
// client sends more.
func (m *machine) Replays() bool { return m.retry.due }

// WillReplay reports that it has, or will have once the server has answered.
func (m *machine) WillReplay() bool { return m.retry.discard || m.retry.due }

// ClientEnded says that nothing more comes from the client, so that nothing new is
// kept to be sent again.
func (m *machine) ClientEnded() { m.retry.on = false }
