package protocol

import (
	"github.com/fencepost/fencepost/fencing"
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
}

// injectors are those in use, one for each frequent carrier, so that none is allocated
// for a message.
type injectors struct {
	message messageInjector
	query   queryInjector
}

// inject puts what was decided of s in front of it, and returns the reason for which s
// then passes. There must be no need left.
func (m *Machine) inject(d decision, s *statement, by injector) gate.Reason {
	switch d.action {
	case forward:
		return d.reason
	case claimFirst:
		by.claim()
		return d.reason
	case answerFirst:
		by.put(m.setSQL(s.info.Name), noCheck)
		return d.reason
	case checkFirst:
		if m.leads() && m.chain.undoes() && !m.settings.readOnly {
			by.ahead(readWriteSQL)
		}
		by.check(fullCheck)
		return m.coverageBy(fullCheck)
	case readFirst:
		m.chain.set = true
		by.check(readOnly)
		return m.coverageBy(readOnly)
	case lapsedFirst:
		by.put(m.lapsedSQL(), fullCheck)
		return m.coverageBy(fullCheck)
	case refuseFirst:
		by.refuse(d.refusal)
		return m.coverageBy(refusal)
	default:
		panic("protocol: a statement is sent before it is decided")
	}
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
	return fencing.RefuseSQL(m.config.Fence, m.config.Worker, m.config.Incarnation, m.epochs.inHand.announced, m.inHand.status.Epoch, true)
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
	by.m.checks.build(by.m.epochs.inHand.announced, by.m.held())
	by.put(by.m.checks.inline(g), g)
}

// ahead does nothing: the call is replaced by what fails.
func (by *callInjector) ahead(string) {}

func (by *callInjector) claim() { by.m.claimBefore(unknownStatement, by.p) }

func (by *callInjector) put(sql string, _ injectedCheck) { by.sql = sql }

func (by *callInjector) refuse(r *fencing.Refusal) { by.refusal = r }

// functionMessage is the fast path call. Outside a checked block it goes by the registry.
func (m *Machine) functionMessage(n, avail, more int, p *gate.Plan) Need {
	m.beginBatch()
	if need := m.syncBefore(p); need != NeedNothing {
		return need
	}
	d := m.decide(call, unknownStatement)
	if d.need != NeedNothing {
		return d.need
	}
	m.claimAtRest(unknownStatement, p)
	by := callInjector{m: m, p: p}
	r := m.inject(d, unknownStatement, &by)
	switch {
	case by.refusal != nil:
		m.sendRefusal(by.refusal, unknownStatement, p)
	case by.sql != "":
		m.replaceFunction(by.sql, p)
	default:
		m.gate.Pass(p, n, n+avail, more, r)
		m.push(function, fromClient)
		m.endBatch()
		return NeedNothing
	}
	m.inHand.dropped = true
	return NeedNothing
}

// replaceFunction sends a Query of sql and of what always fails.
func (m *Machine) replaceFunction(sql string, p *gate.Plan) {
	at := len(m.scratch)
	m.scratch = wire.AppendQuery(m.scratch, []byte(sql+";"+raiseSQL))
	p.Own(m.scratch[at:])
	e := m.pushQuery()
	e.announced = m.held()
	e.sql.inserts = []insertion{{index: 0, n: len(sql) + 1, check: fullCheck}, {index: 1, n: len(raiseSQL), check: refusal, refuse: fencing.RetryRefusal}}
}
