package protocol

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// injector puts something of Fencepost's in front of a client's statement, in the way
// that suits the statement's carrier. It is good for one statement.
type injector interface {
	// check puts a check there: that of the epoch, or read-only mode.
	check(g injectedCheck)
	// ahead puts the statement sql in front of what check will put there.
	ahead(sql string)
	// claim has the session claim its epoch, for what no check can stand in front of.
	claim()
	// put puts the statement sql there. g says what it does for the transaction.
	put(sql string, g injectedCheck)
	// refuse puts there what fails in the statement's place.
	refuse(r *fencing.Refusal)
	// begin sends what goes in front of all this.
	begin()
	// instead has something else take the place of the statement: what does nothing, or for a
	// statement among others, the same text as one that could not be read.
	instead()
	// lasting returns the statement, for messages that go by themselves.
	lasting() *statement
}

// injectors are those in use, one for each frequent carrier, so that none is allocated
// for a message.
type injectors struct {
	message messageInjector
	query   queryInjector
}

// inject carries out what was decided of s: it puts in front of s what has to stand there, and
// returns the reason for which s then passes. If there is a need, s must wait. A statement
// that neither passes nor waits has something else in its place.
func (m *Machine) inject(d decision, s *statement, by injector, p *gate.Plan) (r gate.Reason, need NeedKind) {
	if d.action.sends() {
		by.begin()
	}
	switch d.action {
	case forward:
		r = d.reason
	case chooses:
		_, among := by.(*textInjector)
		m.choose(s, among)
		r = d.reason
	case claimFirst:
		by.claim()
		r = d.reason
	case checkFirst:
		by.check(fullCheck)
		r = m.coverageBy(fullCheck)
	case undoCheckFirst:
		by.ahead(readWriteSQL)
		by.check(fullCheck)
		r = m.coverageBy(fullCheck)
	case readFirst:
		m.chain.set = true
		by.check(readOnly)
		r = m.coverageBy(readOnly)
	case lapsedFirst:
		by.put(m.lapsedSQL(), fullCheck)
		r = m.coverageBy(fullCheck)
	case refuseFirst:
		by.refuse(d.refusal)
		r = m.coverageBy(refusal)
	case answerFirst:
		by.put(m.setSQL(s.info.Name), noCheck)
		r = d.reason
	case verdictFirst, undoVerdictFirst, lapsedVerdictFirst:
		need = m.ask(d.action, by.lasting(), p)
	case discard, asOne:
		by.instead()
	case answersFirst:
		need = m.awaitBatch(p)
	case needsMoreFor:
		need = d.need
	}
	return r, need
}

// coverageBy says that a check of Fencepost's, or a refusal, stands in front of what
// follows, and returns the reason for which that passes.
func (m *Machine) coverageBy(g injectedCheck) gate.Reason {
	if g == readOnly {
		m.txn.Send(gate.SetReadOnly, false)
	} else {
		m.txn.Send(gate.RunCheck, false)
	}
	r, _ := m.txn.Covered()
	return r
}

// inFront reports that nothing can stand in front of the next message: it begins
// a transaction, with the session at rest.
func (m *Machine) inFront() bool { return m.txn.State() == gate.AtRest }

// held is the epoch that the candidacy holds now. For a message that the registry has
// refused it is the one that was refused, so that the check which says why to the
// client refuses as well: neither forgets an epoch that was superseded.
func (m *Machine) held() fencing.Epoch {
	if m.inHand.registry.refusal != nil {
		return m.inHand.registry.held
	}
	if st := m.inHand.status; st.CanWrite() {
		return st.Epoch
	}
	return 0
}

// lapsedSQL refuses a worker whose lease is not confirmed, though it still has
// the latest epoch.
func (m *Machine) lapsedSQL() string {
	c := m.aimed()
	return fencing.RefuseSQL(c.Fence, m.config.Worker, c.Incarnation, m.told(), m.inHand.status.Epoch, true)
}

// callInjector replaces a fast path call: nothing can stand in front of one, so what is to
// stand there goes as a Query that always fails, in its place. Both are answered by an
// error and ReadyForQuery.
type callInjector struct {
	m       *Machine
	p       *gate.Plan
	sql     string           // the Query, "" if the call goes as it is
	refusal *fencing.Refusal // of the Query, if there is no sql
}

func (by *callInjector) check(g injectedCheck) {
	if by.m.checksChoice(g) {
		by.put(by.m.chosenSQL(), g)
		return
	}
	by.m.checks.build(by.m.epochs.inHand.announced, by.m.held())
	by.put(by.m.checks.inline(g), g)
}

// ahead does nothing: the call is replaced by what fails.
func (by *callInjector) ahead(string) {}

func (by *callInjector) claim() { by.m.claimBefore(unknownStatement, by.p) }

func (by *callInjector) put(sql string, _ injectedCheck) { by.sql = sql }

func (by *callInjector) refuse(r *fencing.Refusal) { by.refusal = r }

func (by *callInjector) begin() { by.m.claimAtRest(by.p) }

// instead is for what no call comes to; it refuses the call.
func (by *callInjector) instead() { by.refuse(fencing.RetryRefusal) }

func (by *callInjector) lasting() *statement { return unknownStatement }

// functionMessage is the fast path call. Outside a checked block it goes by the registry.
func (m *Machine) functionMessage(n, avail, more int, p *gate.Plan) NeedKind {
	m.beginBatch()
	if need := m.syncBefore(p); need != NeedNothing {
		return need
	}
	q := m.situation(call, unknownStatement)
	by := callInjector{m: m, p: p}
	r, need := m.inject(m.decide(&q), unknownStatement, &by, p)
	switch {
	case need != NeedNothing:
		return need
	case by.refusal != nil:
		m.auditedCall(m.sendRefusal(by.refusal, unknownStatement, p))
	case by.sql != "":
		m.auditedCall(m.replaceFunction(by.sql, p))
	default:
		m.gate.Pass(p, n, n+avail, more, r)
		m.auditedCall(m.push(function, fromClient))
		m.chain.follow(unknownStatement)
		m.endBatch()
		return NeedNothing
	}
	m.inHand.dropped = true
	return NeedNothing
}

// auditedCall keeps what an audit line would say of a fast path call.
func (m *Machine) auditedCall(e *reply) {
	m.audited(e, unknownStatement, bytesOf(sqltext.FunctionCall))
}

// replaceFunction sends a Query of sql and of what always fails.
func (m *Machine) replaceFunction(sql string, p *gate.Plan) *reply {
	at := len(m.scratch)
	m.scratch = wire.AppendQuery(m.scratch, []byte(sql+";"+raiseSQL))
	p.Own(m.scratch[at:])
	e := m.pushQuery()
	e.announced = m.held()
	e.sql.inserts = []insertion{{index: 0, n: len(sql) + 1, check: fullCheck}, {index: 1, n: len(raiseSQL), check: refusal, refuse: fencing.RetryRefusal}}
	return e
}
