package protocol

import (
	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/proxy/gate"
)

// maxKept bounds what of a client's is kept to be sent once more.
const maxKept = 8 << 10

// retry sends a client's messages once more if the check in front of them was
// unknown to the server: a function of the client's has hidden a DEALLOCATE ALL,
// which nobody sees on the wire. It does so only where nothing of the client's can have
// run: outside a transaction block, with the check as the first of all, and with
// everything that was sent since the session was last at rest in hand, which is
// one Query, or one batch with the Sync or the Query after it. A Query there is
// skipped with the batch, so that a Sync of Fencepost's ends it first.
type retry struct {
	on        bool   // kept is all that was sent since the session was at rest
	ended     bool   // and it ends with a Query or a Sync
	sync      bool   // the server skips up to a Sync of Fencepost's
	kept      []byte // whole messages
	discard   bool   // the check was unknown: ReadyForQuery is dropped, then again is sent
	due       bool   // again is to be sent
	replaying []byte
	at        int // how much of again was taken
	plan      gate.Plan
	scratch   []byte
}

// rest begins to keep what is sent. What is sent once more is not kept again.
func (r *retry) rest() {
	r.on, r.ended, r.kept = !r.due, false, r.kept[:0]
}

// first reports that nothing was sent yet since the session was at rest.
func (r *retry) first() bool { return r.on && len(r.kept) == 0 }

// keep keeps a message that was taken; msg is what has come of it.
func (r *retry) keep(f wire.Frame, msg []byte) {
	switch {
	case !r.on:
	case r.ended, len(msg) < f.Size, len(r.kept)+len(msg) > maxKept:
		r.on = false
	default:
		r.kept = append(r.kept, msg...)
		r.ended = f.Type == 'Q' || f.Type == 'S'
	}
}

// unknownCheck reports whether an error that answers e says that the prepared
// check is gone, in front of messages that can be sent again. If so, their
// replies are dropped.
func (m *Machine) unknownCheck(e *reply, pe wire.ServerError) bool {
	if pe.Code != "26000" || !e.first || e.sql.done > 0 || !m.retry.on || !m.retry.ended ||
		!m.checks.mentioned(pe.Message) {
		return false
	}
	m.checks.gone()
	m.fail(e, gate.Skipping)
	m.retry.replaying = append(m.retry.replaying[:0], m.retry.kept...)
	m.retry.at = 0
	if e := m.pendingReplies.front(); e != nil {
		e.origin = own // the Query itself, or the batch's Sync
		m.retry.discard = true
	} else {
		m.retry.sync, m.retry.due = true, true
		m.down.happens(Event{Kind: EventReplay})
	}
	return true
}

// discarded follows the ReadyForQuery that was dropped.
func (m *Machine) discarded() {
	if m.retry.discard {
		m.retry.discard, m.retry.due = false, true
		m.down.happens(Event{Kind: EventReplay})
	}
}

// replay takes what was kept as if it had come now.
func (m *Machine) replay(p *gate.Plan) Need {
	r := &m.retry
	if r.sync {
		r.sync = false
		m.syncSkipped(p)
	}
	r.plan.Reset(r.replaying)
	var n Need
	for r.at < len(r.replaying) && n == NeedNothing {
		f, _, _ := wire.PeekFrame(r.replaying[r.at:]) // kept whole
		if n = m.message(f, r.at, f.Size, &r.plan); n == NeedNothing {
			m.settled()
			r.at += f.Size
		}
	}
	r.scratch = p.Append(&r.plan, r.scratch)
	r.due = r.at < len(r.replaying)
	return n
}

// syncSkipped ends a batch of which the server skips what is left.
func (m *Machine) syncSkipped(p *gate.Plan) {
	at := len(m.scratch)
	m.scratch = wire.AppendSync(m.scratch)
	p.Own(m.scratch[at:])
	m.push(syncing, own)
	m.endBatch()
	m.batch.synced()
}
