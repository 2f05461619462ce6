package protocol

import (
	"strings"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/gate"
)

// messageInjector sends messages of the extended protocol in front of one of the client's.
type messageInjector struct {
	m *Machine
	s *statement
	p *gate.Plan
	// reparses: the message is a Parse of the unnamed statement, in who knows what
	// transaction.
	reparses bool
	// portal is that of an Execute.
	portal  []byte
	carrier carrier
}

// injectMessage sends what s needs in front of an extended message that may run it without
// executing it, and returns the reason for which that message passes.
func (m *Machine) injectMessage(s *statement, reparses bool, p *gate.Plan) (gate.Reason, NeedKind) {
	by := m.newMessageInjector(prepared, s, p)
	by.reparses = reparses
	r, need := by.inject()
	if need == NeedNothing {
		m.mayUndo(s)
	}
	return r, need
}

// injectExecute sends what s needs in front of an Execute of that portal.
func (m *Machine) injectExecute(s *statement, portal []byte, p *gate.Plan) (gate.Reason, NeedKind) {
	by := m.newMessageInjector(executed, s, p)
	by.portal = portal
	return by.inject()
}

// newMessageInjector returns the injector of an extended message that may run s.
func (m *Machine) newMessageInjector(c carrier, s *statement, p *gate.Plan) *messageInjector {
	by := &m.injectors.message
	*by = messageInjector{}
	by.m, by.s, by.p, by.carrier = m, s, p, c
	return by
}

// inject decides about the message, and carries that out.
func (by *messageInjector) inject() (gate.Reason, NeedKind) {
	q := by.m.situation(by.carrier, by.s)
	return by.m.inject(by.m.decide(&q), by.s, by, by.p)
}

func (by *messageInjector) begin() {
	if by.carrier == executed {
		by.m.staysReadOnly(by.p)
	}
	by.m.claimAtRest(by.p)
}

func (by *messageInjector) instead() { by.m.discardExecute(by.portal, by.s, by.p) }

func (by *messageInjector) lasting() *statement { return by.s }

func (by *messageInjector) check(g injectedCheck) {
	by.m.chain.has(hadWork) // it takes a snapshot
	if by.reparses {
		m := by.m
		at := len(m.scratch)
		m.scratch = wire.AppendCloseStatement(m.scratch, "")
		by.p.Own(m.scratch[at:])
		m.push(closing, own)
	}
	by.m.runCheck(g, by.s, by.p)
}

func (by *messageInjector) ahead(sql string) { by.m.runOnce(sql, noCheck, own, by.s, by.p) }

func (by *messageInjector) claim() { by.m.claimBefore(by.s, by.p) }

func (by *messageInjector) put(sql string, g injectedCheck) { by.m.runOnce(sql, g, own, by.s, by.p) }

// refuse sends a message that fails, after which the server skips the client's.
func (by *messageInjector) refuse(r *fencing.Refusal) {
	m := by.m
	if m.endsBlock(r, by.s) {
		m.endBlock(r, by.s, by.p)
	} else {
		at := len(m.scratch)
		m.scratch = wire.AppendParse(m.scratch, m.checks.names.portal, raiseSQL)
		by.p.Own(m.scratch[at:])
		e := m.push(parse, own)
		e.check, e.refuse, e.stmt = refusal, r, by.s
	}
	m.batch.checked()
}

// runCheck runs a prepared check by extended messages.
func (m *Machine) runCheck(g injectedCheck, s *statement, p *gate.Plan) {
	if m.checksChoice(g) {
		m.runOnce(m.chosenSQL(), g, own, s, p)
		return
	}
	if !m.checks.prepared() {
		m.prepare(own, s, p)
	}
	m.checks.build(m.epochs.inHand.announced, m.held())
	if !m.checks.usable(m.batch.id) {
		m.runOnce(m.checks.inline(g), g, own, s, p)
		return
	}
	p.Own(m.checks.run(g, m.inFront()))
	e := m.push(run, own)
	e.check, e.stmt, e.announced, e.first = g, s, m.checks.built.held, m.retry.first()
	m.batch.checked()
}

// runOnce prepares, runs and forgets a text of Fencepost's. One that failed was not
// forgotten: the server skipped what came after it. s is the client's statement for which it
// runs. It is kept until the answer, so its text must last. from is ownAhead, and s nil, in a
// batch of Fencepost's alone.
func (m *Machine) runOnce(sql string, g injectedCheck, from origin, s *statement, p *gate.Plan) {
	at, name := len(m.scratch), m.checks.ownName()
	m.scratch = wire.AppendCloseStatement(m.scratch, name)
	m.scratch = wire.AppendParse(m.scratch, name, sql)
	m.scratch = wire.AppendRun(m.scratch, name, name)
	m.scratch = wire.AppendCloseStatement(m.scratch, name)
	p.Own(m.scratch[at:])
	for _, k := range []kind{closing, parse, run, closing} {
		e := m.push(k, from)
		e.check, e.stmt, e.announced = g, s, m.checks.built.held
	}
	m.batch.checked()
}

// claimAtRest has a session that is at rest claim its epoch, once for each epoch and again
// after what takes the claim away. No ROLLBACK and no failure undoes that claim, so a
// statement that goes by the registry finds it wherever it stands.
func (m *Machine) claimAtRest(p *gate.Plan) {
	if m.claimIsDue() {
		m.claimIfAtRest(p)
	}
}

