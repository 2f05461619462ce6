package protocol

import (
	"bytes"
	"fmt"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

type exchangeKind uint8

const (
	noExchange    exchangeKind = iota
	ownExchange                // a batch of Fencepost's own
	queryExchange              // a Query, or a part of one
	batchExchange              // extended messages up to a Sync
)

// exchange is what was sent since the last ReadyForQuery.
type exchange struct {
	kind      exchangeKind
	failed    bool // the server has said ERROR
	unsure    bool // its statements may leave a block READ WRITE
	leftRelay bool // as in inHand
	copyIn    bool // the server reads COPY data
	// refusal is why a text of the exchange was replaced by one that fails; nil if none was.
	refusal           *fencing.Refusal
	refused           Attempt          // what was
	denied            *fencing.Refusal // what a write gets, because the backend was not registered
	own               own              // of an ownExchange
	text              string
	chosen            *choice // by a statement of it, for the session
	setsSessionChoice bool    // that statement has succeeded, or one that resets the choice
	// discarded is the statement of a Query that is discarded.
	discarded *sqltext.Statement
	// statements are those of a Query.
	statements []sqltext.Statement
	batch
}

// batch is what an exchange is beyond that if it is a batch.
type batch struct {
	resumed    bool // its start was relayed
	synced     bool // a Sync was sent
	skip       bool // the server skips everything up to the Sync
	flushed    bool // a Flush was sent after the last Execute
	over       over
	portals    map[string]*prepared
	runs       []*prepared // the Executes, each with its statement; nil if nothing is known of that
	unknown    int         // how many of those of which nothing is known are not answered
	maySet     bool        // one of them may have changed how the server reads a text
	answered   int         // of them
	ops        []op        // the Parses and Closes that are not answered
	unanswered int         // how many messages of the client's are not answered
	inner      *own        // what Fencepost has sent within the batch, and is not answered
}

// newExchange returns an exchange of the client's.
func (s *Session) newExchange(k exchangeKind) exchange {
	return exchange{kind: k, denied: s.inHand.denied, chosen: s.inHand.chosen, leftRelay: s.inHand.leftRelay}
}

// over says that nothing of a batch can run any more, because the transaction in which it
// would run may not be read-only.
type over uint8

const (
	notOver  over = iota
	ended         // the transaction has ended: BEGIN may follow
	mayWrite      // the transaction may be READ WRITE
)

// own is what Fencepost has sent: an exchange, or some messages of a batch of the client's.
type own struct {
	sql        []string
	does       work
	show       shown
	repliesDue int  // within a batch: how many replies are due
	failed     bool // it has, if it is no ownExchange
}

// work is a set of what an own exchange does.
type work uint8

const (
	setsMode     work = 1 << iota // it makes the session read-only
	setsBlock                     // it makes the open block read-only
	setsShown                     // it sets Fencepost's parameters
	restoresMode                  // it restores the client's own default
	learnsNames                   // it lists the prepared statements
	opensBlock                    // it fails unless the block has run nothing
)

func (o *own) add(w work, sql ...string) {
	o.does |= w
	o.sql = append(o.sql, sql...)
}

// ownName is the name of Fencepost's own statement and portal, which exist during an own exchange. A Query
// would drop the unnamed ones, which may be the client's.
const ownName = "fencepost_own"

// appendTo appends the messages of the exchange. The statement may be there since an exchange that has failed.
func (o *own) appendTo(dst []byte) []byte {
	return wire.AppendSync(o.appendMessages(dst))
}

// appendWithin appends the messages within a batch of the client's, all of which is answered.
func (o *own) appendWithin(dst []byte) []byte {
	o.repliesDue = 5*len(o.sql) + 1
	return append(o.appendMessages(dst), flush...)
}

func (o *own) appendMessages(dst []byte) []byte {
	for _, sql := range o.sql {
		dst = wire.AppendCloseStatement(dst, ownName)
		dst = wire.AppendParse(dst, ownName, sql)
		dst = wire.AppendRun(dst, ownName, ownName)
	}
	return wire.AppendCloseStatement(dst, ownName)
}

// answered follows a reply within a batch, and reports whether it was the last one.
func (o *own) answered(typ byte) bool {
	switch typ {
	case '1', '2', '3', 'C':
		o.repliesDue--
	}
	return o.repliesDue == 0
}

// toRelay says how far the session is on its way to the relay.
type toRelay struct {
	restored bool // the client's own settings are restored
	failures int  // of own exchanges, one after another
}

// begins begins an exchange of the client's, or first one of Fencepost's own.
func (s *Session) begins(p *gate.Plan) NeedKind {
	if s.exchange.kind != noExchange {
		return NeedRoom
	}
	o := s.due()
	if len(o.sql) == 0 {
		return NeedNothing
	}
	if s.toRelay.failures >= maxFailures {
		s.err = errMode
		return NeedRoom
	}
	s.exchange = exchange{kind: ownExchange, own: o}
	p.Own(o.appendTo(nil))
	return NeedRoom
}

// maxFailures is how often an own exchange is tried. A short statement_timeout of the client, or
// its cancel request, may hit one.
const maxFailures = 5

// due returns the exchange of Fencepost's own that has to precede the client's next one.
func (s *Session) due() (o own) {
	switch {
	case s.txn == 'E': // nothing runs there
		return o
	case s.txn == 'T' && s.endsBySync && !s.settings.unsure: // its Sync would end the block
		return o
	case s.blockNeed() == NeedRoom:
		return s.blockSetup()
	case s.canBecomeRelay() && !s.defaultRestored():
		o.add(restoresMode, s.settings.restore())
		s.show(&o)
		return o
	case s.txn == 'I' && !s.settings.readOnly:
		o.add(setsMode, SetupSQL)
	case s.txn == 'T' && s.settings.unsure:
		o.add(setsBlock, "SET TRANSACTION READ ONLY")
	}
	if s.needsNames {
		o.add(learnsNames, namesSQL)
	}
	if s.config.Mode == ModeFenced {
		s.show(&o)
	}
	return o
}

// canBecomeRelay reports whether the session, which is between two exchanges, may become a relay.
func (s *Session) canBecomeRelay() bool {
	return s.txn == 'I' && !s.parts.failed && !s.parts.notRelayed && !s.inHand.leftRelay && s.inHand.refusal == nil && s.leads() && s.isRegisteredFor(s.currentChoice())
}

// defaultRestored reports whether the client's own default is in force.
func (s *Session) defaultRestored() bool {
	return s.toRelay.restored || s.settings.readOnly == s.settings.clientDefault.now
}

// restore returns the statement that gives the client its own default back.
func (c *settings) restore() string {
	switch {
	case c.clientDefault.now == c.clientDefault.start:
		return "RESET default_transaction_read_only"
	case c.clientDefault.now:
		return "SET default_transaction_read_only = on"
	default:
		return "SET default_transaction_read_only = off"
	}
}

// show adds the SETs after which SHOW of Fencepost's parameters shows the current values.
func (s *Session) show(o *own) {
	c := s.currentChoice()
	now, has := shown{valid: true, role: c.role(), epochs: c.epochs(), resource: c.shownResource()}, &s.settings.shown
	if s.settings.defined && has.valid && has.role == now.role && has.epochs == now.epochs && has.resource == now.resource {
		return
	}
	if !s.settings.defined || !has.valid || has.resource != now.resource {
		o.add(0, "SET fencepost.resource TO "+fencing.Literal(now.resource), "SET fencepost.worker TO "+fencing.Literal(s.config.Worker))
	}
	o.add(setsShown, "SET fencepost.role TO "+fencing.Literal(now.role), "SET fencepost.epoch TO "+fencing.Literal(now.epochs))
	o.show = now
}

// ownDone follows the end of an exchange of Fencepost's own.
func (s *Session) ownDone(status byte) {
	o, failed := s.exchange.own, s.exchange.failed
	s.exchange, s.txn = exchange{}, status
	if failed {
		s.ownFailed(&o)
		return
	}
	s.toRelay.failures = 0
	s.ownWorked(&o, status != 'I')
	if status == 'I' && s.endsBySync {
		s.endsBySync, s.settings.unsure = false, false
		s.transactionEnded()
	}
}

// takeOwnReply takes a message of the server's while o is not answered, which was sent within a batch of the client's,
// or by the relay. done says that nothing more of o is due. If it has failed within a batch, the client gets an error,
// and the server skips what follows up to the Sync.
func (s *Session) takeOwnReply(o *own, in []byte, n int, f wire.Frame, p *gate.Segments) (taken int, done bool, err error) {
	if len(in)-n < f.Size {
		return 0, false, nil
	}
	msg, within := in[n:n+f.Size], o.repliesDue > 0
	body := msg[wire.HeaderLen:]
	switch {
	case f.Type == 'A':
		p.Forward(n, n+f.Size)
	case f.Type == 'S':
		p.Forward(n, n+f.Size)
		s.settings.followParameter(body)
	case f.Type == 'N':
		if e, _ := wire.DecodeError(body); e.Code == "25P01" { // there is no block
			s.ownFailed(o)
		}
	case f.Type == 'E':
		e, ok := wire.DecodeError(body)
		if !ok {
			return 0, false, fmt.Errorf("%w: an error that cannot be read", ErrUnexpectedReply)
		}
		if e.Fatal() {
			s.emit(Event{Kind: EventEnded, Err: e, Message: bytes.Clone(msg)})
			return f.Size, false, nil
		}
		s.ownFailed(o)
		o.failed = true
		switch {
		case within && s.inHand.refusal != nil:
			p.Insert(s.refuse(s.inHand.refusal, "ERROR", Attempt{}))
		case within:
			p.Insert(bytes.Clone(msg))
		case s.txn == 'T':
			s.blockError = bytes.Clone(msg)
		}
		return f.Size, within, nil
	case within:
		if done = o.answered(f.Type); done {
			s.ownWorked(o, true)
		}
	case f.Type == 'Z':
		if !o.failed {
			s.toRelay.failures = 0
			s.ownWorked(o, body[0] != 'I')
		}
		s.txn, done = body[0], true
	}
	return f.Size, done, nil
}

// ownFailed follows an error in something of Fencepost's own.
func (s *Session) ownFailed(o *own) {
	if o.does&opensBlock != 0 {
		s.inHand.refusal = fencing.ChooseLateRefusal
		return
	}
	s.toRelay.failures++
}

// ownWorked follows the end of something of Fencepost's own that has not failed.
func (s *Session) ownWorked(o *own, inBlock bool) {
	c := &s.settings
	s.needsNames = s.needsNames && o.does&learnsNames == 0
	c.readOnly = c.readOnly || o.does&setsMode != 0
	c.unsure = c.unsure && o.does&setsBlock == 0
	s.toRelay.restored = s.toRelay.restored || o.does&restoresMode != 0
	s.inHand.blockUnused = s.inHand.blockUnused || o.does&opensBlock != 0
	if o.does&setsShown != 0 {
		c.shown, c.defined = o.show, true
		c.shown.inBlock = inBlock
	}
}

// awaitBatch waits until all that was sent in the batch in hand is answered.
func (s *Session) awaitBatch(p *gate.Plan) NeedKind {
	x := &s.exchange
	if x.kind != batchExchange || x.failed || x.unanswered == 0 && x.inner == nil {
		return NeedNothing
	}
	if x.unanswered > 0 && !x.flushed {
		x.flushed = true
		p.Own(flush)
	}
	s.inHand.awaitsBatch = true
	return NeedRoom
}

// sendWithin sends o within the batch in hand, of which all is answered.
func (s *Session) sendWithin(p *gate.Plan, o own) NeedKind {
	s.exchange.inner, s.inHand.awaitsBatch = &o, true
	p.Own(s.exchange.inner.appendWithin(nil))
	return NeedRoom
}

// reason is why a message of the client's may be sent now.
func (s *Session) reason() gate.Reason {
	switch s.choices.block {
	case blockWrites:
		r, _ := gate.Registered(len(s.registered) > 0 || !fencing.Checking)
		return r
	case blockReads:
		r, _ := gate.ServerReadOnly(true)
		return r
	}
	r, ok := gate.ServerReadOnly(s.txn == 'E' || s.txn == 'T' && !s.settings.unsure || s.txn == 'I' && s.settings.readOnly)
	if !ok {
		panic("protocol: the transaction is not known to be read-only")
	}
	return r
}

// awaitsRuns reports whether an Execute is not answered of whose statement nothing is known. It may
// have ended the transaction.
func (s *Session) awaitsRuns() bool {
	x := &s.exchange
	if x.kind != batchExchange || x.failed {
		return false
	}
	return x.unknown > 0
}
