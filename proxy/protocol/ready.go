package protocol

import (
	"fmt"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/proxy/gate"
)

// ready accounts for ReadyForQuery, which ends what e was owed.
func (m *Machine) ready(e *reply, msg []byte, p *gate.Segments) {
	wasOwn := e.own()
	certainty, after, status := e.certainty, e.after, readyStatus(msg[wire.HeaderLen])
	// In a block that has failed, a COMMIT that was sent may have been skipped.
	ran := certainty == answered && !m.down.failed && status != gate.FailedBlock
	m.copy.end()
	if ran {
		m.pendingReplies.runs(false, e.adds&hadEnd != 0)
	}
	m.pendingReplies.pop()
	m.pendingReplies.rests(status != gate.Idle)
	m.front() // ends of a COPY that failed are owed nothing
	if certainty != answered {
		m.maybeNext(certainty)
	}
	if m.names.statements.chains { // the block may be another one
		m.txn.Answer(gate.TransactionEnded, false)
	}
	m.txn.Answer(status, !m.pendingReplies.empty())
	if ran {
		m.confirm(after)
	}
	if m.txn.AtRest() {
		m.chain = chain{} // a BEGIN that was sent has failed, or its block is over
	}
	if !wasOwn || m.down.failed { // what Fencepost has sent ahead says nothing of a SET behind it
		m.settleBase(m.down.failed)
	}
	m.down.failed = false
	if status != gate.FailedBlock {
		m.down.ahead = nil
	}
	if m.registration.Held() && m.txn.AtRest() {
		m.registration = gate.Registration{}
		m.down.happens(Event{Kind: EventUnregister})
	}
	m.leavesDoubtful(status)
	if wasOwn {
		m.repliesDropped()
		return
	}
	if m.config.Mode == ModeFenced {
		if st := m.shownStatus(); st != m.down.reported || m.epochs.choices.shown != nil {
			p.Insert(m.report())
		}
	}
	if m.epochs.isPending() && m.pendingReplies.empty() {
		m.down.happens(Event{Kind: EventAnnounce})
	}
}

// settleBase follows what shows whether a SET of the session's choice holds.
func (m *Machine) settleBase(failed bool) {
	if m.epochs.settleBase(failed) {
		m.down.happens(Event{Kind: EventChosen, Resources: m.resources(m.epochs.choices.base)})
	}
}

// confirm follows what shows that t is the transaction in hand.
func (m *Machine) confirm(t transaction) {
	if m.epochs.confirm(t) {
		m.names.portals.endBefore(t.number)
	}
}

// readyStatus is what a ReadyForQuery with this byte says. Postgres knows no
// other.
func readyStatus(b byte) gate.Answered {
	switch b {
	case 'I':
		return gate.Idle
	case 'T':
		return gate.Block
	default:
		return gate.FailedBlock
	}
}

// maybeNext follows a ReadyForQuery that may have been that of a later Sync, because the
// one it was taken for may have been ignored in COPY data: the next one that is owed for
// sure may have been answered by it, if nothing stands in between but what may have been
// ignored or skipped as well. If the COPY had been executed, what else stands in between was
// skipped then: whether it was cannot be told, and the session ends. If it was a Query, it
// would have been answered by now.
func (m *Machine) maybeNext(c certainty) {
	behind := false // a Sync behind the COPY: no error there has skipped what is behind it, which will be answered
	for i := range m.pendingReplies.len() {
		switch e := m.pendingReplies.at(i); {
		case e.origin == ownAsking:
			return
		case e.kind == copyEnd, e.maybe():
			behind = behind || e.certainty == perhapsBefore
		case e.kind == syncing:
			e.certainty = perhapsBefore
			return
		default:
			if !behind {
				m.endsInDoubt(c)
			}
			return
		}
	}
}

// endsInDoubt ends the session if a Sync follows, and the server may have skipped what
// stands in front of it.
func (m *Machine) endsInDoubt(c certainty) {
	for i := range m.pendingReplies.len() {
		if m.pendingReplies.at(i).kind == syncing && c == perhapsInBatch {
			m.down.phase.end(fmt.Errorf("%w: a Sync inside COPY data that failed", ErrSurprise))
			return
		}
	}
}
