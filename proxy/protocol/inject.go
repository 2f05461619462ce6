package protocol

import (
	"strconv"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// injectExtended puts what s needs in front of an extended message that may run
// it, and returns the reason for which that message passes.
func (m *Machine) injectExtended(c carrier, s *statement, p *gate.Plan) (gate.Reason, Need) {
	d := m.decide(c, s)
	switch d.action {
	case needsMoreFor:
		return gate.Reason{}, d.need
	case forward:
		return d.reason, NeedNothing
	case answerFirst:
		m.setExtended(s, p)
		return d.reason, NeedNothing
	case checkFirst:
		m.runCheck(fullCheck, s, p)
		m.txn.Send(gate.RunCheck, false)
	case readFirst:
		m.runCheck(readOnly, s, p)
		m.txn.Send(gate.SetReadOnly, false)
	case lapsedFirst:
		m.runOnce(m.lapsedSQL(), fullCheck, s, p)
		m.txn.Send(gate.RunCheck, false)
	case refuseFirst:
		m.refuseExtended(d.refusal, s, p)
	}
	r, _ := m.txn.Covered()
	return r, NeedNothing
}

// refuseExtended fails in front of an extended message, which the server then
// skips.
func (m *Machine) refuseExtended(r *fencing.Refusal, s *statement, p *gate.Plan) {
	if m.endsBlock(r, s) {
		m.endBlock(r, s, p)
	} else {
		at := len(m.scratch)
		m.scratch = wire.AppendParse(m.scratch, m.checks.names.portal, raiseSQL)
		p.Own(m.scratch[at:])
		e := m.push(parse, own)
		e.check, e.refuse, e.stmt = refusal, r, s
	}
	m.batch.checked()
	m.txn.Send(gate.RunCheck, false)
}

// runCheck runs a prepared check by extended messages.
func (m *Machine) runCheck(g injectedCheck, s *statement, p *gate.Plan) {
	m.checks.build(m.epochs.inHand.announced, m.held())
	if m.reparses {
		at := len(m.scratch)
		m.scratch = wire.AppendCloseStatement(m.scratch, "")
		p.Own(m.scratch[at:])
		m.push(closing, own)
	}
	if !m.checks.prepared() {
		m.prepare(own, p)
		m.checks.build(m.epochs.inHand.announced, m.held())
	}
	if !m.checks.usable(m.batch.id) {
		m.runOnce(m.checks.inline(g), g, s, p)
		return
	}
	p.Own(m.checks.run(g, m.inFront()))
	e := m.push(run, own)
	e.check, e.stmt, e.announced, e.first = g, s, m.checks.built.held, m.retry.first()
	m.batch.checked()
}

// inFront reports that nothing can stand in front of the next message: it begins
// a transaction, with the session at rest.
func (m *Machine) inFront() bool { return m.txn.State() == gate.AtRest }

// runOnce prepares, runs and forgets a text of ours. One that failed was not
// forgotten: the server skipped what stood behind it.
func (m *Machine) runOnce(sql string, g injectedCheck, s *statement, p *gate.Plan) {
	at, name := len(m.scratch), m.checks.ownName()
	m.scratch = wire.AppendCloseStatement(m.scratch, name)
	m.scratch = wire.AppendParse(m.scratch, name, sql)
	m.scratch = wire.AppendRun(m.scratch, name, name)
	m.scratch = wire.AppendCloseStatement(m.scratch, name)
	p.Own(m.scratch[at:])
	for _, k := range []kind{closing, parse, run, closing} {
		e := m.push(k, own)
		e.check, e.stmt, e.announced = g, s, m.checks.built.held
	}
	m.batch.checked()
}

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

// prepare prepares the checks on the server, in the batch at hand. from is ownAhead if
// that is one of Fencepost's alone.
func (m *Machine) prepare(from origin, p *gate.Plan) {
	at := len(m.scratch)
	m.scratch = m.checks.appendPrepare(m.scratch, m.batch.id, from, m.push)
	p.Own(m.scratch[at:])
	m.batch.checked()
}

// closeChecks closes the checks in front of what lists prepared statements. They
// are prepared again for the next transaction.
func (m *Machine) closeChecks(p *gate.Plan) {
	if !m.checks.onServer() {
		return
	}
	at := len(m.scratch)
	m.scratch = m.checks.appendClose(m.scratch, m.push)
	p.Own(m.scratch[at:])
	m.checks.build(m.epochs.inHand.announced, m.held())
}

// setExtended sets the value that s shows.
func (m *Machine) setExtended(s *statement, p *gate.Plan) {
	m.runOnce(m.setSQL(s.info.Name), noCheck, s, p)
}

// setSQL gives the server the value that SHOW fencepost.<name> is to show. SET
// takes no snapshot, so it may stand in front of anything.
func (m *Machine) setSQL(name string) string {
	var v string
	st := m.inHand.status
	switch name {
	case "role":
		v = shownRole(st)
	case "epoch":
		v = strconv.FormatInt(int64(shownEpoch(st)), 10)
	case "worker":
		v = m.config.Worker
	case "resource":
		v = m.config.Resource
	default:
		return "SELECT 1" // not ours: the server says what it thinks of it
	}
	return "SET fencepost." + name + " TO " + fencing.Literal(v)
}

// shownRole is what a worker is told of st.
func shownRole(st *fencing.Status) string {
	if st.Role == fencing.Leader && !st.CanWrite() {
		return fencing.Follower.String()
	}
	return st.Role.String()
}

// shownEpoch is the epoch under which a worker that knows st may write.
func shownEpoch(st *fencing.Status) fencing.Epoch {
	if st.CanWrite() {
		return st.Epoch
	}
	return 0
}

// announceBy marks a reply that tells the client an epoch.
func (m *Machine) announceBy(e *reply, s *statement) {
	if m.config.Mode != ModeFenced || !s.known {
		return
	}
	switch {
	case s.info.Kind == sqltext.ShowFence && (s.info.Name == "role" || s.info.Name == "epoch"):
		e.announces, e.announced = true, shownEpoch(m.inHand.status)
	case s.info.Kind == sqltext.SetFence && s.info.Name == "epoch":
		if n, err := strconv.ParseInt(s.info.Value, 10, 64); err == nil && n >= 0 {
			e.announces, e.announced = true, fencing.Epoch(n)
		}
	}
}
