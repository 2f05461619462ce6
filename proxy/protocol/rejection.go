package protocol

import (
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/wire"
)

// refused notes for the audit that the message of e was refused with r.
func (m *Machine) refused(e *reply, r *fencing.Refusal, found fencing.Finding) {
	text, write := m.ofText(string(e.sql.audit))
	switch {
	case e.stmt != nil:
		text, write = m.ofStatement(e.stmt)
	case e.class == isRead:
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
	st := m.concerned(found.Resource)
	c, announced := m.candidacy(st), m.epochs.confirmed.announced
	if st != nil {
		announced = m.epochs.confirmed.of(st)
	}
	return fencing.Rejection{
		Resource: c.Resource, Worker: m.config.Worker, Incarnation: c.Incarnation,
		Announced: announced, Held: c.Status().Epoch, Finding: found,
		Kind: fencing.KindOf(c.Resource, r.SQLState), SQLState: r.SQLState, Message: r.Message,
		Statement: strings.Clone(text), Write: write,
	}
}

// finding is what the proxy knows without asking the database.
func (m *Machine) finding() fencing.Finding {
	by := m.answering()
	st := m.candidacy(by).Status()
	return fencing.Finding{Epoch: st.Epoch, Current: st.Holder.Epoch, Holder: st.Holder.Worker, Resource: resourceOf(by)}
}

// findingOf is what the database found when it raised an error with this DETAIL, or what
// the proxy knows if the database did not raise it.
func (m *Machine) findingOf(detail string) fencing.Finding {
	if found, ok := fencing.DecodeFinding(detail); ok {
		return found
	}
	return m.finding()
}

// Attempt is the SQL that the first message in b would run, and whether it is
// more than a read, for the audit of a session whose candidacy is over.
func (m *Machine) Attempt(b []byte) (text string, write bool) {
	f, ok, err := wire.PeekClientFrame(b)
	if err != nil || !ok {
		return "", false
	}
	body := b[wire.HeaderLen:min(f.Size, len(b))]
	name, rest, _ := wire.CString(body)
	switch f.Type {
	case 'Q':
		return m.ofText(string(name))
	case 'P':
		sql, _, _ := wire.CString(rest)
		return m.ofText(string(sql))
	case 'B':
		stmt, _, _ := wire.CString(rest)
		return m.ofStatement(m.named(stmt))
	case 'E':
		if s := m.names.portals.get(name).stmt; s != nil {
			return m.ofStatement(s)
		}
	}
	return "", false
}

// InFlight is the SQL that the server was running, or was about to run, when
// its connection ended.
func (m *Machine) InFlight() (text string, write bool) {
	for i := range m.pendingReplies.len() {
		e := m.pendingReplies.at(i)
		if e.stmt != nil && e.stmt.text != "" {
			return m.ofStatement(e.stmt)
		}
		if len(e.sql.audit) > 0 {
			return m.ofText(string(e.sql.audit))
		}
	}
	return "", false
}

func (m *Machine) ofStatement(s *statement) (text string, write bool) {
	return s.text[:min(len(s.text), maxAuditText)], !s.known || !m.read(s)
}

// ofText cuts sql for the audit, and says whether it is more than reads, as far
// as that is known.
func (m *Machine) ofText(sql string) (text string, write bool) {
	return sql[:min(len(sql), maxAuditText)], !onlyReads(m.analyze(bytesOf(sql)))
}
