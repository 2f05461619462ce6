package protocol

import (
	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/gate"
)

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
