package protocol

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// carrier is how a statement reaches the server.
type carrier uint8

const (
	// prepared: a Parse, Bind or Describe, which may run a user's code.
	prepared carrier = iota
	// executed: an Execute.
	executed
	// lone: the only statement of a Query, or a Query that could not be parsed.
	lone
	// among: one of several statements of a Query.
	among
	// call: a fast path call.
	call
)

// situation is everything that the decision about a statement rests on. It copies nothing that the
// session has, because nothing of that changes while the decision is made. The compiler
// makes a struct of up to four fields in place.
type situation struct {
	*surroundings
	carrier   carrier
	statement *statement
	whole     bool // the statement stands in a text that shows itself
}

// surroundings is what the decision about every statement of a session looks at. It is made once.
type surroundings struct {
	mode         Mode
	config       *Config
	*inHand      // what is known of its message
	txn          *gate.Txn
	batch        *batch
	copy         *copyState
	pending      *replyQueue
	epochs       *announced
	chain        *chain
	names        *names
	settings     *settings
	registration *gate.Registration
	reads        func(*statement) bool // whether a statement is nothing but a read, as far as the grammar tells
}

func (m *Machine) surroundings() surroundings {
	return surroundings{
		mode: m.config.Mode, config: &m.config, inHand: &m.inHand, txn: &m.txn, batch: &m.batch, copy: &m.copy, pending: &m.pendingReplies,
		epochs: &m.epochs, chain: &m.chain, names: &m.names, settings: &m.settings, registration: &m.registration, reads: m.read,
	}
}

// registryAnswer is what the registry has said for the message in hand.
type registryAnswer struct {
	asked   bool
	refusal *fencing.Refusal
	held    fencing.Epoch // the epoch held when it was asked
}

// tokenAnswer is what came of a SET fencepost.token.
type tokenAnswer struct {
	value   int64
	asked   bool
	refusal *fencing.Refusal
}

// action is what goes in front of a client's statement. After the first nine, the statement
// is sent.
type action uint8

const (
	forward            action = iota // nothing
	chooses                          // nothing, and the statement chooses resources
	claimFirst                       // the session claims its epoch
	checkFirst                       // the check; it also refuses those who do not lead
	undoCheckFirst                   // what undoes a read-only mode that was handed on, and the check
	readFirst                        // read-only mode
	lapsedFirst                      // a refusal by the database: the lease is not confirmed
	refuseFirst                      // a refusal of the proxy's own
	answerFirst                      // SHOW fencepost.…: its value is set in front
	verdictFirst                     // the verdict, and the message waits for the answer
	undoVerdictFirst                 // what undoes a read-only mode that was handed on, and the verdict
	lapsedVerdictFirst               // the verdict for a lease that is not confirmed
	discard                          // the statement is not executed, and answered as one that changes nothing
	asOne                            // nothing; its text is decided about again, as one that could not be read
	answersFirst                     // not decided: what was sent before is answered first
	needsMoreFor                     // not decided: see need
)

// sends reports whether the statement is sent.
func (a action) sends() bool { return a <= answerFirst }

// insertsFirst reports whether the statement is sent after something that the text around it
// would have in it.
func (a action) insertsFirst() bool { return a > claimFirst && a <= answerFirst }

// decision is what is decided of a statement. The compiler keeps a struct of up to four fields
// in registers.
type decision struct {
	action  action
	reason  gate.Reason      // of forward, chooses, claimFirst and answerFirst
	need    NeedKind         // of needsMoreFor
	refusal *fencing.Refusal // of refuseFirst
}

func passes(r gate.Reason) decision       { return decision{reason: r} }
func needs(n NeedKind) decision           { return decision{action: needsMoreFor, need: n} }
func refuses(r *fencing.Refusal) decision { return decision{action: refuseFirst, refusal: r} }

// decide says what goes in front of the statement of q.
func (m *Machine) decide(q *situation) decision {
	if m.config.Shadow != nil {
		m.observe(q)
	}
	if m.config.Catalog != nil {
		m.inHand.catalog = m.catalogFor(q.statement)
	}
	d := q.decide()
	m.inHand.flush = d.need == NeedRegister && q.flushes()
	if d.need == NeedJoin {
		m.wantsToJoin(q.statement)
	}
	return d
}

// catalogFor returns what is known now of the database's names, or nil if the decision about s
// needs no proof: whoever asks for it keeps the database polled.
func (m *Machine) catalogFor(s *statement) *fencing.Catalog {
	switch {
	case m.config.Catalog == nil, s.provable == nil && m.config.Mode != ModeReadOnly, !m.config.ProvenReads && m.config.Version.KeepsReadOnly():
		return nil
	default:
		return m.config.Catalog()
	}
}

// situation is everything that the machine knows about s now.
func (m *Machine) situation(c carrier, s *statement) situation {
	m.aim()
	return situation{surroundings: &m.around, carrier: c, statement: s}
}

// leads reports whether writes may be tried in the transaction of the message in hand.
func (m *Machine) leads() bool { return leads(m.inHand.status, m.told()) }

// wantsToJoin notes what s, which has a NeedJoin, wants to join.
func (m *Machine) wantsToJoin(s *statement) {
	if s.info.Kind == sqltext.SetFence && s.info.Name == "token" {
		m.inHand.token.value, _ = fencing.ParseToken(s.info.Value)
		return
	}
	if m.inHand.choosing == nil {
		m.inHand.choosing = &choosing{}
	}
	m.inHand.choosing.value, m.inHand.choosing.local = s.chooses()
}

// joinNeed is what the statement that has a NeedJoin wants to join.
func (h *inHand) joinNeed() JoinNeed {
	if h.token.value != 0 {
		return JoinNeed{Token: h.token.value}
	}
	resources, _ := fencing.ParseResources(h.choosing.value)
	return JoinNeed{Resources: resources, Local: h.choosing.local}
}
