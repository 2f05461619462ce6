package protocol

import (
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

// refused notes for the audit that the message of e was refused with r.
func (m *Machine) refused(e *reply, r *fencing.Refusal, found fencing.Finding) {
	text, write := m.ofText(string(e.sql.audit))
	switch {
	case e.stmt != nil:
		text, write = m.ofStatement(e.stmt)
	case e.sql.reads:
		write = false
	}
	rejection := m.rejection(r, found, text, write)
	m.down.happens(Event{Kind: EventRefused, Rejection: &rejection})
}

// Rejection is what the machine knows of a statement that the session itself refuses
// with r; see Attempt and InFlight for text and write.
func (m *Machine) Rejection(r *fencing.Refusal, text string, write bool) fencing.Rejection {
	return m.rejection(r, m.finding(), text, write)
}

// rejection copies the text, because a Rejection may outlive the session.
func (m *Machine) rejection(r *fencing.Refusal, found fencing.Finding, text string, write bool) fencing.Rejection {
	return fencing.Rejection{
		Resource: m.config.Resource, Worker: m.config.Worker, Incarnation: m.config.Incarnation,
		Announced: m.epochs.confirmed.announced, Held: m.config.Status().Epoch, Finding: found,
		Kind: fencing.KindOf(m.config.Resource, r.SQLState), SQLState: r.SQLState, Message: r.Message,
		Statement: strings.Clone(text), Write: write,
	}
}

// finding is what the proxy knows without asking the database.
func (m *Machine) finding() fencing.Finding {
	st := m.config.Status()
	return fencing.Finding{Epoch: st.Epoch, Current: st.Holder.Epoch, Holder: st.Holder.Worker}
}

// findingOf is what the database found when it raised an error with this DETAIL, or what
// the proxy knows if the database did not raise it.
func (m *Machine) findingOf(detail string) fencing.Finding {
	if found, ok := fencing.DecodeFinding(detail); ok {
		return found
	}
	return m.finding()
}
