package protocol

import "github.com/fencepost/fencepost/proxy/wire"

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