// claimIsDue reports whether a leader's session has not claimed its epoch at rest, or may have lost that claim.
func (m *Machine) claimIsDue() bool {
	return m.checks.claims && m.inHand.aim == nil && m.checks.claimed != m.inHand.status.Epoch && m.leads()
}

func (m *Machine) claimIfAtRest(p *gate.Plan) {
	if !m.inFront() || m.batch.mayBeSkipped() {
		return
	}
	m.checks.claimed = m.inHand.status.Epoch
	m.claimAlone(p)
}

// claim has the session claim its epoch in front of each statement that goes by the
// registry, because what was executed since the last claim, or failed, may have taken that
// away. It does so in a batch of its own. In an open batch, or in a transaction that only a
// Sync of the client's ends, it becomes a part of that. Where it would change what the batch
// is, because nothing was executed in it (18 makes a block of it, and a VACUUM fails behind
// it), the statement has the claim of the session at rest alone.
func (m *Machine) claim(s *statement, p *gate.Plan) {
	open := m.stillOpen()
	alone := !open && !m.batch.mayBeSkipped()
	if m.batch.claimed || !alone && !open && m.batch.fresh() && (m.config.Version.ExecuteOpensBlock() || s.guess.Vacuums) {
		return
	}
	if alone {
		m.claimAlone(p)
		return
	}
	m.batch.claimed = true
	m.runOnce(fencing.ClaimSQL(m.config.Fence, m.inHand.status.Epoch), noCheck, own, s, p)
}

// claimAlone claims in a batch of Fencepost's alone.
func (m *Machine) claimAlone(p *gate.Plan) {
	m.batch.claimed = true
	m.runOnce(fencing.ClaimSQL(m.config.Fence, m.inHand.status.Epoch), noCheck, ownAhead, nil, p)
	m.syncAhead(p)
}

// claimBefore is claim, but not where it could only do harm: in a block that has failed the
// claim fails too, and the server skips the message behind it. Where a block may have failed,
// unseen as yet, the claim of the session at rest is enough, unless something has reset it since.
func (m *Machine) claimBefore(s *statement, p *gate.Plan) {
	if m.txn.State() == gate.Failed || m.txn.LeftFailed() && m.batch.open() {
		return
	}
	if m.txn.Settled() && !m.batch.skipping || m.checks.claimed != m.inHand.status.Epoch {
		m.claim(s, p)
	}
}

// claimMayFail reports whether a claim in front of a Query or a function call would become part of
// the client's batch, where a block may have failed unseen. The claim would fail there, and the
// server skip the message, which is owed a ReadyForQuery, up to a Sync. So what came before has to
// be answered first.
func (m *Machine) claimMayFail(typ byte) bool {
	return (typ == 'Q' || typ == 'F') && m.checks.claimed != m.inHand.status.Epoch && m.batch.mayBeSkipped() && !m.copy.stalls()
}

// prepare prepares the checks on the server, in the batch at hand, in front of a message of s. from
// is ownAhead, and s nil, if that is a batch of Fencepost's alone.
func (m *Machine) prepare(from origin, s *statement, p *gate.Plan) {
	at, first := len(m.scratch), m.pendingReplies.len()
	m.scratch = m.checks.appendPrepare(m.scratch, m.batch.id, from, m.push)
	p.Own(m.scratch[at:])
	for i := first; i < m.pendingReplies.len(); i++ {
		m.pendingReplies.at(i).stmt = s // which is refused if that fails
	}
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

// endSQL fails with 22023 when it runs in a block, since the name is too long,
// and ends the block: so does PREPARE TRANSACTION whenever Postgres refuses it,
// and there are drivers that send no ROLLBACK then.
var endSQL = "PREPARE TRANSACTION '" + strings.Repeat("refused by Fencepost, ", 10) + "'"

const endCode = "22023"

// endsBlock reports whether a refused statement is a PREPARE TRANSACTION in what
// is known to be a block.
func (m *Machine) endsBlock(r *fencing.Refusal, s *statement) bool {
	return r == fencing.TwoPhaseRefusal && m.txn.Settled() && m.txn.State() == gate.InBlock &&
		(s.info.PreparesTransaction || s.guess.StartsWithPrepareTransaction)
}

// endBlock refuses s by extended messages, and ends the block it stands in.
// Behind that nothing can run: should the first text not fail, the second does.
func (m *Machine) endBlock(r *fencing.Refusal, s *statement, p *gate.Plan) {
	at, name := len(m.scratch), m.checks.ownName()
	m.scratch = wire.AppendCloseStatement(m.scratch, name)
	m.scratch = wire.AppendParse(m.scratch, name, endSQL)
	m.scratch = wire.AppendRun(m.scratch, name, name)
	m.scratch = wire.AppendCloseStatement(m.scratch, name)
	m.scratch = wire.AppendParse(m.scratch, name, raiseSQL)
	p.Own(m.scratch[at:])
	for _, k := range []kind{closing, parse, run, closing, parse} {
		e := m.push(k, own)
		e.check, e.refuse, e.stmt = refusal, r, s
	}
}
